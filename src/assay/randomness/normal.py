"""Normal numbers: adding them to a sum, drawing float32 ones piece by piece, and the true distribution of their tails.

A piece stays in a core's cache while it is drawn, checked and added. A whole vector of noise would have to be
allocated, which for a large one costs as much as drawing it.

The tails need care. Box and Muller's numbers end where their uniform numbers do: with 24 bits, as torch makes them, at
sqrt(48 log 2) = 5.77 standard deviations, which 8e-9 of normal numbers exceed. Suppose that a record moves one
coordinate by a standard deviation. A number beyond that end would then prove its presence, with a probability of 1e-6
per step: over a run, as much as a usual δ. Every number beyond `TAIL` is therefore replaced by one from the true tail.
"""

from __future__ import annotations

import functools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from assay._util.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Stream

TAIL = 4.5
PIECE = 1 << 16  # numbers
_AT_ONCE = 1 << 20  # numbers: what a core's cache holds while they are drawn and added


@runtime_checkable
class AddsNormal(Protocol):
    """A stream with a faster way to add its normal numbers than to hand them over first."""

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """As the function `add_normal`, and with the same numbers as if it called `normal`."""
        ...


def add_normal(values: Sequence[Tensor], std: float, stream: Stream) -> None:
    """Add std · z to the values in place, z being independent standard normal numbers of the stream.

    Args:
        values: What the noise is added to.
        std: The noise's standard deviation. Nothing is drawn if it is 0.
        stream: Where the noise comes from.
    """
    if not values or std == 0:
        return
    if isinstance(stream, AddsNormal):
        stream.add_normal(values, std)
    else:
        add_drawn(values, std, stream.normal)


def add_drawn(values: Sequence[Tensor], scale: float, draw: Callable[..., Tensor]) -> None:
    """Add scale · `draw(shape, dtype=..., device=...)` to the values in place."""
    for group in drawn_together(values):
        count = sum(v.numel() for v in group)
        add_vector(group, scale, draw((count,), dtype=group[0].dtype, device=group[0].device))


def add_vector(values: Sequence[Tensor], scale: float, noise: Tensor) -> None:
    """Add scale · noise to the values in place: one vector for all coordinates, cut to the values' shapes."""
    for value, piece in zip(values, noise.split_with_sizes([v.numel() for v in values]), strict=True):
        value.add_(piece if value.dim() == 1 else piece.view_as(value), alpha=scale)


def drawn_together(values: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """Which values get their numbers in one draw: all of them, or each by itself if the sum is large."""
    return [values] if sum(v.numel() for v in values) <= _AT_ONCE else [[v] for v in values]


class PiecewiseNormal(ABC):
    """A stream that draws float32 normal numbers into existing memory, a piece at a time."""

    __slots__ = ()

    @abstractmethod
    def fill(self, piece: Tensor) -> Mapping[int, float]:
        """Draw into a piece. Numbers beyond `TAIL` are returned by their place, with 0 left there."""

    @abstractmethod
    def uniform(self, n: int) -> Tensor:
        """As `assay.randomness.streams.Stream.uniform`."""

    @abstractmethod
    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """As `assay.randomness.streams.Stream.normal`."""

    def normal_float32(self, shape: Sequence[int]) -> Tensor:
        """Normal numbers on the CPU; those beyond `TAIL` come from the tail's true distribution."""
        drawn = torch.empty(tuple(shape), dtype=torch.float32)
        flat, beyond = drawn.view(-1), {}
        for start, piece in _pieces(flat):
            beyond.update(_placed(self.fill(piece), start))
        if beyond:
            where, tail = self._tail(beyond)
            flat[where] = tail
        return drawn

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """Add std · `normal` in place, bit for bit. A float32 vector on the CPU needs no memory for its noise."""
        for group in drawn_together(values):
            if (vector := _only_vector(group)) is None:
                add_drawn(group, std, self.normal)
            else:
                self._add(vector, std)

    def _add(self, vector: Tensor, std: float) -> None:
        beyond: dict[int, float] = {}
        for start, target in _pieces(vector):
            piece = _memory.numbers if len(target) == PIECE else _memory.numbers[: len(target)]
            beyond.update(_placed(self.fill(piece), start))
            target.add_(piece, alpha=std)
        if beyond:
            where, tail = self._tail(beyond)
            vector[where] = vector[where].add_(tail, alpha=std)

    def _tail(self, beyond: Mapping[int, float]) -> tuple[Tensor, Tensor]:
        """The places of numbers beyond `TAIL`, in order, and what belongs there."""
        places = sorted(beyond)
        replaced = torch.tensor([beyond[place] for place in places])
        return torch.tensor(places), tail_numbers(replaced, self.uniform(len(places)))


def tail_numbers(replaced: Tensor, uniform: Tensor) -> Tensor:
    """Numbers from the tails beyond `TAIL`, with the signs of those they replace.

    Given |z| > `TAIL`, the probability of an even larger |z| is uniform. With 53 bits they reach beyond 9 standard
    deviations.

    Args:
        replaced: Numbers whose signs and type are kept.
        uniform: As many independent uniform float64 numbers in [0, 1).
    """
    mass = 0.5 * math.erfc(TAIL / math.sqrt(2))
    size: Tensor = torch.special.ndtri((1 - uniform) * mass).abs()
    return size.to(replaced.dtype).copysign(replaced)


class _Memory(threading.local):
    """Memory for one piece, one per thread and kept between calls: allocating it would cost as much as drawing."""

    @functools.cached_property
    def numbers(self) -> Tensor:
        return torch.empty(PIECE)


_memory = _Memory()


def _only_vector(values: Sequence[Tensor]) -> Tensor | None:
    """A single contiguous float32 value on the CPU as a vector to write to; None for anything else."""
    if len(values) != 1:
        return None
    (only,) = values
    plain = only.dtype == torch.float32 and only.device.type == "cpu" and only.is_contiguous()
    return only.view(-1) if plain else None


def _pieces(flat: Tensor) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(flat), PIECE):
        yield start, flat[start : start + PIECE]


def _placed(beyond: Mapping[int, float], start: int) -> dict[int, float]:
    return {start + place: number for place, number in beyond.items()}
