"""Model-3 of Spectral-DP (arXiv:2307.13231), as in appendix B.3 of GReDP (Wang et al. 2024, arXiv:2409.11663)."""

from __future__ import annotations

from torch import nn

from assay.models.registry import ModelInfo
from assay.models.shapes import with_head

WIDTHS = (32, 64, 128)  # chosen here: GReDP's table gives none


def model3(input_shape: tuple[int, ...], classes: int, *, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """3×3 convolutions of widths 32-32-64-64-128-128, max-pool 2 after each pair, FC 120, classes."""
    features = nn.Sequential()
    channels = input_shape[0]
    for pair, width in enumerate(WIDTHS, start=1):
        for half in "ab":
            features.add_module(f"conv{pair}{half}", nn.Conv2d(channels, width, 3, padding=1))
            features.add_module(f"act{pair}{half}", activation())
            channels = width
        features.add_module(f"pool{pair}", nn.MaxPool2d(2))
    features.add_module("flatten", nn.Flatten())
    return with_head(features, input_shape, (120,), classes, activation=activation)


MODELS = (
    ModelInfo(
        name="model3",
        summary="Model-3 of Spectral-DP: six 3×3 convolutions (32-32-64-64-128-128), FC 120 (ReLU)",
        make=model3,
        smallest_side=8,  # three halvings
        channels_last=True,
    ),
)
