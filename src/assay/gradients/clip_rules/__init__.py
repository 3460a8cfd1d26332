"""Clipping rules: how much of each record's gradient enters the sum, decided from norms alone. One file a rule.

Every rule keeps the promise of `assay.mechanisms.types.ClipRule`: the scaled gradient of one record has l2 norm at most `l2`. A scaled norm can
pass the bound by a few units in the last place of the arithmetic; the factors are lowered by that much (`at_most`, `SHRINK`).

A file that defines `RULE` is found by itself; `assay._util.registry` tells how one from outside is added.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from assay._util import spec
from assay._util.registry import Registry
from assay.errors import ConfigError, check_above_zero
from assay.gradients.arithmetic import constant
from assay.mechanisms.types import ClipRule

_ROUNDING_UNITS = 16  # of the arithmetic's epsilon: more than a quotient and a product lose together
SHRINK = {dtype: 1.0 - _ROUNDING_UNITS * torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}
"""What factors are lowered by, for each arithmetic."""

_TINY = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}
_LARGEST_BOUND = 1e30  # its noise is a float32 number still

# The spacing of numbers below the smallest normal one, times the largest number, is 2^-22 of 1 in float32 and less in
# float64: for bounds from here on a weight that lost its last digits there moves a record by less than the factors are lowered.
_NO_SMALL_WEIGHTS = 0.25


def exact(weights: Tensor) -> Tensor:
    """Zero instead of a weight too small to be held with full precision, or no number (0/0 for a vanishing bound)."""
    return torch.threshold_(weights, _TINY[weights.dtype], 0.0)


def at_most(bound: float, norms: Tensor) -> Tensor:
    """bound / max(norm, bound), a hair below 1 where nothing is clipped."""
    shrunk = constant(bound * SHRINK[norms.dtype], norms.dtype, norms.device)
    weights = torch.div(shrunk, norms.clamp(bound))
    return weights if bound >= _NO_SMALL_WEIGHTS else exact(weights)


def check_bound(bound: float) -> None:
    """Refuse a bound that is no number above 0, or too large for its noise to be one."""
    check_above_zero("clip", bound)
    if bound > _LARGEST_BOUND:
        raise ConfigError("clip", bound, f"a number above 0 and at most {_LARGEST_BOUND:g}")


RULES: Registry[type[ClipRule]] = Registry(
    "clip",
    fits=lambda thing: inspect.isclass(thing) and issubclass(thing, ClipRule),
    wanted="a class of clipping rules, derived from assay.mechanisms.types.ClipRule",
    package=__name__,
    attribute="RULE",
)


def parse(text: str) -> ClipRule:
    """`flat:1.0`, `per-layer:1.0`, `auto:1.0,gamma=0.01`, `adaptive:0.5,quantile=0.5`; a bare number is flat clipping."""
    head = text.partition(":")[0]
    if head not in RULES and head == text:
        try:
            float(text)
        except ValueError:
            pass
        else:
            return spec.parse("clip", f"flat:{text}", RULES)
    return spec.parse("clip", text, RULES)
