"""What exact noise costs, over floating-point noise. `python -m benchmarks.exact [--quick]`

Everything else is the same in both: model, batch, clipping bound, optimizer. One thread, both in one process, a step
each in every round, in an order that changes; the fastest of many rounds counts (`benchmarks.timing`).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import report
from benchmarks.contestants import Private, Task, private
from benchmarks.timing import Effort, add_effort, effort_of, timed

# The most that a step with exact noise may take, in private steps with floating-point noise.
TARGETS = {Task(model="model3", shape=(3, 32, 32), batch=64): 2.0}
USUAL, EXACT = "floating-point noise", "exact noise"


@dataclass(frozen=True, kw_only=True)
class Price:
    """A step of each in milliseconds."""

    task: Task
    target: float
    rounds: int
    milliseconds: dict[str, float]

    @property
    def times(self) -> float:
        """How many times as long the step with exact noise takes."""
        return self.milliseconds[EXACT] / self.milliseconds[USUAL]

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "model": self.task.model,
            "batch": self.task.batch,
            "rounds": self.rounds,
            "milliseconds": self.milliseconds,
            "over_usual": self.times,
            "target": self.target,
            "met": self.times <= self.target,
        }


def run(effort: Effort) -> list[Price]:
    """Every model."""
    torch.set_num_threads(report.THREADS)
    prices = []
    for task, target in TARGETS.items():
        milliseconds, rounds = timed(task, {USUAL: private, EXACT: Private(exact=True)}, effort)
        prices.append(Price(task=task, target=target, rounds=rounds, milliseconds=milliseconds))
    return prices


def rendered(prices: list[Price]) -> str:
    """The table as text."""
    rows = [
        [
            p.task.label,
            str(p.rounds),
            *(f"{p.milliseconds[name]:.1f}" for name in (USUAL, EXACT)),
            f"{p.times:.2f}",
            f"{p.target:.2f}",
            "yes" if p.times <= p.target else "no",
        ]
        for p in prices
    ]
    return report.table(["a step, ms", "rounds", USUAL, EXACT, "times", "target", "met"], rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact", description="what exact noise costs")
    add_effort(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = run(effort_of(options))
    if options.json:
        print(json.dumps({"machine": report.machine(), "exact": [price.to_json() for price in found]}, indent=2))
    else:
        print(f"{report.described()}\n\n{rendered(found)}")


if __name__ == "__main__":
    main()
