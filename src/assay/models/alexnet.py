"""AlexNet for 32×32 images, as in appendix B.5 of GReDP (Wang et al. 2024, arXiv:2409.11663)."""

from __future__ import annotations

from torch import nn

from assay.models.registry import ModelInfo
from assay.models.shapes import with_head

# GReDP's table gives no widths. These are torchvision's.
WIDTHS = (64, 192, 384, 256, 256)


def alexnet(input_shape: tuple[int, ...], classes: int, *, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Five times (3×3 convolution, max-pool 2), then FC 120, 84, classes.

    Pools round up, so that 28×28 images still reach the fifth pool. For 32×32 that changes nothing.
    """
    features = nn.Sequential()
    channels = input_shape[0]
    for i, width in enumerate(WIDTHS, start=1):
        features.add_module(f"conv{i}", nn.Conv2d(channels, width, 3, padding=1))
        features.add_module(f"act{i}", activation())
        features.add_module(f"pool{i}", nn.MaxPool2d(2, ceil_mode=True))
        channels = width
    features.add_module("flatten", nn.Flatten())
    return with_head(features, input_shape, (120, 84), classes, activation=activation)


MODELS = (
    ModelInfo(
        name="alexnet",
        summary="AlexNet for 32×32: five 3×3 convolutions, FC 120, 84 (ReLU)",
        make=alexnet,
        smallest_side=17,  # the smallest side that leaves the fifth pool more than one value
        channels_last=True,
    ),
)
