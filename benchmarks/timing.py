"""Steps against the clock, fairly: all contestants in one process, a step each in every round, in an order that
changes; the fastest of many counts.

A contestant that draws the random numbers of several steps at once has two kinds of steps; the fastest of each then
counts as often as it occurred.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.contestants import Contestant, Maker, Setting

_WARM_UP = 3  # Assay proves itself on the first batch, backends choose their kernels


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure a model: as many rounds as fit into `seconds`, within these bounds."""

    seconds: float
    least: int
    most: int
    slowest: float = math.inf
    """The longest step of a rival that is timed, in steps of the fastest rival."""

    def rounds(self, one: float) -> int:
        """Rounds to do, if one takes this many seconds."""
        return min(self.most, max(self.least, int(self.seconds / one)))


FULL = Effort(seconds=60, least=15, most=2000)
QUICK = Effort(seconds=5, least=5, most=200, slowest=1.5)


Clock = Callable[[], float]


class _Stopwatch:
    """The steps of one contestant: the fastest of each kind, weighted by how often that kind occurred."""

    def __init__(self, contestant: Contestant, clock: Clock) -> None:
        self._contestant, self._clock = contestant, clock
        self._fastest: dict[int, float] = {}
        self._count: Counter[int] = Counter()

    def step(self) -> float:
        """Take a step; the seconds it took."""
        x, y = next(self._contestant.batches)
        before = self._contestant.draws()
        start = self._clock()
        self._contestant.step(x, y)
        seconds = self._clock() - start
        kind = self._contestant.draws() - before
        self._count[kind] += 1
        self._fastest[kind] = min(seconds, self._fastest.get(kind, seconds))
        return seconds

    @property
    def milliseconds(self) -> float:
        """A step."""
        total = sum(seconds * self._count[kind] for kind, seconds in self._fastest.items())
        return 1e3 * total / self._count.total()


class Measured(Protocol):
    """A model and one batch of its records."""

    def build(self) -> nn.Module: ...
    def data(self) -> TensorDataset: ...


def timed(
    task: Measured, makers: Mapping[str, Maker], effort: Effort, clock: Clock = time.perf_counter
) -> tuple[dict[str, float], int]:
    """A step of each in milliseconds, all interleaved in this process, and the number of rounds.

    With `time.thread_time` as the clock, other processes disturb less; all work must then be done by this thread.
    """
    contestants = {name: maker(task.build(), task.data(), Setting()) for name, maker in makers.items()}
    warm_up = [_Stopwatch(c, clock) for c in contestants.values()]
    for _ in range(_WARM_UP):
        one = sum(watch.step() for watch in warm_up)
    rounds = effort.rounds(one)
    watches = {name: _Stopwatch(c, clock) for name, c in contestants.items()}
    order, shuffle = list(watches.values()), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)  # or one contestant would always find the caches as the same other one left them
        for watch in order:
            watch.step()
    return {name: watch.milliseconds for name, watch in watches.items()}, rounds


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or above")
    return int(text)


def add_effort(parser: argparse.ArgumentParser) -> None:
    """The options that `effort_of` reads."""
    parser.add_argument("--rounds", type=_whole, help="exactly so many rounds (default: as the model's speed allows)")
    parser.add_argument("--quick", action="store_true", help="a rough answer, in less than ten minutes for all models")


def effort_of(options: argparse.Namespace) -> Effort:
    """What the options ask for."""
    if options.rounds is not None:
        return Effort(seconds=0, least=options.rounds, most=options.rounds)
    return QUICK if options.quick else FULL
