"""What privacy's bookkeeping costs in a step of a model of ten million parameters. `python -m benchmarks.upkeep`

A transformer of 10.6 million parameters trains with everything a real run has: a ledger on disk, charged before each
release, a released training loss, a TensorBoard log. Timed inside the run are the release (paying the ledger, drawing
and adding the noise, averaging) and the logging; the rest of a step is forward, backward, clipping and the optimizer.
Of the whole step and of each part the fastest of many counts, as in the other benchmarks: what is slower was held up by
something else on the machine. For comparison: as many normal numbers of torch's own generator, which nobody looks at,
adds up or pays for. Noise costs the same at every batch size, the rest of a step does not: hence a row for each of
several.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import assay
from assay.data.sampling import FullBatch
from assay.gradients.clipping import Flat
from assay.loggers import logging
from assay.runs.result import Progress
from assay.training.meter import MeanLoss
from benchmarks import report
from benchmarks.contestants import CLIP, Setting, Transformer, sgd

TARGET = 0.03  # the most that release and logging may take of a step
POSITIONS, WIDTH, LAYERS, HEADS, CLASSES = 64, 384, 6, 6, 2
STEPS = {32: 16, 64: 12, 128: 8}  # that count, by batch size


class _Timed(assay.PrivateStep):
    """A private step that knows how long its latest release took."""

    seconds = 0.0

    def _release(self) -> None:
        start = time.perf_counter()
        super()._release()
        self.seconds = time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class Upkeep:
    """Seconds of the fastest step, release and logging, and of as many numbers of torch's generator as parameters."""

    batch: int
    parameters: int
    step: float
    release: float
    logging: float
    numbers: float

    @property
    def share(self) -> float:
        """Release and logging as a part of the step."""
        return (self.release + self.logging) / self.step


def _progress(step: assay.PrivateStep, loss: float | None) -> Progress:
    return Progress(
        step=step.taken,
        steps=step.limit,
        epoch=step.taken,
        loss=loss,
        epsilon=step.epsilon(),
        accuracy=None,
        epoch_end=True,
    )


def run() -> list[Upkeep]:
    """All batch sizes."""
    return [measured(batch, steps) for batch, steps in STEPS.items()]


def measured(batch: int, steps: int) -> Upkeep:
    """Train for some steps.

    The first, in which the engine proves itself, does not count, nor the last, whose ε is known beforehand.
    """
    torch.set_num_threads(report.THREADS)
    torch.manual_seed(0)
    model = Transformer(WIDTH, CLASSES, layers=LAYERS, heads=HEADS)
    data = torch.utils.data.TensorDataset(torch.randn(batch, POSITIONS, WIDTH), torch.randint(CLASSES, (batch,)))
    plan = assay.Plan(
        records=batch,
        batch_size=batch,
        steps=steps + 2,
        noise_multiplier=1.0,
        delta=1e-3,
        clip=Flat(bound=CLIP),
        sampling=FullBatch,
    )
    optimizer, loss = sgd(model, Setting()), MeanLoss()
    whole, released, logged, drawn = [], [], [], []
    room = [torch.empty_like(p) for p in model.parameters()]
    with tempfile.TemporaryDirectory() as name, logging("tensorboard", Path(name)) as log:
        step = _Timed(model, plan, ledger=Path(name) / "ledger.jsonl", side=[loss])
        begun = time.perf_counter()
        for x, y in step.batches(data):
            step.backward(F.cross_entropy(model(x), y, reduction="none"))
            optimizer.step()
            before_log = time.perf_counter()
            log(_progress(step, loss.value))
            end = time.perf_counter()
            whole.append(end - begun)
            released.append(step.seconds)
            logged.append(end - before_log)
            for numbers in room:
                numbers.normal_()
            begun = time.perf_counter()
            drawn.append(begun - end)
        step.close()
    count = sum(p.numel() for p in model.parameters())
    return Upkeep(
        batch=batch,
        parameters=count,
        step=min(whole[1:-1]),
        release=min(released[1:-1]),
        logging=min(logged[1:-1]),
        numbers=min(drawn),
    )


def rendered(found: list[Upkeep]) -> str:
    """The table as text."""
    rows = [
        [
            str(one.batch),
            f"{1e3 * one.step:.0f}",
            f"{1e3 * one.release:.1f}",
            f"{1e3 * one.logging:.1f}",
            f"{one.share:.2%}",
            "met" if one.share <= TARGET else "not met",
            f"{1e3 * one.numbers:.1f}",
        ]
        for one in found
    ]
    title = f"transformer of {found[0].parameters / 1e6:.1f} M parameters, {POSITIONS} positions; milliseconds"
    kept = ["ledger, noise, average", "logging", "together", f"target {TARGET:.0%}"]
    head = ["batch", "whole step", *kept, "torch's numbers alone"]
    return "\n".join([title, "", report.table(head, rows)])


def to_json(found: list[Upkeep]) -> list[dict[str, Any]]:
    """For programs."""
    return [asdict(one) | {"share": one.share} for one in found]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upkeep", description="what noise and ledger cost")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = run()
    if options.json:
        print(json.dumps({"machine": report.machine(), "upkeep": to_json(found)}, indent=2))
    else:
        print(f"{report.described()}\n\n{rendered(found)}")


if __name__ == "__main__":
    main()
