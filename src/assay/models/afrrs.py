"""The networks of AFRRS, Tables 1 and 2 (afrrs.txt).

The tables name neither activations nor padding. ReLU stands between layers; the last hidden layer is a sigmoid, because the
expansion of the objective needs it in [0, 1]; the last layer has no bias, as in Eq. 19.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from assay.models import mnist_cnn
from assay.models.registry import ModelInfo
from assay.models.shapes import flat_size

HIDDEN = 32


def _with_head(features: nn.Sequential, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """FC 32 within [0, 1], and one score a class."""
    head = nn.Sequential(
        OrderedDict(
            fc1=nn.Linear(flat_size(features, input_shape), HIDDEN),
            act1=nn.Sigmoid(),
            fc2=nn.Linear(HIDDEN, classes, bias=False),
        )
    )
    return nn.Sequential(OrderedDict(features=features, head=head))


def afrrs_mnist(input_shape: tuple[int, ...], classes: int, *, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Table 1: conv16 8×8/2, max-pool 2, conv32 4×4/2, max-pool 2, FC 32, classes.

    Without padding and with pools of stride 2 nothing would be left of 28×28 for the second pool. The table is that of
    tempered sigmoids (its reference [10]), whose network pads the first convolution by 3 and pools with stride 1.
    """
    return _with_head(mnist_cnn.features(input_shape[0], activation), input_shape, classes)


def afrrs_cifar10(
    input_shape: tuple[int, ...], classes: int, *, activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Table 2: convolutions 32 3×3, 64 3×3, 128 4×4, 256 4×4 of stride 1, an average pool 2×2 of stride 1 after each of the
    first three, FC 32, classes. No padding.
    """
    features = nn.Sequential()
    channels = input_shape[0]
    for number, (width, side) in enumerate(((32, 3), (64, 3), (128, 4), (256, 4)), start=1):
        features.add_module(f"conv{number}", nn.Conv2d(channels, width, side))
        features.add_module(f"act{number}", activation())
        if number < 4:
            features.add_module(f"pool{number}", nn.AvgPool2d(2, stride=1))
        channels = width
    features.add_module("flatten", nn.Flatten())
    return _with_head(features, input_shape, classes)


MODELS = (
    ModelInfo(
        name="afrrs-mnist",
        summary="AFRRS, Table 1: two convolutions (16, 32), FC 32 within [0, 1], no last bias",
        make=afrrs_mnist,
        smallest_side=14,  # as mnist-cnn
    ),
    ModelInfo(
        name="afrrs-cifar10",
        summary="AFRRS, Table 2: four convolutions (32, 64, 128, 256) of stride 1, FC 32 within [0, 1], no last bias",
        make=afrrs_cifar10,
        smallest_side=14,  # 2 + 1 + 2 + 1 + 3 + 1 + 3 are lost on the way
    ),
)
