"""Normal numbers for many steps drawn at once, handed out a step at a time.

Seeding a generator and checking its tails costs as much as the numbers themselves when a model is small. So a stream serves a series of 64 steps,
and its numbers are drawn in blocks of several steps. Which series, and which place in it, a step has follows from its number alone: a resumed run
with a fixed seed finds the same noise again (the part of the series before it is drawn anew). Every row is handed out for one step only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from assay._util.process import Unique
from assay.errors import ConfigError
from assay.randomness.adding import add_drawn, add_normal, drawn_together
from assay.randomness.rounded import Words
from assay.randomness.streams import Randomness, Stream

_BLOCK_NUMBERS, _SERIES = 1 << 16, 64  # 256 KB: what fits a core's cache is drawn fastest


@dataclass(frozen=True, slots=True)
class _Block:
    """The rows at hand: those of a series from place `first` on."""

    series: int
    stream: Stream
    first: int
    rows: tuple[Tensor, ...]


class Blocks(Unique):
    """The streams of one purpose, step by step. Steps may be taken in any order; in order is cheapest."""

    def __init__(self, randomness: Randomness, purpose: str) -> None:
        self._randomness, self._purpose = randomness, purpose
        self._kept: dict[tuple[int, int, torch.dtype, torch.device | str], _Block] = {}

    def at(self, step: int) -> Stream:
        """The numbers for this step."""
        return _Step(self, step)

    def _rest(self, step: int) -> Stream:
        return self._randomness.stream(self._purpose, step)

    def _own(self, step: int, call: int) -> Stream:
        """The stream of a call that asks for more numbers than a block is for."""
        return self._randomness.stream(f"{self._purpose}, call {call}", step)

    def _row(
        self, step: int, call: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str
    ) -> Tensor:
        size = math.prod(shape)
        if _long(size):
            return self._own(step, call).normal(shape, dtype=dtype, device=device)
        self.check_process()
        series, place = divmod(step, _SERIES)
        kind = (call, size, dtype, device)
        # Taken out until the rows are there: an exception while they are drawn leaves nothing behind, and the next call begins the series again.
        kept = self._kept.pop(kind, None)
        if kept is None or kept.series != series or kept.first > place:
            name = f"{self._purpose}, call {call}, {size} numbers, {dtype}, {device}"
            kept = _Block(series, self._randomness.stream(name, series), 0, ())
        while place >= kept.first + len(kept.rows):
            # a power of two, so that blocks fill a series
            rows = min(_SERIES, 1 << (_BLOCK_NUMBERS // max(1, size)).bit_length() - 1)
            drawn = kept.stream.normal((rows, size), dtype=dtype, device=device).unbind(0)
            kept = _Block(series, kept.stream, kept.first + len(kept.rows), drawn)
        self._kept[kind] = kept
        numbers = kept.rows[place - kept.first]
        return numbers if len(shape) == 1 else numbers.view(tuple(shape))


def _long(size: int) -> bool:
    return 2 * size > _BLOCK_NUMBERS


class _Step:
    """One step's stream."""

    __slots__ = ("_blocks", "_calls", "_rest", "_step")

    def __init__(self, blocks: Blocks, step: int) -> None:
        self._blocks, self._step, self._calls = blocks, step, 0
        self._rest: Stream | None = None

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        return self._blocks._row(self._step, self._call(), shape, dtype, device)

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        for part in drawn_together(values):
            if _long(sum(v.numel() for v in part)):
                add_normal(part, std, self._blocks._own(self._step, self._call()))
            else:
                add_drawn(part, std, self.normal)

    def _call(self) -> int:
        call, self._calls = self._calls, self._calls + 1
        return call

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        return self._others().laplace(shape, dtype=dtype, device=device)

    def uniform(self, n: int) -> Tensor:
        return self._others().uniform(n)

    def integers(self, high: int, n: int) -> Tensor:
        return self._others().integers(high, n)

    def words(self, n: int) -> Tensor:
        others = self._others()
        if not isinstance(others, Words):
            raise ConfigError("randomness", type(others).__name__, "streams with `words`: exact noise is made of bits")
        return others.words(n)

    def _others(self) -> Stream:
        if self._rest is None:
            self._rest = self._blocks._rest(self._step)
        return self._rest
