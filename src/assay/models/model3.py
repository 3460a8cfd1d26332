"""Model-3 of Spectral-DP and GReDP (appendix B.3): three pairs of 3×3 convolutions."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from assay.models.registry import ModelInfo
from assay.models.shapes import flat_size

WIDTHS = (32, 64, 128)


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
    head = nn.Sequential(
        OrderedDict(
            fc1=nn.Linear(flat_size(features, input_shape), 120),
            act1=activation(),
            fc2=nn.Linear(120, classes),
        )
    )
    return nn.Sequential(OrderedDict(features=features, head=head))


MODELS = (
    ModelInfo(
        name="model3",
        summary="Model-3 of Spectral-DP: six 3×3 convolutions (32-32-64-64-128-128), FC 120 (ReLU)",
        make=model3,
        smallest_side=8,  # three halvings
        channels_last=True,
    ),
)
