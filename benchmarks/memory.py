"""Peak memory of a step: plain and private, and for two models private with Opacus's hooks.

`python -m benchmarks.memory`

Each contestant runs in a fresh process. Counted is what its resident memory rose by, at the peak, after model and data
had been built: activations, gradients, and what the allocator keeps for later. The first step stands apart, for what is
done once is done there (Assay's proof); the target is held against the larger of the two. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from benchmarks.contestants import ASSAY, PLAIN, Maker, Setting, Task, plain, private
from benchmarks.rivals import OPACUS

TASKS = (
    Task(model="model3", shape=(3, 32, 32), batch=256),
    Task(model="mnist-cnn", shape=(1, 28, 28), batch=256),
    Task(model="resnet20", shape=(3, 32, 32), batch=64),
    Task(model="transformer", shape=(64, 128), batch=32),
    Task(model="lstm", shape=(32, 64), batch=64),
)
TARGET = 1.3  # the most that a private step may need, in plain steps
HOOKS = "Opacus hooks"
MAKERS: dict[str, Maker] = {PLAIN: plain, ASSAY: private, HOOKS: OPACUS[HOOKS]}
OURS = (PLAIN, ASSAY)
_LATER = 4
_RUNS = 3  # what the allocator keeps differs by some percent from one to the next


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Memory of one contestant, in MiB: peaks above what stood before the first step, and that."""

    before: float
    first: float
    later: float

    @property
    def highest(self) -> float:
        """The peak of the whole run."""
        return max(self.first, self.later)


@dataclass(frozen=True)
class Peaks:
    """The peaks of every contestant in one task."""

    task: Task
    of: dict[str, Peak]

    def over_plain(self, name: str) -> float:
        """How many times as much as plain training."""
        return self.of[name].highest / self.of[PLAIN].highest

    @property
    def met(self) -> bool:
        """Whether Assay stays within the target."""
        return self.over_plain(ASSAY) <= TARGET

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "model": self.task.model,
            "batch": self.task.batch,
            "mebibytes": {name: asdict(peak) for name, peak in self.of.items()},
            "over_plain": self.over_plain(ASSAY),
            "target": TARGET,
            "met": self.met,
        }


def _highest() -> float:
    """The most resident memory since `_forget`, in MiB. Not `ru_maxrss`: a process inherits that from its parent."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def _forget() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak_here(name: str, task: Task) -> Peak:
    """What one contestant needs; for a fresh process."""
    torch.set_num_threads(report.THREADS)
    model, data = task.build(), task.data()
    _forget()
    before = _highest()
    contestant = MAKERS[name](model, data, Setting())
    contestant.step(*next(contestant.batches))
    first = _highest()
    _forget()
    for _ in range(_LATER):
        contestant.step(*next(contestant.batches))
    return Peak(before=before, first=first - before, later=_highest() - before)


def measure(task: Task, names: Sequence[str], runs: int = _RUNS) -> Peaks:
    """Every contestant, in processes of its own; the lowest peak counts."""
    env = {**os.environ, "OMP_NUM_THREADS": str(report.THREADS)}
    peaks = {}
    for name in names:
        command = [sys.executable, "-m", "benchmarks.memory", "--only", name, "--task", json.dumps(asdict(task))]
        done = [subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True) for _ in range(runs)]
        peaks[name] = min((Peak(**json.loads(one.stdout)) for one in done), key=lambda peak: peak.highest)
    return Peaks(task, peaks)


def run() -> list[Peaks]:
    """Every task; Opacus in the first and the last."""
    return [measure(task, list(MAKERS) if task in (TASKS[0], TASKS[-1]) else OURS) for task in TASKS]


def rendered(found: Sequence[Peaks]) -> str:
    """The table as text."""
    rows = [
        [
            f"{peaks.task.model} ({peaks.task.batch}), {name}",
            f"{peak.highest:.0f}",
            f"{peaks.over_plain(name):.2f}",
            f"{peak.first:.0f}",
            f"{peak.later:.0f}",
            f"{peak.before + peak.highest:.0f}",
            "" if name != ASSAY else "yes" if peaks.met else "no",
        ]
        for peaks in found
        for name, peak in peaks.of.items()
    ]
    title = "Peak memory above model and data (and of the whole process), MiB"
    head = ["", "peak", "/ plain", "first step", "later steps", "process", f"within {TARGET}"]
    return "\n".join([title, "", report.table(head, rows)])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description="peak memory of a training step")
    parser.add_argument("--only", choices=list(MAKERS), help="measure one contestant, in this process; prints JSON")
    parser.add_argument("--task", type=Task.from_json, default=TASKS[0], help="with --only: the task, as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(asdict(peak_here(options.only, options.task))))
    elif options.json:
        print(json.dumps({"machine": report.machine(), "memory": [peaks.to_json() for peaks in run()]}, indent=2))
    else:
        print(f"{report.described()}\n\n{rendered(run())}")


if __name__ == "__main__":
    main()
