"""Normalisation that never looks at another record: GroupNorm, and BatchNorm with constant statistics."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

MOST_GROUPS = 32  # the default of Wu and He, "Group Normalization", ECCV 2018, arXiv:1803.08494


def group_count(channels: int, *, smallest_group: int = 4) -> int:
    """The largest divisor of `channels` up to 32 that leaves at least `smallest_group` channels in a group.

    It is one (all channels in one group) where no divisor fits. A group must not have one channel: on a 1×1 map the
    layer would normalise one value against itself and return a constant.

    >>> group_count(64), group_count(10)
    (16, 2)
    """
    most = min(MOST_GROUPS, channels // smallest_group)
    return next((g for g in range(most, 1, -1) if channels % g == 0), 1)


def group_norm(channels: int) -> nn.GroupNorm:
    """The GroupNorm that these architectures use where the original has BatchNorm."""
    return nn.GroupNorm(group_count(channels), channels)


class FrozenBatchNorm(nn.Module):
    """BatchNorm with constant statistics: an affine map of each record by itself, in train and eval mode.

    Guarantee: it equals `source.eval()` on every input. Weight and bias are those of `source` and stay trainable.
    The statistics are released with the model, without noise. So they must come from public data: private records
    must never have gone through `source` in training mode.

    Args:
        source: the layer whose parameters and running statistics it takes over.

    Raises:
        ValueError: `source` has no running statistics.
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
        # With affine=False these are None, which F.batch_norm expects.
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
        """The size, as BatchNorm shows it."""
        return f"{self.num_features}, eps={self.eps}, affine={self.weight is not None}"
