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
        records, width = h.shape
        times = products.by_shape(records, width, 4 * width, h, quick=quick)
        given = gates.unbind(1)
        order = range(len(given) - 1, -1, -1) if backwards else range(len(given))
        before, outs, kept = [h] * len(given), [h] * len(given), [h] * (3 * len(given))
        for t in order:
            before[t] = h
            z = times(h, weight).add_(given[t])
            half, g, o = z.split((2 * width, width, width), 1)
            half.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            i, f = half.split(width, 1)
            kept[3 * t : 3 * t + 2] = z, c
            c = (f * c).addcmul_(i, g)
            kept[3 * t + 2] = bent = c.tanh()
            outs[t] = h = o * bent
        ctx.save_for_backward(weight, *kept)
        ctx.order, ctx.quick = order, quick
        ctx.set_materialize_grads(False)
        states = torch.stack(before, 1)
        ctx.mark_non_differentiable(states)
        return torch.stack(outs), h.clone(), c.clone(), states

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_outs: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        weight, *kept = ctx.saved_tensors
        records, width = kept[1].shape
        times, across = products.by_shape(records, 4 * width, width, weight, quick=ctx.quick), weight.t()
        dh = kept[1].new_zeros(records, width) if d_h is None else d_h
        dc = kept[1].new_zeros(records, width) if d_c is None else d_c
        found = weight.new_empty(records, len(kept) // 3, 4 * width)
        slices = found.unbind(1)
        through_sigmoid, through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
        for t in reversed(ctx.order):
            z, c, bent = kept[3 * t : 3 * t + 3]
            (i, f, g, o), (di, df, dg, do) = z.split(width, 1), slices[t].split(width, 1)
            if d_outs is not None:
                dh = dh + d_outs[t]
            dc = dc + through_tanh(dh * o, bent)
            through_sigmoid(dh * bent, o, grad_input=do)
            through_sigmoid(dc * g, i, grad_input=di)
            through_sigmoid(dc * c, f, grad_input=df)
            through_tanh(dc * i, g, grad_input=dg)
            dc = dc * f
            dh = times(slices[t], across)
        return found, None, dh, dc, None, None
