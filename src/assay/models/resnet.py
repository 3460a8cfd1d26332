"""ResNet-20 and ResNet-18 with GroupNorm in place of BatchNorm.

He, Zhang, Ren and Sun: "Deep Residual Learning for Image Recognition", CVPR 2016, arXiv:1512.03385.
"""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from assay.models.norm import group_norm
from assay.models.registry import ModelInfo

LARGEST_SMALL_IMAGE = 64  # larger ones get ImageNet's stem, which divides the side by 4


class PadShortcut(nn.Module):
    """Option A of He et al.: every second pixel, new channels filled with zeros; no parameters."""

    def __init__(self, new_channels: int) -> None:
        super().__init__()
        self.before, self.after = new_channels // 2, new_channels - new_channels // 2

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C + new, ⌈H/2⌉, ⌈W/2⌉]."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with GroupNorm, added to the shortcut."""

    def __init__(
        self, channels: int, width: int, stride: int, shortcut: nn.Module, conv: type[nn.Conv2d] = nn.Conv2d
    ) -> None:
        super().__init__()
        self.conv1 = conv(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = group_norm(width)
        self.act1 = nn.ReLU()
        self.conv2 = conv(width, width, 3, padding=1, bias=False)
        self.norm2 = group_norm(width)
        self.shortcut = shortcut
        self.act2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, width, H/stride, W/stride]."""
        residual = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        out: Tensor = self.act2(residual + self.shortcut(x))
        return out


def _shortcut(channels: int, width: int, stride: int, *, projection: bool) -> nn.Module:
    if stride == 1 and channels == width:
        return nn.Identity()
    if projection:
        return nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(channels, width, 1, stride=stride, bias=False),
                norm=group_norm(width),
            )
        )
    return PadShortcut(width - channels)


def _stages(
    widths: tuple[int, ...], blocks: int, *, projection: bool, conv: type[nn.Conv2d] = nn.Conv2d
) -> nn.Sequential:
    stages = nn.Sequential()
    channels = widths[0]
    for i, width in enumerate(widths, start=1):
        stage = nn.Sequential()
        for j in range(blocks):
            stride = 2 if i > 1 and j == 0 else 1
            shortcut = _shortcut(channels, width, stride, projection=projection)
            stage.append(BasicBlock(channels, width, stride, shortcut, conv))
            channels = width
        stages.add_module(f"stage{i}", stage)
    return stages


def _small_stem(channels: int, width: int, conv: type[nn.Conv2d] = nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(conv=conv(channels, width, 3, padding=1, bias=False), norm=group_norm(width), act=nn.ReLU())
    )


def imagenet_stem(channels: int, width: int) -> nn.Sequential:
    """A 7×7 convolution and a max-pool, each of stride 2."""
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
            norm=group_norm(width),
            act=nn.ReLU(),
            pool=nn.MaxPool2d(3, stride=2, padding=1),
        )
    )


def _resnet(stem: nn.Module, stages: nn.Module, width: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            stem=stem,
            stages=stages,
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(width, classes),
        )
    )


def resnet20(input_shape: tuple[int, ...], classes: int, conv: type[nn.Conv2d] = nn.Conv2d) -> nn.Sequential:
    """The CIFAR ResNet of 1 + 6, 6, 6 convolutions, widths 16, 32, 64, parameter-free shortcuts (option A).

    It down-samples by stride as He et al. do. Table 5 of GReDP (arXiv:2409.11663) draws a 2×2 average pool after each
    group instead.
    """
    stages = _stages((16, 32, 64), 3, projection=False, conv=conv)
    return _resnet(_small_stem(input_shape[0], 16, conv), stages, 64, classes)


def resnet18(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """ResNet-18: widths 64 to 512, two blocks each, 1×1 projections where the shape changes.

    The stem is one 3×3 convolution for images with a side up to 64, else ImageNet's 7×7/2 and max-pool.
    """
    stem = _small_stem if min(input_shape[1:]) <= LARGEST_SMALL_IMAGE else imagenet_stem
    stages = _stages((64, 128, 256, 512), 2, projection=True)
    return _resnet(stem(input_shape[0], 64), stages, 512, classes)


MODELS = (
    ModelInfo(
        name="resnet20",
        summary="ResNet-20 for CIFAR: widths 16-32-64 (GroupNorm, ReLU)",
        make=resnet20,
        smallest_side=4,  # two halvings
    ),
    ModelInfo(
        name="resnet18",
        summary="ResNet-18: widths 64-128-256-512 (GroupNorm, ReLU)",
        make=resnet18,
        smallest_side=8,  # three halvings
    ),
)
