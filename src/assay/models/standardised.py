"""Convolutions with standardised kernels (Qiao et al. 2019, "Micro-batch training with batch-channel normalization and weight
standardization"), which private training of networks with GroupNorm gains from (De et al. 2022, "Unlocking high-accuracy
differentially private image classification through scale").
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import ConfigError
from assay.models.registry import ModelInfo
from assay.models.resnet import resnet20

LEAST = 1e-4  # a centred kernel of a squared length below this is not stretched to length 1 (De et al.)


def centred(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Each output channel's kernel less its mean, [out, fan-in], and the squared length of that, [out, 1]."""
    rows = weight.flatten(1)
    rows = rows - rows.mean(1, keepdim=True)
    return rows, torch.linalg.vecdot(rows, rows).unsqueeze(1)


def standardised(weight: Tensor) -> Tensor:
    """The kernel [out, in, height, width] with mean 0 and variance 1/fan-in in each output channel: of length 1."""
    rows, squared = centred(weight)
    return (rows / squared.clamp_min(LEAST).sqrt()).view_as(weight)


class StandardisedConv2d(nn.Conv2d):
    """Conv2d that convolves with `standardised(weight)`.

    Variances are divided by the fan-in as De et al. do, so that outputs keep their inputs' scale. There is no learned gain: the GroupNorm
    that belongs after it has a scale for each channel.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.weight[0].numel() < 3:  # of two weights, mean and length taken away, a sign is left
            raise ConfigError(
                "kernel_size", self.kernel_size, "kernels of three weights or more in each output channel"
            )

    def reset_parameters(self) -> None:
        """Normal with variance 1/fan-in, so that kernels begin with about the length they are given; no bias."""
        nn.init.normal_(self.weight, std=self.weight[0].numel() ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] to [B, out, H', W']."""
        out: Tensor = self._conv_forward(x, standardised(self.weight), self.bias)
        return out


def ws_resnet20(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """`resnet20` with standardised kernels in all its convolutions."""
    return resnet20(input_shape, classes, conv=StandardisedConv2d)


MODELS = (
    ModelInfo(
        name="ws-resnet20",
        summary="resnet20 with standardised kernels",
        make=ws_resnet20,
        smallest_side=4,
    ),
)
