"""Products of float32 matrices on the CPU by oneDNN, where it is faster than what torch takes.

torch takes MKL, which on processors that are not Intel's computes with half the width of their vectors. oneDNN, which
is part of torch as well, takes 0.4 times as long there. It compiles a kernel for every shape, and torch keeps a
thousand of them, so only the first few hundred shapes of a process are given to it.

Both round after each addition of float32 numbers, and a bound on rounding that grows with the number of terms
(`assay.gradients.arithmetic`) holds for both. Their last bits differ, so runs with a seed do not come here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from assay.gradients.arithmetic import keeps_digits
from assay.gradients.quickest import remembered, rounded_up

_LEAST = 1 << 20  # multiplications: smaller products are over before the call is
_MOST = 512  # shapes
_PLAIN = (Tensor, nn.Parameter)
_chosen: dict[tuple[int, int, int, int], bool] = {}


@functools.cache
def _operator() -> Any:
    """oneDNN's product, which `torch.compile` calls as well; None in a torch without it."""
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)


def _times(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a bᵀ + bias by oneDNN.

    The engine records on the base of a view. Autograd would not know that base, and the gradient would end there; so
    the result must not be a view.
    """
    out: Tensor = _operator()(a if a.dim() == 2 else a.reshape(-1, a.shape[-1]), b, bias, "none", [], "")
    if a.dim() != 2:
        out = torch.ops.aten._unsafe_view.default(out, (*a.shape[:-1], b.shape[0]))
    assert not out._is_view()
    return out


def _chooses(rows: int, inner: int, columns: int) -> bool:
    """Whether oneDNN multiplies [rows, inner] by [inner, columns]: if it is faster, or was for a similar shape."""
    if rows * inner * columns < _LEAST:
        return False
    shape = (rows, inner, columns, torch.get_num_threads())
    chosen = _chosen.get(shape)
    if chosen is None:
        if len(_chosen) >= _MOST:
            return False
        chosen = _chosen[shape] = _is_faster(rounded_up(rows), inner, columns)
    return chosen


def _is_faster(rows: int, inner: int, columns: int) -> bool:
    def runs() -> list[functools.partial[Tensor]]:
        source = torch.Generator().manual_seed(0)  # torch's global state belongs to the user
        a, b = torch.randn(rows, inner, generator=source), torch.randn(columns, inner, generator=source)
        return [functools.partial(_transposed, a, b), functools.partial(_times, a, b)]

    with torch.no_grad():
        return bool(remembered(("product", rows, inner, columns), runs, torch.device("cpu")))


def _suits(*factors: Tensor) -> bool:
    """Whether oneDNN computes in float32 what torch would compute in float32."""
    for t in factors:
        if type(t) not in _PLAIN or t.dtype is not torch.float32 or not t.is_cpu:
            return False
    return bool(
        _operator() is not None
        and torch.backends.mkldnn.enabled
        and keeps_digits("mkldnn", "matmul")
        and not torch.is_autocast_enabled("cpu")
        and torch._C._functorch.maybe_current_level() is None
    )


def by(b: Tensor, rows: int, *, quick: bool) -> Callable[[Tensor], Tensor]:
    """How to compute a bᵀ for many [rows, inner]; `b` [columns, inner] must stay as it is.

    Args:
        b: The second factor.
        rows: Of the first factors.
        quick: Whether measurements may choose.
    """
    if not (quick and _suits(b) and _chooses(rows, b.shape[1], b.shape[0])):
        return functools.partial(_transposed, b=b)
    arrange = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    if arrange is not None:  # once, and not in every product
        b = arrange(b.contiguous(), rows)
    return functools.partial(_times, b=b)


def _transposed(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b.t())


def plain_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b as torch computes it, in the order that is faster."""
    if _narrow(weight, x):
        out = torch.mm(weight, x.t()).t()
        return out.contiguous() if bias is None else torch.add(out, bias)
    return F.linear(x, weight, bias)


def _narrow(weight: Tensor, x: Tensor) -> bool:
    """Whether this is a first layer with few outputs on a CPU: W xᵀ then takes half the time of the backend's x Wᵀ."""
    outputs, inputs = weight.shape
    return (
        outputs < 16
        and inputs >= 256
        and x.dim() == 2
        and not torch.is_grad_enabled()
        and x.dtype == weight.dtype
        and x.is_cpu
        and not torch.is_autocast_enabled("cpu")
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b, where only x may need a gradient; by torch if that is no slower."""
    if torch.is_grad_enabled() and (weight.requires_grad or (bias is not None and bias.requires_grad)):
        return plain_linear(x, weight, bias)
    columns, inner = weight.shape
    if x.dim() < 2 or not _suits(x, weight) or not _chooses(x.numel() // max(1, inner), inner, columns):
        return plain_linear(x, weight, bias)
    if x.requires_grad and torch.is_grad_enabled():
        out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return out
    return _times(x, weight, bias)


def summed(g: Tensor, x: Tensor) -> Tensor:
    """gᵀ x for [rows, out] and [rows, in]; by torch if that is no slower."""
    out, inp = g.shape[1], x.shape[1]
    if not _suits(g, x) or not _chooses(out, x.shape[0], inp):
        return torch.mm(g.t(), x)
    if out <= inp:
        return _times(g.t(), x.t())
    return _times(x.t(), g.t()).t().contiguous()  # the first factor is copied: let it be the smaller one


class _Linear(torch.autograd.Function):
    """x Wᵀ + b with a gradient for x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _times(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return _times(g, weight.t()), None, None
