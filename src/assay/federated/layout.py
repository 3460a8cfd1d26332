"""A model as one vector of numbers, and the bound on a vector.

Only floating-point tensors are in the vector. Whole-number buffers (counters) never leave a client: they cannot be
clipped, and noise on them means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and shapes of the tensors in the vector, in order."""

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, model: nn.Module, *, parameters_only: bool = False) -> Layout:
        """The layout of a model's floating-point tensors.

        Args:
            model: The model.
            parameters_only: Leave buffers out. A forward pass writes into them without noise, so where single records
                are protected, buffers must stay at the client.

        Returns:
            The layout.
        """
        kept = {name for name, p in model.named_parameters() if p.requires_grad}
        state = model.state_dict()
        return cls(
            {
                name: tuple(value.shape)
                for name, value in state.items()
                if value.is_floating_point() and (name in kept or not parameters_only)
            }
        )

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def blocks(self) -> dict[str, slice]:
        """Where each tensor is in the vector."""
        blocks, start = {}, 0
        for name, shape in self.shapes.items():
            blocks[name] = slice(start, start := start + math.prod(shape))
        return blocks

    def vector(self, model: nn.Module) -> Tensor:
        """The model as a vector, float32 on the CPU."""
        state = model.state_dict()
        return torch.cat([state[name].detach().flatten().to("cpu", torch.float32) for name in self.shapes])

    def load(self, model: nn.Module, vector: Tensor) -> None:
        """Put a vector into the model; what is not in the vector stays."""
        state = model.state_dict()
        with torch.no_grad():
            for name, block in self.blocks().items():
                state[name].copy_(vector[block].view(self.shapes[name]))


def clipped(vector: Tensor, bound: float) -> Tensor:
    """The vector in float64, scaled to norm at most `bound` if it is longer; zeros if it holds NaN or Inf.

    Guarantee: the norm of what is returned is at most `bound`, for every input.
    """
    wide = vector.double()
    norm = float(torch.linalg.vector_norm(wide))
    if not math.isfinite(norm):
        largest = float(wide.abs().max()) if len(wide) else 0.0
        if not math.isfinite(largest):
            return torch.zeros_like(wide)
        wide = wide / largest  # the numbers are finite, their squares are not
        norm = float(torch.linalg.vector_norm(wide))
    if norm <= bound:
        return wide
    # a little below, so that rounding in the norm and in the products cannot exceed the bound
    return wide * (bound / norm * (1 - 1e-12))
