"""Normal numbers: adding drawn ones to a sum, and the true distribution of their tails.

The tails need care. Box and Muller's numbers end where their uniform numbers do: with 24 bits, as torch makes them, at
sqrt(48 log 2) = 5.77 standard deviations, which 8e-9 of normal numbers exceed. Suppose that a record moves one
coordinate by a standard deviation. A number beyond that end would then prove its presence, with a probability of 1e-6
per step: over a run, as much as a usual δ. Every number beyond `TAIL` is therefore replaced by one from the true tail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from assay._util.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

TAIL = 4.5
PIECE = 1 << 16  # numbers
_AT_ONCE = 1 << 20  # numbers: what a core's cache holds while they are drawn and added


def add_drawn(values: Sequence[Tensor], scale: float, draw: Callable[..., Tensor]) -> None:
    """Add scale · `draw(shape, dtype=..., device=...)` to the values in place."""
    for group in drawn_together(values):
        count = sum(v.numel() for v in group)
        add_vector(group, scale, draw((count,), dtype=group[0].dtype, device=group[0].device))


def add_vector(values: Sequence[Tensor], scale: float, noise: Tensor) -> None:
    """Add scale · noise to the values in place: one vector for all coordinates, cut to the values' shapes."""
    pieces = noise.split_with_sizes([v.numel() for v in values])
    shaped = [p if v.dim() == 1 else p.view_as(v) for v, p in zip(values, pieces, strict=True)]
    torch._foreach_add_(list(values), shaped, alpha=scale)


def drawn_together(values: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """Which values get their numbers in one draw: all of them, or each by itself if the sum is large."""
    return [values] if sum(v.numel() for v in values) <= _AT_ONCE else [[v] for v in values]


def tail_numbers(replaced: Tensor, uniform: Tensor) -> Tensor:
    """Numbers from the tails beyond `TAIL`, with the signs of those they replace.

    Given |z| > `TAIL`, the probability of an even larger |z| is uniform. With 53 bits they reach beyond 9 standard
    deviations.

    Args:
        replaced: Numbers whose signs and type are kept.
        uniform: As many independent uniform float64 numbers in [0, 1).
    """
    mass = 0.5 * math.erfc(TAIL / math.sqrt(2))
    # For the few numbers of a step, Python takes less time than two more operations of torch.
    size: Tensor = torch.special.ndtri(torch.tensor([(1 - u) * mass for u in uniform.tolist()], dtype=uniform.dtype))
    return size.to(replaced.dtype).copysign(replaced)
