"""float32 normal numbers on the CPU, piece by piece.

A piece stays in a core's cache between being drawn, being looked at and being added; a whole vector of numbers would have to be allocated, which for a
large one costs as much as drawing it. What is beyond `tails.TAIL` is taken out of its piece and drawn anew at the end, for all pieces at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from assay.randomness import tails
from assay.randomness.adding import add_drawn, drawn_together, one_vector

PIECE = 1 << 16  # numbers


class Source(Protocol):
    """A stream that draws float32 normal numbers into memory that is there already."""

    def fill(self, piece: Tensor) -> Mapping[int, float]:
        """Draw a piece, with 0 in place of what is beyond `tails.TAIL`; that by its place."""
        ...

    def uniform(self, n: int) -> Tensor:
        """As of `assay.randomness.streams.Stream`."""
        ...

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """As of `assay.randomness.streams.Stream`."""
        ...


def normal(shape: Sequence[int], source: Source) -> Tensor:
    """Normal numbers in float32, those beyond `tails.TAIL` from that tail's true distribution."""
    drawn = torch.empty(tuple(shape), dtype=torch.float32)
    flat, beyond = drawn.view(-1), {}
    for start, own in _pieces(flat):
        beyond.update(_placed(source.fill(own), start))
    if beyond:
        where, tail = _tail(beyond, source)
        flat[where] = tail
    return drawn


def add_normal(values: Sequence[Tensor], std: float, source: Source) -> None:
    """values + std · `normal`, bit for bit and in place; a vector of float32 in one pass: only the vector goes through main memory."""
    for part in drawn_together(values):
        if (vector := one_vector(part)) is None:
            add_drawn(part, std, source.normal)
        else:
            _add(vector, std, source)


def _add(vector: Tensor, std: float, source: Source) -> None:
    beyond: dict[int, float] = {}
    for start, own in _pieces(vector):
        piece = _room.numbers if len(own) == PIECE else _room.numbers[: len(own)]
        beyond.update(_placed(source.fill(piece), start))
        own.add_(piece, alpha=std)
    if beyond:
        where, tail = _tail(beyond, source)
        vector[where] = vector[where].add_(tail, alpha=std)


class _Room(threading.local):
    """Each thread's own room for a piece, kept from call to call: new memory would cost as much as the numbers."""

    def __init__(self) -> None:
        self.numbers = torch.empty(PIECE)


_room = _Room()


def _pieces(flat: Tensor) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(flat), PIECE):
        yield start, flat[start : start + PIECE]


def _placed(beyond: Mapping[int, float], start: int) -> dict[int, float]:
    return {start + place: number for place, number in beyond.items()}


def _tail(beyond: Mapping[int, float], source: Source) -> tuple[Tensor, Tensor]:
    """The places of numbers that were taken out, in order, and what belongs there."""
    places = sorted(beyond)
    taken = torch.tensor([beyond[place] for place in places])
    return torch.tensor(places), tails.redrawn(taken, source.uniform(len(places)))
