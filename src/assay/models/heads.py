"""Small networks on features that were computed before training (`assay.features`)."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

from torch import nn

from assay.models.registry import ModelInfo
from assay.models.shapes import with_head


def linear_head(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One linear layer that begins at zero: no privacy budget is spent on undoing a random start."""
    layer = nn.Linear(prod(input_shape), classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=layer))


def scatter_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The CNNs on scattering features of Tramèr and Boneh, with tanh. The number of channels decides which.

    Grey images (81 maps): conv16 3×3/2, conv32 3×3, FC 32. Colour (243 maps): conv64 3×3, max-pool 2, conv64 3×3.
    "Differentially Private Learning Needs Better Features (or Much More Data)", ICLR 2021, arXiv:2011.11660.
    """
    channels = input_shape[0]
    if channels <= _GREY:
        body = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 16, 3, stride=2, padding=1),
                act1=nn.Tanh(),
                conv2=nn.Conv2d(16, 32, 3, padding=1),
                act2=nn.Tanh(),
                flatten=nn.Flatten(),
            )
        )
        return with_head(body, input_shape, (32,), classes, activation=nn.Tanh)
    body = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 64, 3, padding=1),
            act1=nn.Tanh(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(64, 64, 3, padding=1),
            act2=nn.Tanh(),
            flatten=nn.Flatten(),
        )
    )
    return with_head(body, input_shape, (), classes, activation=nn.Tanh)


_GREY = 81  # maps of one channel with two scales and eight angles

MODELS = (
    ModelInfo(
        name="linear-head",
        summary="one linear layer on features, starting at zero",
        make=linear_head,
        input_rank=None,
    ),
    ModelInfo(
        name="scatter-linear",
        summary="one linear layer on scattering features, starting at zero",
        make=linear_head,
        features="scatter",
    ),
    ModelInfo(
        name="scatter-cnn",
        summary="Tramèr and Boneh's small CNN on scattering features (tanh)",
        make=scatter_cnn,
        smallest_side=2,
        features="scatter",
    ),
)
