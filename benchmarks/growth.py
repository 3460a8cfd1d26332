"""How the cost of a step grows. `python -m benchmarks.growth [--quick] [--time-only] [--draw FILE.png]`

Time (interleaved, one thread) and peak memory (each in a process of its own) of plain and private steps against the
batch size, the width and depth of a model and the length of a sequence; the time to charge a step and to ask for ε
against the number of steps charged before; and the time of a private step of the same batch on one and more ranks,
started by torchrun.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import assay
from assay.accounting.ledger import Ledger
from assay.data.sampling import FullBatch
from assay.gradients.clipping import Flat
from benchmarks import memory, report
from benchmarks.contestants import ASSAY, CLIP, PLAIN, Setting, Task, plain, private, sgd
from benchmarks.timing import Effort, timed

FULL = Effort(seconds=12, least=5, most=300)
QUICK = Effort(seconds=2, least=3, most=50)
RANKED = Task(model="model3", shape=(3, 32, 32), batch=64)
_RANK_STEPS = 12
_ABREAST = 3  # panels of the picture
_AT_ONCE, _AGAIN = 500, 5  # steps that are charged together, as runs do, and charges that are timed


def _parameters(task: Task) -> float:
    return float(sum(p.numel() for p in task.build().parameters()))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Tasks that differ in one thing, and how much of it each has."""

    name: str
    tasks: Sequence[Task]
    amount: Callable[[Task], float]


CURVES = (
    Curve(
        name="batch size (MLP)",
        tasks=[Task(model="mlp", shape=(1, 28, 28), batch=2**b) for b in range(4, 14)],
        amount=lambda task: float(task.batch),
    ),
    Curve(
        name="batch size (model3)",
        tasks=[Task(model="model3", shape=(3, 32, 32), batch=b) for b in (16, 32, 64, 128)],
        amount=lambda task: float(task.batch),
    ),
    Curve(
        name="parameters (transformer, batch 16, 32 positions)",
        tasks=[Task(model="transformer", shape=(32, w), batch=16) for w in (64, 128, 256, 512)],
        amount=_parameters,
    ),
    Curve(
        name="layers (transformer of width 128, batch 16, 32 positions)",
        tasks=[Task(model="transformer", shape=(32, 128), batch=16, layers=n) for n in (1, 2, 4, 8, 16)],
        amount=lambda task: float(task.layers),
    ),
    Curve(
        name="sequence length (transformer of width 128, batch 16)",
        tasks=[Task(model="transformer", shape=(t, 128), batch=16) for t in (16, 64, 256, 1024)],
        amount=lambda task: float(task.shape[0]),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Grown:
    """What was measured along one curve: milliseconds and MiB by contestant."""

    name: str
    amounts: list[float] = field(default_factory=list)
    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    mebibytes: dict[str, list[float]] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """Private over plain, where both were measured."""
        if PLAIN not in self.milliseconds:
            return []
        return [a / b for a, b in zip(self.milliseconds[ASSAY], self.milliseconds[PLAIN], strict=True)]


def measure(curve: Curve, effort: Effort, *, time_only: bool) -> Grown:
    """Every point of a curve."""
    grown = Grown(name=curve.name)
    for task in curve.tasks:
        grown.amounts.append(curve.amount(task))
        steps, _ = timed(task, {PLAIN: plain, ASSAY: private}, effort)
        for name in (PLAIN, ASSAY):
            grown.milliseconds.setdefault(name, []).append(steps[name])
        if time_only:
            continue
        peaks = memory.measure(task, memory.OURS, runs=1)
        for name in (PLAIN, ASSAY):
            grown.mebibytes.setdefault(name, []).append(peaks.of[name].highest)
    return grown


def charged() -> Grown:
    """One more charge in a ledger on disk, and the question for ε after it, by the steps that it holds."""
    grown = Grown(name="steps charged before", milliseconds={"charge": [], "epsilon": []})
    plan = assay.Plan(records=60_000, batch_size=256, steps=2 * 10**6, noise_multiplier=1.0, delta=1e-5)
    with tempfile.TemporaryDirectory() as name:
        ledger = Ledger(Path(name) / "ledger.jsonl", delta=plan.delta, adjacency=plan.adjacency, ceiling=None)
        segment, held = ledger.begin(plan.steps_event, plan.steps), 0
        for steps in (10, 10**2, 10**3, 10**4, 10**5, 10**6):
            for at in range(held + _AT_ONCE, steps, _AT_ONCE):
                segment.charge(at)
            charges, answers = [], []
            held = steps + _AGAIN
            for at in range(steps, held):
                start = time.perf_counter()
                segment.charge(at)
                between = time.perf_counter()
                ledger.epsilon()
                charges.append(between - start)
                answers.append(time.perf_counter() - between)
            grown.amounts.append(float(steps))
            grown.milliseconds["charge"].append(1e3 * min(charges))
            grown.milliseconds["epsilon"].append(1e3 * min(answers))
        ledger.close()
    return grown


def ranked(most: int) -> Grown:
    """A step of the same whole batch on 1 to `most` ranks."""
    grown = Grown(name=f"ranks ({RANKED.model}, batch {RANKED.batch} in all)")
    for ranks in range(1, most + 1):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        done = subprocess.run(
            [*launch, "-m", "benchmarks.growth", "--rank"],
            env={**os.environ, "OMP_NUM_THREADS": str(report.THREADS)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        grown.amounts.append(float(ranks))
        grown.milliseconds.setdefault(ASSAY, []).append(json.loads(done.stdout)["milliseconds"])
    return grown


def _rank() -> None:
    """One rank's part of `ranked`; the leader prints the fastest step."""
    torch.set_num_threads(report.THREADS)
    model, data = RANKED.build(), RANKED.data()
    plan = assay.Plan(
        records=RANKED.batch,
        batch_size=RANKED.batch,
        steps=_RANK_STEPS,
        noise_multiplier=1.0,
        delta=1e-3,
        clip=Flat(bound=CLIP),
        sampling=FullBatch,
    )
    step, optimizer, fastest = assay.PrivateStep(model, plan), sgd(model, Setting()), float("inf")
    for x, y in step.batches(data):
        start = time.perf_counter()
        step.backward(F.cross_entropy(model(x), y, reduction="none"))
        optimizer.step()
        fastest = min(fastest, time.perf_counter() - start)
    if step.world.leader:
        print(json.dumps({"milliseconds": 1e3 * fastest}))


def run(effort: Effort, *, time_only: bool = False) -> list[Grown]:
    """All curves."""
    torch.set_num_threads(report.THREADS)
    steps = [measure(curve, effort, time_only=time_only) for curve in CURVES]
    return [*steps, charged(), ranked(os.cpu_count() or 1)]


def rendered(found: Sequence[Grown]) -> str:
    """The tables as text."""
    return "\n\n".join(_rendered(grown) for grown in found)


def _rendered(grown: Grown) -> str:
    head, columns = [grown.name], [[f"{amount:,.0f}" for amount in grown.amounts]]
    for name, values in grown.milliseconds.items():
        head.append(f"{name}, ms")
        columns.append([f"{value:.3g}" for value in values])
    for name, values in grown.mebibytes.items():
        head.append(f"{name}, MiB")
        columns.append([f"{value:.0f}" for value in values])
    if not grown.ratios:
        return report.table(head, list(zip(*columns, strict=True)))
    head.append("time / plain")
    columns.append([f"{ratio:.2f}" for ratio in grown.ratios])
    spread = max(grown.ratios) / min(grown.ratios)
    return report.table(head, list(zip(*columns, strict=True))) + f"\nlargest ratio over smallest: {spread:.2f}"


def draw(found: Sequence[Grown], path: str) -> None:
    """The curves: private over plain time or, where nothing is plain, the time; and memory where it was measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [
        (g, {"private / plain": g.ratios} if g.ratios else g.milliseconds, "" if g.ratios else "ms") for g in found
    ]
    panels += [(g, g.mebibytes, "MiB") for g in found if g.mebibytes]
    rows = -(-len(panels) // _ABREAST)
    figure = Figure(figsize=(4 * _ABREAST, 3 * rows), layout="constrained")
    axes: Any = figure.subplots(rows, _ABREAST, squeeze=False)
    for at in axes.flat[len(panels) :]:
        at.axis("off")
    for at, (grown, values, unit) in zip(axes.flat, panels, strict=False):
        for name, heights in values.items():
            at.plot(grown.amounts, heights, marker="o", label=name)
        at.set(xscale="log", xlabel=grown.name, ylabel=unit)
        at.set_xticks(grown.amounts, [f"{amount:,.0f}" for amount in grown.amounts], rotation=45)
        at.set_xticks([], minor=True)
        if unit:
            at.set(yscale="log")
        else:
            at.set_ylim(bottom=0)
        at.legend()
    FigureCanvasAgg(figure).print_png(path)  # type: ignore[no-untyped-call]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="how the cost of a step grows")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--time-only", action="store_true", help="leave memory out")
    parser.add_argument("--draw", help="draw the curves into this PNG file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        _rank()
        return
    found = run(QUICK if options.quick else FULL, time_only=options.time_only)
    if options.draw:
        draw(found, options.draw)
    if options.json:
        print(json.dumps({"machine": report.machine(), "growth": [vars(grown) for grown in found]}, indent=2))
    else:
        print(f"{report.described()}\n\n{rendered(found)}")


if __name__ == "__main__":
    main()
