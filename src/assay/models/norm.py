"""Normalisation that never looks at another record: GroupNorm with fitting groups, and frozen BatchNorm."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

MOST_GROUPS = 32  # the default of Wu and He, "Group Normalization" (2018)


def group_count(channels: int, *, smallest_group: int = 4) -> int:
    """The largest divisor of `channels` up to 32 that leaves at least `smallest_group` channels in a group.

    A group of one channel is what must not happen: on a 1×1 map it normalises one value against itself and
    the layer puts out a constant. Falls back to one group (all channels) where no divisor fits.
    """
    most = min(MOST_GROUPS, channels // smallest_group)
    return next((g for g in range(most, 1, -1) if channels % g == 0), 1)


def group_norm(channels: int) -> nn.GroupNorm:
    """The GroupNorm that stands in these architectures where the original has BatchNorm."""
    return nn.GroupNorm(group_count(channels), channels)


class FrozenBatchNorm(nn.Module):
    """BatchNorm whose statistics are constants: an affine map of each record by itself, train or eval mode.

    Takes over parameters and running statistics of `source` and equals `source.eval()` on every input.
    Weight and bias stay trainable. The statistics are released with the model as they are, without noise:
    honest only if they come from public data (public pretraining), never if private records went through
    `source` in training mode.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, source: _BatchNorm) -> None:
        super().__init__()
        if source.running_mean is None or source.running_var is None:
            raise ValueError("a BatchNorm without running statistics has nothing to freeze")
        self.num_features, self.eps = source.num_features, source.eps
        # None (affine=False) registers as "no parameter", which is what F.batch_norm expects.
        self.register_parameter("weight", source.weight)
        self.register_parameter("bias", source.bias)
        self.register_buffer("running_mean", source.running_mean.detach())
        self.register_buffer("running_var", source.running_var.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel of [B, C, ...] with the stored mean and variance."""
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )

    def extra_repr(self) -> str:
        """Show the size the way BatchNorm does."""
        return f"{self.num_features}, eps={self.eps}, affine={self.weight is not None}"
