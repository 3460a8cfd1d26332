"""DenseNet of depth 40, growth 10 and compression 2, with GroupNorm.

Huang, Liu, van der Maaten and Weinberger: "Densely Connected Convolutional Networks", CVPR 2017, arXiv:1608.06993.
Nasr, Shokri and Houmansadr use this network in the CIFAR-10 table of "Generalizable Deep Learning with Differential
Privacy: Using Gradient Compression and De-noising". They name depth, growth and compression but no bottleneck, so each
layer is the plain one of DenseNet-C: one 3×3 convolution.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from assay.models.norm import group_norm
from assay.models.registry import ModelInfo

DEPTH, GROWTH, COMPRESSION = 40, 10, 2
BLOCKS = 3
LAYERS = (DEPTH - BLOCKS - 1) // BLOCKS  # per block; the others: first convolution, two transitions, classifier
FIRST_CHANNELS = 16


class DenseLayer(nn.Module):
    """GroupNorm, ReLU, 3×3 convolution; its output is appended to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.act = nn.ReLU()
        self.conv = nn.Conv2d(channels, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C + growth, H, W]."""
        return torch.cat((x, self.conv(self.act(self.norm(x)))), dim=1)


def _transition(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            norm=group_norm(channels),
            act=nn.ReLU(),
            conv=nn.Conv2d(channels, width, 1, bias=False),
            pool=nn.AvgPool2d(2),
        )
    )


def densenet40(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Three dense blocks of 12 layers; transitions halve channels and sides; global average, one Linear."""
    features = nn.Sequential()
    channels = FIRST_CHANNELS
    features.add_module("conv", nn.Conv2d(input_shape[0], channels, 3, padding=1, bias=False))
    for i in range(1, BLOCKS + 1):
        block = nn.Sequential()
        for _ in range(LAYERS):
            block.append(DenseLayer(channels))
            channels += GROWTH
        features.add_module(f"block{i}", block)
        if i < BLOCKS:
            features.add_module(f"transition{i}", _transition(channels, channels // COMPRESSION))
            channels //= COMPRESSION
    return nn.Sequential(
        OrderedDict(
            features=features,
            norm=group_norm(channels),
            act=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(channels, classes),
        )
    )


MODELS = (
    ModelInfo(
        name="densenet40",
        summary="DenseNet of depth 40, growth 10, compression 2 (GroupNorm, ReLU)",
        make=densenet40,
        smallest_side=4,  # two halvings
    ),
)
