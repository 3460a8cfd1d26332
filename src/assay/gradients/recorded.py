"""Pieces of recording: an output that joins the graph, and a function that is recorded as a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.gradients.rules.attention import Projection
from assay.gradients.rules.layers import is_ordinary
from assay.gradients.rules.recurrent import Gates, Shrink
from assay.gradients.rules.shared import Uses
from assay.gradients.uses.base import Apart, LayerUse


class Anchor(torch.autograd.Function):
    """Makes an output part of the autograd graph, in place, so that in-place activations after it stay legal."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, anchor: Tensor) -> Tensor:  # noqa: ARG004
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:  # noqa: ARG004
        return grads[0], None


@dataclass(frozen=True, slots=True)
class Recorded:
    """A `TapeRule` for a function of parameters, made for one call."""

    run: Callable[[Tensor], Tensor]
    found: Callable[[Tensor, Tensor], Uses]

    def forward(self, module: Any, params: Any, x: Tensor) -> Tensor:  # noqa: ARG002
        """The function."""
        return self.run(x)

    def uses(self, module: Any, wanted: frozenset[str], x: Tensor, g: Tensor) -> tuple[Sequence[str], LayerUse]:  # noqa: ARG002
        """The parameters that it depends on, and their use."""
        found = self.found(x, g)
        return [name for name, _ in found], Apart([use for _, use in found])


def takes_rows(rule: object) -> bool:
    """Whether the uses that a rule finds may be added up over several rows of a record."""
    return is_ordinary(rule) or isinstance(rule, (Projection, Gates, Shrink, Recorded))
