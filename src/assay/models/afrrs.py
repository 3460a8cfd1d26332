"""The networks of AFRRS, Tables 1 and 2.

Wang, Xie, Tan, Li and Wang: "Preserving Differential Privacy in Deep Learning Based on Feature Relevance Region
Segmentation", IEEE Transactions on Emerging Topics in Computing 12(1), 2024, doi:10.1109/TETC.2023.3244174.

The tables name neither activations nor padding. We use ReLU between layers. The last hidden layer is a sigmoid,
because the expansion of the objective needs values in [0, 1]. The last layer has no bias, as in Eq. 19.
"""

from __future__ import annotations

from torch import nn

from assay.models import mnist_cnn
from assay.models.registry import ModelInfo
from assay.models.shapes import with_head

HIDDEN = 32


def _with_bounded_head(features: nn.Sequential, input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """FC 32 within [0, 1], and one score per class."""
    return with_head(features, input_shape, (HIDDEN,), classes, activation=nn.Sigmoid, last_bias=False)


def afrrs_mnist(input_shape: tuple[int, ...], classes: int, *, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Table 1: conv16 8×8/2, max-pool 2, conv32 4×4/2, max-pool 2, FC 32, classes.

    Without padding and with pools of stride 2, 28×28 would shrink to nothing before the second pool. The table is
    that of tempered sigmoids (its reference [10]). That network pads the first convolution by 3 and pools with
    stride 1, and so does this one.
    """
    return _with_bounded_head(mnist_cnn.features(input_shape[0], activation), input_shape, classes)


def afrrs_cifar10(
    input_shape: tuple[int, ...], classes: int, *, activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Table 2: convolutions 32 3×3, 64 3×3, 128 4×4, 256 4×4 of stride 1, without padding; FC 32, classes.

    An average pool 2×2 of stride 1 follows each of the first three.
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
    return _with_bounded_head(features, input_shape, classes)


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
        smallest_side=14,  # the layers take away 2 + 1 + 2 + 1 + 3 + 1 + 3
    ),
)
