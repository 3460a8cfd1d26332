"""AlexNet at CIFAR size, GReDP appendix B.5: five 3×3 convolutions, each followed by a 2×2 max-pool."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from assay.models.registry import ModelInfo
from assay.models.shapes import flat_size

# GReDP's table gives no widths; these are the ones of the widely used one-column AlexNet (torchvision's).
WIDTHS = (64, 192, 384, 256, 256)


def alexnet(input_shape: tuple[int, ...], classes: int, *, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Five times (3×3 convolution, max-pool 2), then FC 120, 84, classes.

    Pools round up: the same thing at 32×32, and 28×28 images still reach the fifth pool.
    """
    features = nn.Sequential()
    channels = input_shape[0]
    for i, width in enumerate(WIDTHS, start=1):
        features.add_module(f"conv{i}", nn.Conv2d(channels, width, 3, padding=1))
        features.add_module(f"act{i}", activation())
        features.add_module(f"pool{i}", nn.MaxPool2d(2, ceil_mode=True))
        channels = width
    features.add_module("flatten", nn.Flatten())
    head = nn.Sequential(
        OrderedDict(
            fc1=nn.Linear(flat_size(features, input_shape), 120),
            act1=activation(),
            fc2=nn.Linear(120, 84),
            act2=activation(),
            fc3=nn.Linear(84, classes),
        )
    )
    return nn.Sequential(OrderedDict(features=features, head=head))


MODELS = (
    ModelInfo(
        name="alexnet",
        summary="AlexNet for 32×32: five 3×3 convolutions, FC 120, 84 (ReLU)",
        make=alexnet,
        smallest_side=17,  # the least that leaves the fifth rounding-up pool more than one value
        channels_last=True,
    ),
)
