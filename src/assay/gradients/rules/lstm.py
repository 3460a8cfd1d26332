"""The steps of an LSTM from its input's part of the gates, with a backward pass of its own.

Autograd would keep a dozen tensors for each position and visit as many nodes. Here a position keeps its gates and its
cell, and the backward pass goes from the gradient of the outputs to that of the gates: the gradient of what
`assay.gradients.rules.recurrent` has recorded. Parameters get no gradient here, so the first batch, on which autograd's
own gradients are compared, does not come this way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.gradients import products
from assay.gradients.quickest import remembered


def applies(weight: Tensor, gates: Tensor) -> bool:
    """Whether `Steps` may run: on plain tensors, and no gradient of the parameters is asked for."""
    return not (
        weight.requires_grad
        or torch.is_autocast_enabled(gates.device.type)
        or torch._C._functorch.maybe_current_level() is not None
    )


class Steps(torch.autograd.Function):
    """All positions of one layer in one direction.

    `apply(gates, weight, h, c, backwards, quick)` takes the input's part of the gates [records, positions, 4 width],
    the state's weight, the first state and cell, and whether measurements may choose how to compute. It returns the
    outputs [positions, records, width], the last state and cell, and the state before each position.

    What is kept has the positions first, so that the numbers of a position lie side by side: the rows of one position
    would otherwise be so far apart that they drive each other out of the caches.
    """

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, backwards: bool, quick: bool
    ) -> tuple[Tensor, ...]:
        (records, width), positions, first = h.shape, gates.shape[1], h
        times = products.by(weight, records, quick=quick)
        tanh = _quickest_tanh(h) if quick else torch.tanh
        z = h.new_empty(positions, records, 4 * width)
        cells, bent, outs = (h.new_empty(positions, records, width) for _ in range(3))
        order = range(positions - 1, -1, -1) if backwards else range(positions)
        ctx.save_for_backward(weight, z, cells, bent, c)
        given, whole, halves = gates.unbind(1), z.unbind(0), z[..., : 2 * width].unbind(0)
        i, f, g, o = (gate.unbind(0) for gate in z.split(width, 2))
        for t in order:
            torch.add(given[t], times(h), out=whole[t])
            halves[t].sigmoid_()
            tanh(g[t], out=g[t])
            o[t].sigmoid_()
            c = torch.mul(f[t], c, out=cells[t]).addcmul_(i[t], g[t])
            h = torch.mul(o[t], tanh(c, out=bent[t]), out=outs[t])
        states = _before(outs, first, order).transpose(0, 1)
        ctx.order, ctx.quick = order, quick
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(states)
        return outs, h.clone(), c.clone(), states

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_outs: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        weight, z, cells, bent, first = ctx.saved_tensors
        records, width = first.shape
        times = products.by(weight.t(), records, quick=ctx.quick)
        dh = first.new_zeros(records, width) if d_h is None else d_h
        dc = first.new_zeros(records, width) if d_c is None else d_c
        found, order = torch.empty_like(z), ctx.order
        through = _at_once if ctx.quick else _one_by_one
        back = through(found, z, cells, bent, first, order)
        slices = found.unbind(0)
        for t in reversed(order):
            if d_outs is not None:
                dh = dh + d_outs[t]
            dc = back(t, dh, dc)
            dh = times(slices[t])
        out = found.transpose(0, 1)
        return out if ctx.quick else out.contiguous(), None, dh, dc, None, None


def _one_by_one(
    found: Tensor, z: Tensor, cells: Tensor, bent: Tensor, first: Tensor, order: range
) -> Callable[[int, Tensor, Tensor], Tensor]:
    """The way back through a position: writes the gradient of its gates, and returns that of the cell before."""
    through_sigmoid, through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
    (i, f, g, o), (di, df, dg, do) = ([gate.unbind(0) for gate in whole.chunk(4, 2)] for whole in (z, found))

    def back(t: int, dh: Tensor, dc: Tensor) -> Tensor:
        c = first if t == order.start else cells[t - order.step]
        dc = dc + through_tanh(dh * o[t], bent[t])
        through_sigmoid(dh * bent[t], o[t], grad_input=do[t])
        through_sigmoid(dc * g[t], i[t], grad_input=di[t])
        through_sigmoid(dc * c, f[t], grad_input=df[t])
        through_tanh(dc * i[t], g[t], grad_input=dg[t])
        return dc * f[t]

    return back


def _at_once(
    found: Tensor, z: Tensor, cells: Tensor, bent: Tensor, first: Tensor, order: range
) -> Callable[[int, Tensor, Tensor], Tensor]:
    """The same, with all slopes of all positions computed first, and rounded differently."""
    through_sigmoid, through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
    (i, f, g, o), (di, df, dg, do) = z.chunk(4, 2), found.chunk(4, 2)
    through_sigmoid(g, i, grad_input=di)
    through_sigmoid(_before(cells, first, order), f, grad_input=df)
    through_tanh(i, g, grad_input=dg)
    through_sigmoid(bent, o, grad_input=do)
    slopes, by_cell = through_tanh(o, bent), found[..., : 3 * first.shape[1]].unflatten(2, (3, -1)).unbind(0)
    slopes, by_state, keeps = slopes.unbind(0), do.unbind(0), f.unbind(0)

    def back(t: int, dh: Tensor, dc: Tensor) -> Tensor:
        dc = torch.addcmul(dc, dh, slopes[t])
        by_cell[t].mul_(dc.unsqueeze(1))
        by_state[t].mul_(dh)
        return dc.mul_(keeps[t])

    return back


def _before(after: Tensor, first: Tensor, order: range) -> Tensor:
    """What there was before each position: [positions, records, width] of what there was after it."""
    return torch.cat([first[None], after[:-1]] if order.step > 0 else [after[1:], first[None]])


def _quickest_tanh(like: Tensor) -> Callable[..., Tensor]:
    """NumPy's or torch's: on some processors torch's takes five times as long."""
    if like.dtype is not torch.float32 or not like.is_cpu:
        return torch.tanh

    def runs() -> list[Callable[[], object]]:
        x = torch.linspace(-3, 3, like.numel()).view(like.shape)
        return [partial(tanh, x, out=torch.empty_like(x)) for tanh in (torch.tanh, _numpy_tanh)]

    return _numpy_tanh if remembered(("tanh", like.numel()), runs, like.device) else torch.tanh


def _numpy_tanh(x: Tensor, out: Tensor) -> Tensor:
    np.tanh(x.numpy(), out=out.numpy())
    return out
