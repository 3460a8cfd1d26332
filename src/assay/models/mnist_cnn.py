"""The small MNIST CNN of the TensorFlow Privacy tutorial, also used by DP-LSSGD (arXiv:1906.12056, section 4.2)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from assay.models.registry import ModelInfo
from assay.models.shapes import with_head


def features(channels: int, activation: type[nn.Module]) -> nn.Sequential:
    """conv16 8×8/2, pool 2/1, conv32 4×4/2, pool 2/1. For 28×28 a padding of 3 is "same" padding."""
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
    return with_head(features(input_shape[0], activation), input_shape, (32,), classes, activation=activation)


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
