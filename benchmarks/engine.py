"""Time of a step: plain, private, and private with Opacus. `python -m benchmarks.engine [--quick] [--model NAME]`

One thread; all contestants in one process, a step each in every round, in an order that changes from round to round;
the fastest of many rounds counts, which is the least disturbed one. Assay draws the noise of several steps of a small
model at once: the fastest step that drew and the fastest that did not then count as often as each occurred.

The C library's allocator adapts to the largest blocks a process has freed, and whoever shares a process with Opacus
gains by it. So plain and Assay are also measured without it, each model in a process of its own ("alone").

Before anything is timed, every private contestant's clipped gradient without noise must equal Assay's; a mode of Opacus
that computes something else (its hooks and ghost modes do for kernels that lie channels-last) is left out and says so.
With `--quick` so is one whose step there takes more than half as long again as that of the fastest mode.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks import report
from benchmarks.contestants import ASSAY, NOISELESS, PLAIN, Maker, Task, plain, private
from benchmarks.rivals import OPACUS
from benchmarks.timing import Effort, add_effort, effort_of, timed

# The most that a private step may take, in plain steps.
TARGETS = {
    Task(model="logistic", shape=(1, 28, 28), batch=256): 1.15,
    Task(model="mlp", shape=(1, 28, 28), batch=256): 1.2,
    Task(model="mnist-cnn", shape=(1, 28, 28), batch=256): 1.1,
    Task(model="mnist-cnn", shape=(1, 28, 28), batch=256, channels_last=True): 1.1,
    Task(model="model3", shape=(3, 32, 32), batch=64): 1.1,
    Task(model="resnet20", shape=(3, 32, 32), batch=64): 1.1,
    Task(model="transformer", shape=(64, 128), batch=32): 1.08,
    Task(model="lstm", shape=(64, 64), batch=32): 1.3,
    Task(model="lora", shape=(64, 512), batch=8): 1.1,
    Task(model="bert", shape=(64,), batch=32): 1.2,
    Task(model="gpt2", shape=(64,), batch=32): 1.2,
    Task(model="llama", shape=(64,), batch=32): 1.2,
}

# Assay raises a record's norm by a bound on its rounding error (some 1e-5 of it at a few hundred terms), Opacus by the
# constant 1e-6; the clipped gradients differ by that much.
_TOLERANCE = 1e-4
_OTHER_LIBRARY = 1e-3  # the same for a step that another compiler has made


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
            "channels_last": self.task.channels_last,
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
    return _second_step(task, maker)[0]


def _second_step(task: Task, maker: Maker) -> tuple[torch.Tensor, float]:
    """The clipped gradient, and the seconds of the step. The first is another: Assay proves itself there."""
    contestant = maker(task.build(), task.data(), NOISELESS)
    contestant.step(*next(contestant.batches))
    x, y = next(contestant.batches)
    start = time.thread_time()
    contestant.step(x, y)
    seconds = time.thread_time() - start
    return contestant.gradient(), seconds


def gap(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """How far two gradients are apart, over the norm of the first."""
    return float((theirs - ours).norm() / theirs.norm())


def check_agrees(task: Task, rival: Maker) -> None:
    """Refuse to time another library's step if its clipped gradient is not Assay's."""
    ours, theirs = (clipped_gradient(task, maker) for maker in (private, rival))
    apart = gap(theirs, ours)
    assert apart < _OTHER_LIBRARY, f"{task.label}: the clipped gradients differ by {apart:.2g}"


def _comparable(task: Task, slowest: float) -> tuple[dict[str, Maker], dict[str, str]]:
    """The modes of Opacus that compute what Assay does on this model, and what is wrong with the others.

    If any runs, one must agree. Those that take longer than `slowest` times the fastest are left out.
    """
    ours = clipped_gradient(task, private)
    running: dict[str, Maker] = {}
    missing: dict[str, str] = {}
    apart: list[str] = []
    seconds: dict[str, float] = {}
    for name, maker in OPACUS.items():
        try:
            theirs, seconds[name] = _second_step(task, maker)
        except Exception as error:  # whatever a mode cannot do, it says in its own way
            missing[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            continue
        distance = gap(theirs, ours)
        if distance > _TOLERANCE:
            missing[name] = f"its clipped gradient differs from that of the others by {distance:.2g}"
            apart.append(name)
            continue
        running[name] = maker
    assert running or not apart, (
        f"{task.label}: no mode of Opacus computes the clipped gradient that Assay does: {apart}"
    )
    fastest = min((seconds[name] for name in running), default=0.0)
    for name in [name for name in running if seconds[name] > slowest * fastest]:
        missing[name] = f"its step takes {seconds[name] / fastest:.1f} times as long as that of another mode"
        del running[name]
    return running, missing


def measure(task: Task, target: float, effort: Effort, *, alone: bool) -> Timing:
    """Check that all compute the same, then time them; `alone` leaves Opacus out."""
    rivals, missing = ({}, {}) if alone else _comparable(task, effort.slowest)
    makers: dict[str, Maker] = {PLAIN: plain, ASSAY: private, **rivals}
    milliseconds, rounds = timed(task, makers, effort)
    return Timing(task=task, target=target, rounds=rounds, milliseconds=milliseconds, missing=missing)


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
    title = f"{timing.task.label}, fastest of {timing.rounds} rounds"
    return "\n".join([title, "", report.table(["", "ms", "/ plain", "/ best Opacus"], rows), *notes, ""])


def _verdicts(timings: list[Timing]) -> str:
    rows = []
    for t in timings:
        rival = t.best_rival
        rows.append(
            [
                t.task.label,
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
    found = json.loads(done.stdout)["engine"]
    return float(next(one["over_plain"] for one in found if one["channels_last"] == task.channels_last))


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


_MODELS = tuple(dict.fromkeys(task.model for task in TARGETS))


def add_options(parser: argparse.ArgumentParser, models: Sequence[str] = _MODELS) -> None:
    """The options that `effort_of` and `run` read."""
    parser.add_argument("--model", action="append", choices=models, help="only this model")
    add_effort(parser)


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
