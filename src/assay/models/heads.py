"""Small networks on features that were computed before training (`assay.features`)."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

from torch import nn

from assay.models.registry import ModelInfo
from assay.models.shapes import flat_size


def linear_head(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One linear layer that begins at zero: nothing of the budget goes into undoing a random start."""
    layer = nn.Linear(prod(input_shape), classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=layer))


def scatter_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The CNNs on scattering features of Tramèr and Boneh 2021, by the number of channels.

    Grey pictures (81 maps): conv16 3×3/2, conv32 3×3, FC 32. Colour (243 maps): conv64 3×3, max-pool 2, conv64 3×3. Tanh.
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
        size = flat_size(body, input_shape)
        head = nn.Sequential(OrderedDict(fc1=nn.Linear(size, 32), act1=nn.Tanh(), fc2=nn.Linear(32, classes)))
    else:
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
        head = nn.Sequential(OrderedDict(fc1=nn.Linear(flat_size(body, input_shape), classes)))
    return nn.Sequential(OrderedDict(features=body, head=head))


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
