"""Time of a step: plain, private, and private with Opacus. `python -m benchmarks.engine [--quick] [--model NAME]`

One thread; all contestants in one process, a step each in every round, in an order that changes from round to round;
the fastest of many rounds counts, which is the least disturbed one. Assay draws the noise of several steps of a small
model at once: the fastest step that drew and the fastest that did not then count as often as each occurred.

The C library's allocator adapts to the largest blocks a process has freed, and whoever shares a process with Opacus
gains by it. So plain and Assay are also measured without it, each model in a process of its own ("alone").

Before anything is timed, every private contestant's clipped gradient without noise must equal Assay's.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks import report
from benchmarks.contestants import NOISELESS, Contestant, Maker, Setting, Task, plain, private
from benchmarks.rivals import OPACUS

# The most that a private step may take, in plain steps.
TARGETS = {
    Task(model="logistic", shape=(1, 28, 28), batch=256): 1.2,
    Task(model="mnist-cnn", shape=(1, 28, 28), batch=256): 1.05,
    Task(model="model3", shape=(3, 32, 32), batch=64): 1.2,
    Task(model="resnet20", shape=(3, 32, 32), batch=64): 1.35,
}
PLAIN, ASSAY = "plain", "Assay"

# Assay raises a record's norm by a bound on its rounding error (some 1e-5 of it at a few hundred terms), Opacus by the
# constant 1e-6; the clipped gradients differ by that much.
_TOLERANCE = 1e-4
_WARM_UP = 3  # Assay proves itself on the first batch, backends choose their kernels


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure a model: as many rounds as fit into `seconds`, within these bounds."""

    seconds: float
    least: int
    most: int

    def rounds(self, one: float) -> int:
        """Rounds to do, if one takes this many seconds."""
        return min(self.most, max(self.least, int(self.seconds / one)))


FULL = Effort(seconds=60, least=15, most=2000)
QUICK = Effort(seconds=5, least=5, most=200)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A step of each contestant in milliseconds, why others are missing, and Assay over plain without Opacus around."""

    task: Task
    target: float
    rounds: int
    milliseconds: dict[str, float]
    missing: dict[str, str]
    alone: float | None = None

    @property
    def best_rival(self) -> str | None:
        """The fastest mode of Opacus."""
        return min((n for n in OPACUS if n in self.milliseconds), key=self.milliseconds.__getitem__, default=None)

    def over(self, name: str, base: str) -> float:
        """How many times as long one takes as another."""
        return self.milliseconds[name] / self.milliseconds[base]

    @property
    def met(self) -> bool:
        """Within the target, and faster than every mode of Opacus."""
        rival = self.best_rival
        return self.over(ASSAY, PLAIN) <= self.target and (rival is None or self.over(ASSAY, rival) < 1)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "model": self.task.model,
            "batch": self.task.batch,
            "rounds": self.rounds,
            "milliseconds": self.milliseconds,
            "missing": self.missing,
            "over_plain": self.over(ASSAY, PLAIN),
            "over_plain_alone": self.alone,
            "target": self.target,
            "best_opacus": self.best_rival,
            "met": self.met,
        }


def clipped_gradient(task: Task, maker: Maker) -> torch.Tensor:
    """The clipped gradient of the task's batch, without noise, as the second step computes it."""
    contestant = maker(task.build(), task.data(), NOISELESS)
    for _ in range(2):  # the first is not the one that is timed: Assay proves itself there
        contestant.step(*next(contestant.batches))
    return contestant.gradient()


def _comparable(task: Task) -> tuple[dict[str, Maker], dict[str, str]]:
    """The modes of Opacus that run on this model, and why the others do not; all must compute the same."""
    ours = clipped_gradient(task, private)
    running: dict[str, Maker] = {}
    missing: dict[str, str] = {}
    for name, maker in OPACUS.items():
        try:
            theirs = clipped_gradient(task, maker)
        except Exception as error:  # whatever a mode cannot do, it says in its own way
            missing[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            continue
        gap = float((theirs - ours).norm() / theirs.norm())
        assert gap <= _TOLERANCE, f"{task.model}: the clipped gradients of Assay and {name} differ by {gap:.2g}"
        running[name] = maker
    return running, missing


class _Stopwatch:
    """The steps of one contestant: the fastest of each kind, weighted by how often that kind occurred."""

    def __init__(self, contestant: Contestant) -> None:
        self._contestant = contestant
        self._fastest: dict[int, float] = {}
        self._count: Counter[int] = Counter()

    def step(self) -> float:
        """Take a step; the seconds it took."""
        x, y = next(self._contestant.batches)
        before = self._contestant.draws()
        start = time.perf_counter()
        self._contestant.step(x, y)
        seconds = time.perf_counter() - start
        kind = self._contestant.draws() - before
        self._count[kind] += 1
        self._fastest[kind] = min(seconds, self._fastest.get(kind, seconds))
        return seconds

    @property
    def milliseconds(self) -> float:
        """A step."""
        total = sum(seconds * self._count[kind] for kind, seconds in self._fastest.items())
        return 1e3 * total / self._count.total()


def measure(task: Task, target: float, effort: Effort, *, alone: bool) -> Timing:
    """Check that all compute the same, then time them; `alone` leaves Opacus out."""
    rivals, missing = ({}, {}) if alone else _comparable(task)
    makers = {PLAIN: plain, ASSAY: private, **rivals}
    milliseconds, rounds = timed(task, makers, effort)
    return Timing(task=task, target=target, rounds=rounds, milliseconds=milliseconds, missing=missing)


def timed(task: Task, makers: Mapping[str, Maker], effort: Effort) -> tuple[dict[str, float], int]:
    """A step of each in milliseconds, all interleaved in this process, and the number of rounds."""
    contestants = {name: maker(task.build(), task.data(), Setting()) for name, maker in makers.items()}
    warm_up = [_Stopwatch(c) for c in contestants.values()]
    for _ in range(_WARM_UP):
        one = sum(watch.step() for watch in warm_up)
    rounds = effort.rounds(one)
    watches = {name: _Stopwatch(c) for name, c in contestants.items()}
    order, shuffle = list(watches.values()), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)  # or one contestant would always find the caches as the same other one left them
        for watch in order:
            watch.step()
    return {name: watch.milliseconds for name, watch in watches.items()}, rounds


def _rendered(timing: Timing) -> str:
    rival = timing.best_rival
    rows, notes = [], []
    for name in (*timing.milliseconds, *timing.missing):
        if name in timing.missing:
            notes.append(f"{name}: n/a, {timing.missing[name]}")
            rows.append([name, *["n/a"] * 3])
            continue
        over_rival = "" if rival is None else f"{timing.over(name, rival):.2f}"
        rows.append([name, f"{timing.milliseconds[name]:.3f}", f"{timing.over(name, PLAIN):.2f}", over_rival])
    title = f"{timing.task.model}, batch {timing.task.batch}, fastest of {timing.rounds} rounds"
    return "\n".join([title, "", report.table(["", "ms", "/ plain", "/ best Opacus"], rows), *notes, ""])


def _verdicts(timings: list[Timing]) -> str:
    rows = []
    for t in timings:
        rival = t.best_rival
        rows.append(
            [
                f"{t.task.model} ({t.task.batch})",
                f"{t.over(ASSAY, PLAIN):.2f}",
                f"{t.target:.2f}",
                "n/a" if rival is None else f"{t.over(rival, PLAIN):.2f} ({rival.removeprefix('Opacus ')})",
                "yes" if t.met else "no",
                "n/a" if t.alone is None else f"{t.alone:.2f}",
            ]
        )
    return report.table(["step time / plain", "Assay", "target", "best Opacus", "met", "Assay alone"], rows)


def _measured_alone(task: Task, rounds: int) -> float:
    command = [sys.executable, "-m", "benchmarks.engine", "--alone", "--json"]
    command += ["--model", task.model, "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout)["engine"][0]["over_plain"])


def run(effort: Effort, models: list[str] | None = None, *, alone: bool = False) -> list[Timing]:
    """Every model, or those named."""
    torch.set_num_threads(report.THREADS)
    timings = []
    for task, target in TARGETS.items():
        if models and task.model not in models:
            continue
        timing = measure(task, target, effort, alone=alone)
        timings.append(timing if alone else replace(timing, alone=_measured_alone(task, timing.rounds)))
    return timings


def rendered(timings: list[Timing]) -> str:
    """The tables as text."""
    return "\n".join([*map(_rendered, timings), _verdicts(timings)])


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or above")
    return int(text)


def add_options(parser: argparse.ArgumentParser, models: Sequence[str] = tuple(task.model for task in TARGETS)) -> None:
    """The options that `effort_of` and `run` read."""
    parser.add_argument("--model", action="append", choices=models, help="only this model")
    parser.add_argument("--rounds", type=_whole, help="exactly so many rounds (default: as the model's speed allows)")
    parser.add_argument("--quick", action="store_true", help="a rough answer in a minute or two")


def effort_of(options: argparse.Namespace) -> Effort:
    """What the options ask for."""
    if options.rounds is not None:
        return Effort(seconds=0, least=options.rounds, most=options.rounds)
    return QUICK if options.quick else FULL


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description="time of a training step")
    add_options(parser)
    parser.add_argument("--alone", action="store_true", help="plain and Assay only, in this process")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    timings = run(effort_of(options), options.model, alone=options.alone)
    if options.json:
        print(json.dumps({"machine": report.machine(), "engine": [t.to_json() for t in timings]}, indent=2))
    else:
        print(f"{report.described()}\n\n{rendered(timings)}")


if __name__ == "__main__":
    main()
