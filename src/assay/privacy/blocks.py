"""Normal numbers for many steps drawn at once, handed out a step at a time.

Seeding a generator and checking its tails costs as much as the numbers themselves when a model is small. A block serves up to 64 steps; which
block and which row a step gets follows from its number alone, so that a resumed run with a fixed seed finds the same noise again. Every row is
handed out for one step only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from assay.privacy.rng import Randomness, Stream

_BLOCK_NUMBERS, _BLOCK_STEPS = 1 << 16, 64  # 256 KB: what fits a core's cache is drawn fastest


class Blocks:
    """The streams of one purpose, step by step. Steps may be taken in any order; in order is cheapest."""

    def __init__(self, randomness: Randomness, purpose: str) -> None:
        self._randomness, self._purpose = randomness, purpose
        self._kept: dict[tuple[int, int, torch.dtype, torch.device | str], tuple[int, tuple[Tensor, ...]]] = {}

    def at(self, step: int) -> Stream:
        """The numbers for this step."""
        return _Step(self, step)

    def _rest(self, step: int) -> Stream:
        return self._randomness.stream(self._purpose, step)

    def _row(
        self, step: int, call: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str
    ) -> Tensor:
        size = math.prod(shape)
        steps = min(_BLOCK_STEPS, _BLOCK_NUMBERS // max(1, size))
        if steps < 2:
            return self._randomness.stream(f"{self._purpose}, call {call}", step).normal(
                shape, dtype=dtype, device=device
            )
        block, row = divmod(step, steps)
        kind = (call, size, dtype, device)
        kept = self._kept.get(kind)
        if kept is None or kept[0] != block:
            name = f"{self._purpose}, call {call}, {size} numbers, {dtype}, {device}"
            drawn = self._randomness.stream(name, block).normal((steps, size), dtype=dtype, device=device)
            kept = self._kept[kind] = (block, drawn.unbind(0))
        numbers = kept[1][row]
        return numbers if len(shape) == 1 else numbers.view(tuple(shape))


class _Step:
    """One step's stream."""

    __slots__ = ("_blocks", "_calls", "_rest", "_step")

    def __init__(self, blocks: Blocks, step: int) -> None:
        self._blocks, self._step, self._calls = blocks, step, 0
        self._rest: Stream | None = None

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        call, self._calls = self._calls, self._calls + 1
        return self._blocks._row(self._step, call, shape, dtype, device)

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        return self._others().laplace(shape, dtype=dtype, device=device)

    def uniform(self, n: int) -> Tensor:
        return self._others().uniform(n)

    def integers(self, high: int, n: int) -> Tensor:
        return self._others().integers(high, n)

    def _others(self) -> Stream:
        if self._rest is None:
            self._rest = self._blocks._rest(self._step)
        return self._rest
