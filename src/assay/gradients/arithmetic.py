"""Arithmetic that norms and sums of per-record gradients share.

Norms are safe: a norm that rounding or underflow may have made too small is raised by a bound on what was lost, so that
no record exceeds the clipping bound. A norm that is summed in another order than the sum it bounds is raised by
`rounding` of its terms: the norm of a record whose terms nearly cancel would otherwise be too small.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

LONG = 4096
"""A row of more numbers than this is summed in blocks."""
_SHORT, _BLOCK = 64, 512
CHUNK_ELEMENTS = 1 << 22
"""Per-record gradients that are needed for their norm only are built in pieces of at most this many numbers, 16 MB."""

_HALF = (torch.float16, torch.bfloat16)
EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}
TINY = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}

_ROUNDING_UNITS = 16  # of the arithmetic's epsilon: more than a quotient and a product lose together
SHRINK = {dtype: 1.0 - _ROUNDING_UNITS * eps for dtype, eps in EPS.items()}
"""The factor by which clipping factors are lowered, for each arithmetic."""

# A weight below the smallest normal number has lost its last digits. The spacing of such numbers times the largest
# number is 2^-22 in float32 and less in float64. For bounds from here on, that moves a record by less than the factors
# are lowered.
_NO_SMALL_WEIGHTS = 0.25


def rounding(dtype: torch.dtype, terms: int) -> float:
    """A bound on the relative error of a sum of `terms` products, by rounding that grows as √terms."""
    return 4.0 * torch.finfo(dtype).eps * math.sqrt(max(1, terms))


def squares(t: Tensor, plus: float = 0.0) -> Tensor:
    """‖t‖² + plus over the last dimension, raised by what rounding and underflow may have taken from it.

    A sum of n squares loses at most n/2 · eps of itself in any order. A long float32 reduction can lose that much (1 %
    at ten million), so long rows are summed in blocks.
    """
    n = t.shape[-1]
    if n <= _SHORT:
        total: Tensor = torch.linalg.vecdot(t, t)
        steps = n
    elif n <= LONG:
        total = torch.linalg.vector_norm(t, dim=-1).square_()
        steps = n
    else:
        whole = n // _BLOCK * _BLOCK
        blocks = torch.linalg.vector_norm(t[..., :whole].unflatten(-1, (-1, _BLOCK)), dim=-1)
        total = torch.linalg.vecdot(blocks, blocks)
        if whole < n:
            total += torch.linalg.vecdot(t[..., whole:], t[..., whole:])
        steps = 2 * _BLOCK + n // _BLOCK
    return total.mul_(1 + steps * EPS[t.dtype] / 2).add_(n * TINY[t.dtype] + plus)


def masked(value: Tensor, bad: Tensor) -> Tensor:
    """`value` [B, ...] with the records marked in `bad` [B] replaced by zeros."""
    return value.masked_fill(bad.view(-1, *[1] * (value.dim() - 1)), 0.0)


@functools.lru_cache(maxsize=256)
def constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor, made once: making one of a Python number costs as much as the operation that needs it."""
    return torch.tensor(value, dtype=dtype, device=device)


def full(t: Tensor) -> Tensor:
    """The tensor in float32 at least: clipping is not done in half precision, whatever the model computes in."""
    return t.float() if t.dtype in _HALF else t


def zeros_for(p: Tensor) -> Tensor:
    """A parameter's sum over no records, in the precision of sums and noise."""
    return torch.zeros(p.shape, dtype=torch.float32 if p.dtype in _HALF else p.dtype, device=p.device)


def exact(weights: Tensor) -> Tensor:
    """The weights, with zero in place of NaN (0/0 for a vanishing bound) and of those too small for full precision."""
    return torch.threshold_(weights, TINY[weights.dtype], 0.0)


def at_most(bound: float, norms: Tensor) -> Tensor:
    """bound / max(norm, bound), slightly below 1 where nothing is clipped."""
    shrunk = constant(bound * SHRINK[norms.dtype], norms.dtype, norms.device)
    weights = torch.div(shrunk, norms.clamp(bound))
    return weights if bound >= _NO_SMALL_WEIGHTS else exact(weights)


def corner(value: Tensor, shape: Sequence[int]) -> Tensor:
    """The leading corner of `value`'s last dimensions with this shape; `value` itself if that is its shape."""
    lead = [slice(None)] * (value.dim() - len(shape))
    return value[(*lead, *map(slice, shape))]
