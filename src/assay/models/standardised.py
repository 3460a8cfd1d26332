"""Convolutions with standardised kernels, which help private training of networks with GroupNorm.

Qiao, Wang, Liu, Shen and Yuille: "Micro-Batch Training with Batch-Channel Normalization and Weight Standardization",
2019, arXiv:1903.10520. De, Berrada, Hayes, Smith and Balle: "Unlocking High-Accuracy Differentially Private Image
Classification through Scale", 2022, arXiv:2204.13650.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import ConfigError
from assay.models.registry import ModelInfo
from assay.models.resnet import resnet20

LEAST = 1e-4  # a centred kernel of smaller squared length is not stretched to length 1 (De et al.)


def centred(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Each output channel's kernel minus its mean, [out, fan-in], and the squared length of the result, [out, 1]."""
    rows = weight.flatten(1)
    rows = rows - rows.mean(1, keepdim=True)
    return rows, torch.linalg.vecdot(rows, rows).unsqueeze(1)


def standardised(weight: Tensor) -> Tensor:
    """The kernel [out, in, height, width] with mean 0 and length 1 in each output channel: variance 1/fan-in."""
    rows, squared = centred(weight)
    return (rows / squared.clamp_min(LEAST).sqrt()).view_as(weight)


class StandardisedConv2d(nn.Conv2d):
    """Conv2d that convolves with `standardised(weight)`.

    Variances are divided by the fan-in, as De et al. do, so that outputs keep the scale of their inputs. There is no
    learned gain, because the GroupNorm after it has a scale for each channel.

    Raises:
        ConfigError: kernels have fewer than three weights per output channel.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.weight[0].numel() < 3:  # without mean and length, two weights are only a sign
            raise ConfigError(
                "kernel_size", self.kernel_size, "kernels of three weights or more in each output channel"
            )

    def reset_parameters(self) -> None:
        """Draw normal weights of variance 1/fan-in, so that kernels begin with a length of about 1; set biases to 0."""
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
