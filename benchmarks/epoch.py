"""Time of a whole epoch, sampling and loading included. `python -m benchmarks.epoch [--quick] [--model NAME]`

What a user waits for: Assay's `PrivateStep.batches` with Poisson sampling against Opacus's `PrivacyEngine.make_private`
with its own data loader (its fastest modes), and plain training with a shuffling `DataLoader`. All train on the same
records in memory, one thread, an epoch each in turn, in an order that changes; the fastest epoch counts.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import assay
from assay.gradients.clipping import Flat
from benchmarks import report
from benchmarks.contestants import ASSAY, CLIP, PLAIN, Setting, Task, sgd
from benchmarks.rivals import OPACUS_LOADED

Epoch = Callable[[], None]

# The model, and how many records an epoch has: with the checks of its first four batches, a shorter one says little.
TASKS = {
    Task(model="logistic", shape=(1, 28, 28), batch=256): 61440,
    Task(model="mlp", shape=(1, 28, 28), batch=256): 61440,
    Task(model="mnist-cnn", shape=(1, 28, 28), batch=256): 15360,
    Task(model="model3", shape=(3, 32, 32), batch=64): 4096,
    Task(model="resnet20", shape=(3, 32, 32), batch=64): 4096,
}
TARGET = 1.05  # the most that a private epoch may take, in plain ones
_MANY = 10**6


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """The fastest epoch of each, in seconds."""

    task: Task
    records: int
    seconds: dict[str, float]

    @property
    def best_rival(self) -> str | None:
        """The fastest mode of Opacus, if any was measured."""
        return min((n for n in OPACUS_LOADED if n in self.seconds), key=self.seconds.__getitem__, default=None)

    def over(self, name: str, base: str) -> float:
        """How many times as long one takes as another."""
        return self.seconds[name] / self.seconds[base]

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "model": self.task.model,
            "batch": self.task.batch,
            "records": self.records,
            "seconds": self.seconds,
            "over_plain": self.over(ASSAY, PLAIN),
            "target": TARGET,
            "best_opacus": self.best_rival,
            "over_best_opacus": None if self.best_rival is None else self.over(ASSAY, self.best_rival),
        }


def _records(task: Task, records: int) -> TensorDataset:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(records, *task.shape, generator=source)
    return TensorDataset(x, torch.randint(task.classes, (records,), generator=source))


def _plain(model: nn.Module, data: TensorDataset, batch: int) -> Epoch:
    loader = DataLoader(data, batch_size=batch, shuffle=True, drop_last=True)
    optimizer = sgd(model, Setting())

    def epoch() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return epoch


def _assay(model: nn.Module, data: TensorDataset, batch: int) -> Epoch:
    plan = assay.Plan(
        records=len(data),
        batch_size=batch,
        steps=_MANY,
        noise_multiplier=1.0,
        delta=1e-5,
        clip=Flat(bound=CLIP),
    )
    step, optimizer = assay.PrivateStep(model, plan), sgd(model, Setting())

    def epoch() -> None:
        for x, y in step.batches(data, steps=len(data) // batch):
            if step.backward(F.cross_entropy(model(x), y, reduction="none")):
                optimizer.step()

    return epoch


def measure(task: Task, records: int, rounds: int, *, alone: bool = False) -> Epochs:
    """Every contestant, interleaved in this process; the first epoch of each does not count."""
    data = _records(task, records)
    makers = {PLAIN: _plain, ASSAY: _assay, **({} if alone else OPACUS_LOADED)}
    epochs = {name: make(task.build(), data, task.batch) for name, make in makers.items()}
    fastest: dict[str, float] = {}
    order, shuffle = list(epochs), random.Random(0).shuffle
    for turn in range(rounds + 1):
        shuffle(order)
        for name in order:
            start = time.perf_counter()
            epochs[name]()
            seconds = time.perf_counter() - start
            if turn > 0:
                fastest[name] = min(seconds, fastest.get(name, seconds))
    return Epochs(task=task, records=records, seconds={name: fastest[name] for name in makers})


def run(rounds: int, models: list[str] | None = None, *, alone: bool = False) -> list[Epochs]:
    """Every model, or those named; `alone` leaves Opacus out."""
    torch.set_num_threads(report.THREADS)
    warnings.filterwarnings("ignore", message="Secure RNG turned off")
    chosen = {t: records for t, records in TASKS.items() if not models or t.model in models}
    return [measure(t, records, rounds, alone=alone) for t, records in chosen.items()]


def rendered(found: list[Epochs]) -> str:
    """The table as text."""
    head = ["an epoch / plain", "records", "plain, s", "Assay", "target", *OPACUS_LOADED]
    rows = [
        [
            f"{e.task.model} ({e.task.batch})",
            f"{e.records}",
            f"{e.seconds[PLAIN]:.2f}",
            f"{e.over(ASSAY, PLAIN):.2f}",
            f"{TARGET:.2f}",
            *(f"{e.over(name, PLAIN):.2f}" if name in e.seconds else "" for name in OPACUS_LOADED),
        ]
        for e in found
    ]
    return report.table(head, rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.epoch", description="time of a whole epoch")
    parser.add_argument("--model", action="append", choices=[t.model for t in TASKS], help="only this model")
    parser.add_argument("--quick", action="store_true", help="two epochs each")
    parser.add_argument("--alone", action="store_true", help="without Opacus")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = run(2 if options.quick else 8, options.model, alone=options.alone)
    if options.json:
        print(json.dumps({"machine": report.machine(), "epoch": [e.to_json() for e in found]}, indent=2))
    else:
        print(f"{report.described()}\n\n{rendered(found)}")


if __name__ == "__main__":
    main()
