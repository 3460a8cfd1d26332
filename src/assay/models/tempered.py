"""The MNIST CNN with bounded activations, which keep gradients near the clipping bound.

Papernot, Thakurta, Song, Chien and Erlingsson: "Tempered Sigmoid Activations for Deep Learning with Differential
Privacy", AAAI 2021, arXiv:2007.14191.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from assay.errors import check_above_zero
from assay.models.mnist_cnn import mnist_cnn
from assay.models.registry import ModelInfo


class TemperedSigmoid(nn.Module):
    """s · sigmoid(T x) - o. The defaults lie between a sigmoid (1, 1, 0) and tanh (2, 2, 1).

    Args:
        scale: s.
        temperature: T.
        offset: o.

    Raises:
        ConfigError: the scale or the temperature is not above 0.
    """

    def __init__(self, scale: float = 1.58, temperature: float = 3.0, offset: float = 0.71) -> None:
        super().__init__()
        check_above_zero("scale", scale)
        check_above_zero("temperature", temperature)
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: Tensor) -> Tensor:
        """Element by element."""
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        """The three numbers."""
        return f"scale={self.scale}, temperature={self.temperature}, offset={self.offset}"


def tanh_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """`mnist-cnn` with tanh, the tempered sigmoid (2, 2, 1)."""
    return mnist_cnn(input_shape, classes, activation=nn.Tanh)


def tempered_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """`mnist-cnn` with the default tempered sigmoid."""
    return mnist_cnn(input_shape, classes, activation=TemperedSigmoid)


MODELS = (
    ModelInfo(name="tanh-cnn", summary="mnist-cnn with tanh", make=tanh_cnn, smallest_side=14),
    ModelInfo(name="tempered-cnn", summary="mnist-cnn with tempered sigmoids", make=tempered_cnn, smallest_side=14),
)
