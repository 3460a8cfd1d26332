"""Arithmetic that norms and sums of per-record gradients share.

Norms are safe: a norm that rounding or underflow may have made too small is raised by a bound on what was lost, so that
no record exceeds the clipping bound. A norm that is summed in another order than the sum it bounds is raised by
`rounding` of its terms: the norm of a record whose terms nearly cancel would otherwise be too small.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

LONG = 4096
"""A row of more numbers than this is summed in blocks."""
_SHORT, _BLOCK = 64, 512
_TERMS, _TERMS_IN_TURN = 1024, 128
"""Backends may add up so many products in float32: in several lanes, or one after the other, as for a few rows whose
numbers do not lie side by side. What rounding may take then is less than `SHRINK` and `rounding` cover."""
_FEW = 16
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


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of all rows of `a` [B, T, n] with all rows of `b` [B, S, n], as [B, T, S].

    A record may choose numbers whose sums are always rounded in one direction. What that loses grows with n, so long
    rows are summed in blocks, and the blocks in float64.
    """
    terms = _TERMS_IN_TURN if min(a.shape[1], b.shape[1]) < _FEW and a.stride(2) > 1 else _TERMS
    if a.shape[2] <= terms:
        return torch.bmm(a, b.mT)
    total = a.new_zeros(len(a), a.shape[1], b.shape[1], dtype=torch.float64)
    for x, y in zip(a.split(terms, 2), b.split(terms, 2), strict=True):
        total += torch.bmm(x, y.mT)
    return total.to(a.dtype)


_PRODUCTS = [("mkldnn", "matmul"), ("mkldnn", "conv")]
if torch.backends.cuda.is_built():
    _PRODUCTS += [("cuda", "matmul"), ("cuda", "conv")]


def keeps_digits(backend: str, operation: str) -> bool:
    """Whether a backend multiplies float32 numbers as they are, and does not round them to TF32 or bf16 before."""
    return _precision(backend, operation) in ("ieee", "none")


def full_products() -> AbstractContextManager[None]:
    """A context in which products of float32 numbers keep all digits, whatever the user allows backends elsewhere.

    Norms are safe against the rounding of float32 only. Factors that are rounded to TF32 or bf16 after they were
    weighted would pass the bound, many times over where a record's terms nearly cancel.
    """
    lowered = [(*place, _precision(*place)) for place in _PRODUCTS if not keeps_digits(*place)]
    return _raised(lowered) if lowered else _AS_IT_IS


_AS_IT_IS = nullcontext()


@contextmanager
def _raised(lowered: Sequence[tuple[str, str, str]]) -> Iterator[None]:
    """A context in which these backends and operations, with their precision before, keep all digits."""
    for backend, operation, _ in lowered:
        _set_precision(backend, operation, "ieee")
    try:
        yield
    finally:
        for backend, operation, before in lowered:
            _set_precision(backend, operation, before)


_own: Any = torch._C
_BY_BACKEND = hasattr(_own, "_get_fp32_precision_getter")  # torch 2.9; its older questions fail where both are mixed


def _precision(backend: str, operation: str) -> str:
    if _BY_BACKEND:
        return str(_own._get_fp32_precision_getter(backend, operation))
    if operation == "conv":
        return "tf32" if backend == "cuda" and torch.backends.cudnn.allow_tf32 else "ieee"
    allowed = torch.get_float32_matmul_precision()
    return "ieee" if allowed == "highest" else allowed


def _set_precision(backend: str, operation: str, precision: str) -> None:
    if _BY_BACKEND:
        _own._set_fp32_precision_setter(backend, operation, precision)
    elif operation == "conv":
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
    else:
        torch.set_float32_matmul_precision("highest" if precision == "ieee" else precision)


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
