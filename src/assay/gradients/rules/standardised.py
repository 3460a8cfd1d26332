"""Per-record gradients of convolutions with standardised kernels (`assay.models.standardised`).

Standardising takes an output channel's kernel w to c/‖c‖, where c is w minus its mean. A record's gradient with respect
to w is therefore P G/‖c‖. G is the gradient with respect to the standardised kernel, and P = I - 11ᵀ/N - uuᵀ with
u = c/‖c‖ keeps the directions of G that change neither mean nor length. 1/‖c‖ is a factor on the channel's output
gradient. P is an orthogonal projection, the same for all records, so the sum over records is projected once. Only norms
need P G of each record; if those are large, they are computed for a few records at a time.

A channel with ‖c‖² below `LEAST` has c/√LEAST instead, and its P lacks the last term.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.gradients.arithmetic import rounding, squares
from assay.gradients.uses.base import Dense, Use
from assay.gradients.uses.convolution import Convolved, ConvShape, convolved
from assay.models.standardised import LEAST, centred


@dataclass(frozen=True, slots=True)
class Projection:
    """P of every output channel; `direction` [out, fan-in] is u, or zero where ‖c‖² is below `LEAST`."""

    direction: Tensor

    def __call__(self, gradients: Tensor) -> Tensor:
        """P G for gradients [..., out, in, height, width], which it may overwrite."""
        rows = gradients.flatten(-3)
        rows -= rows.mean(-1, keepdim=True)
        rows.addcmul_(torch.linalg.vecdot(rows, self.direction).unsqueeze(-1), self.direction, value=-1.0)
        return rows.view_as(gradients)


@dataclass(slots=True)
class Projected:
    """The projected gradients of `kernel`, which are too large to keep; its output gradients are divided by ‖c‖."""

    kernel: Convolved
    onto: Projection

    def sq_norm(self) -> Tensor:
        # the sum is projected after it is formed, which rounds differently, by a fraction of the length before
        part = rounding(self.kernel.g.dtype, self.onto.direction.shape[1])
        found = []
        for piece in self.kernel.pieces():
            before = squares(piece.flatten(1))
            found.append(Dense(self.onto(piece)).sq_norm().add_(before, alpha=part))
        return self.kernel.raised(torch.cat(found))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.onto(self.kernel.weighted_sum(weights))

    def per_record(self) -> Tensor:
        return self.onto(self.kernel.per_record())

    def without(self, bad: Tensor) -> Projected:
        return Projected(self.kernel.without(bad), self.onto)


def through_standardising(weight: Tensor, shape: ConvShape, x: Tensor, g: Tensor) -> Use:
    """The use of `weight` in the cheapest form, from the standardised kernel's input `x` and output gradient `g`."""
    rows, squared = centred(weight.detach().to(g.dtype))
    length = squared.clamp_min(LEAST).sqrt()
    onto = Projection(torch.where(squared >= LEAST, rows / length, 0.0))
    use = convolved(shape, x, g / length.view(-1, 1, 1))
    return Projected(use, onto) if isinstance(use, Convolved) else Dense(onto(use.per_record()))
