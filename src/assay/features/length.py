"""Features of a bounded length: a record's whole vector of features is shortened, or scaled, to a norm.

The gradient of a linear layer is the error times the features. So a record whose features are ten times as long gets a
gradient ten times as long, and clipping takes nine tenths of it away. This bounds the features instead, and leaves the
error as it is.

Guarantee: the norm of what comes out is at most `norm`, up to rounding, whatever comes in. Each record is scaled by a
function of itself and a constant, so this costs no privacy (`assay.features`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from assay.errors import ConfigError, check_above_zero

_KEPT = "clip", "scale"


@dataclass(frozen=True, kw_only=True)
class Length:
    """Shortens each record's features to a norm, or scales them to it.

    Attributes:
        norm: The largest norm. None is √d for d features, to which `--center mean` cuts its inputs as well.
        how: "clip" leaves shorter records as they are; "scale" gives every record this norm.

    Raises:
        ConfigError: The norm is not a finite number above 0, or `how` is neither.
    """

    name: ClassVar[str] = "length"

    norm: float | None = None
    how: str = "clip"

    def __post_init__(self) -> None:
        if self.norm is not None:
            check_above_zero("features length norm", self.norm)
        if self.how not in _KEPT:
            raise ConfigError("features length how", self.how, "clip or scale")

    def check(self, shape: tuple[int, ...]) -> None:
        """Accept any shape."""

    def map_for(self, extract: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        """The scaling."""
        return self.scaled

    def scaled(self, x: Tensor) -> Tensor:
        """Records [B, ...] of at most this norm. A record that is not finite becomes zeros."""
        flat = x.flatten(1)
        norm = math.sqrt(flat.shape[1]) if self.norm is None else self.norm
        largest = flat.abs().amax(1, keepdim=True)  # squares of large numbers overflow
        unit = flat / largest.clamp(min=torch.finfo(flat.dtype).tiny)
        factors = norm / unit.norm(dim=1, keepdim=True).clamp(min=torch.finfo(flat.dtype).tiny)
        if self.how == "clip":
            factors = torch.minimum(factors, largest)
        return torch.where(largest.isfinite() & (largest > 0), unit * factors, 0.0).view(x.shape)

    def describe(self) -> str:
        """A phrase for the statement."""
        norm = "√d, of d features" if self.norm is None else f"{self.norm:g}"
        return f"each record's features {'cut' if self.how == 'clip' else 'scaled'} to norm {norm}"
