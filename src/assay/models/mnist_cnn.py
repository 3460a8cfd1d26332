"""The small MNIST CNN of the TensorFlow Privacy tutorial, used by DP-LSSGD (section 4.2) and others."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from assay.models.registry import ModelInfo
from assay.models.shapes import flat_size


def features(channels: int, activation: type[nn.Module]) -> nn.Sequential:
    """conv16 8×8/2, pool 2/1, conv32 4×4/2, pool 2/1. Padding 3 on the first convolution is "same" padding for 28×28."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 16, 8, stride=2, padding=3),
            act1=activation(),
            pool1=nn.MaxPool2d(2, stride=1),
            conv2=nn.Conv2d(16, 32, 4, stride=2),
            act2=activation(),
            pool2=nn.MaxPool2d(2, stride=1),
            flatten=nn.Flatten(),
        )
    )


def mnist_cnn(input_shape: tuple[int, ...], classes: int, *, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """The convolutions, FC 32, FC classes."""
    body = features(input_shape[0], activation)
    head = nn.Sequential(
        OrderedDict(
            fc1=nn.Linear(flat_size(body, input_shape), 32),
            act1=activation(),
            fc2=nn.Linear(32, classes),
        )
    )
    return nn.Sequential(OrderedDict(features=body, head=head))


MODELS = (
    ModelInfo(
        name="mnist-cnn",
        summary="the TensorFlow Privacy tutorial's CNN: two convolutions (16, 32), FC 32 (ReLU)",
        make=mnist_cnn,
        # Side s: conv1 s//2, pool1 s//2 - 1, conv2 needs 6 to leave the 2×2 that pool2 needs: s//2 >= 7.
        smallest_side=14,
        channels_last=True,
    ),
)
