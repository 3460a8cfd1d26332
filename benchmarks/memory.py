"""Peak memory of a step: plain, private, and private with Opacus's hooks. `python -m benchmarks.memory`

Each contestant runs in a fresh process. Counted is what the process's resident memory rose by, at its peak, after model
and data had been built: activations, gradients, and whatever the first step does once (Assay's proof). Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from benchmarks.contestants import Maker, Setting, Task, plain, private
from benchmarks.rivals import OPACUS

TASK = Task(model="model3", shape=(3, 32, 32), batch=256)
TARGET = 1.5  # the most that a private step may need, in plain steps
PLAIN, ASSAY, HOOKS = "plain", "Assay", "Opacus hooks"
MAKERS: dict[str, Maker] = {PLAIN: plain, ASSAY: private, HOOKS: OPACUS[HOOKS]}
_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peak memory of each contestant above what model and data take, in MiB."""

    mebibytes: dict[str, float]

    def over_plain(self, name: str) -> float:
        """How many times as much as plain training."""
        return self.mebibytes[name] / self.mebibytes[PLAIN]

    @property
    def met(self) -> bool:
        """Whether Assay stays within the target."""
        return self.over_plain(ASSAY) <= TARGET

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "model": TASK.model,
            "batch": TASK.batch,
            "mebibytes": self.mebibytes,
            "over_plain": self.over_plain(ASSAY),
            "target": TARGET,
            "met": self.met,
        }


def _peak() -> float:
    """The most resident memory since the last `_forget_peak`, in MiB.

    Not `ru_maxrss`, which a child inherits from the process that started it.
    """
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak_here(name: str) -> float:
    """What one contestant needs; for a fresh process."""
    torch.set_num_threads(report.THREADS)
    model, data = TASK.build(), TASK.data()
    _forget_peak()
    before = _peak()
    contestant = MAKERS[name](model, data, Setting())
    for _ in range(_STEPS):
        x, y = next(contestant.batches)
        contestant.step(x, y)
    return _peak() - before


def run() -> Peaks:
    """Every contestant, one process each."""
    env = {**os.environ, "OMP_NUM_THREADS": str(report.THREADS)}
    mebibytes = {}
    for name in MAKERS:
        command = [sys.executable, "-m", "benchmarks.memory", "--only", name]
        done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
        mebibytes[name] = float(done.stdout)
    return Peaks(mebibytes=mebibytes)


def rendered(peaks: Peaks) -> str:
    """The table as text."""
    rows = [[name, f"{size:.0f}", f"{peaks.over_plain(name):.2f}"] for name, size in peaks.mebibytes.items()]
    title = f"{TASK.model}, batch {TASK.batch}, peak memory above model and data"
    verdict = f"target {TARGET}: {'met' if peaks.met else 'not met'}"
    return "\n".join([title, "", report.table(["", "MiB", "/ plain"], rows), verdict])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description="peak memory of a training step")
    parser.add_argument(
        "--only", choices=list(MAKERS), help="print the MiB of one contestant, measured in this process"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.only:
        print(peak_here(options.only))
    elif options.json:
        print(json.dumps({"machine": report.machine(), "memory": run().to_json()}, indent=2))
    else:
        print(f"{report.described()}\n\n{rendered(run())}")


if __name__ == "__main__":
    main()
