"""The steps of an LSTM from its input's part of the gates, with a backward pass of its own.

Autograd would keep a dozen tensors for each position and visit as many nodes. Here a position keeps its gates and its
cell, and the backward pass goes from the gradient of the outputs to that of the gates: the gradient of what
`assay.gradients.rules.recurrent` has recorded. Parameters get no gradient here, so the first batch, on which autograd's
own gradients are compared, does not come this way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.gradients import products


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
    the state's weight, the first state and cell, and whether measurements may choose how to multiply. It returns the
    outputs [positions, records, width], the last state and cell, and the state before each position.
    """

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, backwards: bool, quick: bool
    ) -> tuple[Tensor, ...]:
        (records, width), positions = h.shape, gates.shape[1]
        times = products.by_shape(records, width, 4 * width, h, quick=quick)
        z = gates.data  # nobody reads what was recorded: the gates take its place, and leave its version as it was
        cells, bent, outs = (h.new_empty(positions, records, width) for _ in range(3))
        states = h.new_empty(records, positions, width)
        order = range(positions - 1, -1, -1) if backwards else range(positions)
        places = [each.unbind(dim) for each, dim in ((z, 1), (states, 1), (cells, 0), (bent, 0), (outs, 0))]
        ctx.save_for_backward(weight, z, cells, bent, c)
        for t in order:
            now, before, cell, shrunk, out = (place[t] for place in places)
            before.copy_(h)
            half, g, o = now.add_(times(h, weight)).split((2 * width, width, width), 1)
            half.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            i, f = half.split(width, 1)
            c = torch.mul(f, c, out=cell).addcmul_(i, g)
            h = torch.mul(o, torch.tanh(c, out=shrunk), out=out)
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
        times, across = products.by_shape(records, 4 * width, width, weight, quick=ctx.quick), weight.t()
        dh = first.new_zeros(records, width) if d_h is None else d_h
        dc = first.new_zeros(records, width) if d_c is None else d_c
        found = torch.empty_like(z)
        gates, slices = z.unbind(1), found.unbind(1)
        through_sigmoid, through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
        for t in reversed(ctx.order):
            c = first if t == ctx.order.start else cells[t - ctx.order.step]
            (i, f, g, o), (di, df, dg, do) = gates[t].split(width, 1), slices[t].split(width, 1)
            if d_outs is not None:
                dh = dh + d_outs[t]
            dc = dc + through_tanh(dh * o, bent[t])
            through_sigmoid(dh * bent[t], o, grad_input=do)
            through_sigmoid(dc * g, i, grad_input=di)
            through_sigmoid(dc * c, f, grad_input=df)
            through_tanh(dc * i, g, grad_input=dg)
            dc = dc * f
            dh = times(slices[t], across)
        return found, None, dh, dc, None, None
