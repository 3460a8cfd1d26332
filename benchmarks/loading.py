"""What private training costs where pictures must be decoded. `python -m benchmarks.loading`

An epoch over 5,000 JPEG files of 640 × 480 pixels, prepared to 64 × 64, with two worker processes: once in a plain
loop over a torch DataLoader, once by `PrivateStep.batches`. Both train the same small network. The two take turns, and
the fastest epoch of each counts. The seconds of processors, workers included, tell what other programs on the machine
do not change.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import assay
from assay.data.folders import Pictures, PictureSchema

TARGET = 1.15  # of a plain epoch
FILES, BATCH, WORKERS, TURNS = 5000, 100, 2, 5


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """Seconds of the fastest epoch, and of all processors in the epoch that took the fewest."""

    files: int
    workers: int
    plain: float
    private: float
    plain_cpu: float
    private_cpu: float

    @property
    def ratio(self) -> float:
        """Of the private epoch to the plain one."""
        return self.private / self.plain


def timed(epoch: Callable[[Pictures, int], None], records: Pictures, workers: int) -> tuple[float, float]:
    """Seconds by the clock, and of processors."""
    start, used = time.perf_counter(), _processors()
    epoch(records, workers)
    return time.perf_counter() - start, _processors() - used


def _processors() -> float:
    own, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + theirs.ru_utime + theirs.ru_stime


def write_files(root: Path, count: int) -> Pictures:
    """Pictures of noise on a slope, which compress as photographs do."""
    rng, files, labels = np.random.RandomState(0), [], []
    slope = np.linspace(0, 200, 640)[None, :, None]
    noise = rng.normal(0, 20, (480, 1280, 3))
    for i in range(count):
        at = rng.randint(640)
        pixels = np.clip(slope + 20 * (i % 2) + noise[:, at : at + 640], 0, 255).astype(np.uint8)
        files.append(root / f"{i}.jpg")
        Image.fromarray(pixels).save(files[-1])
        labels.append(i % 2)
    return Pictures(files, labels, PictureSchema(classes=("a", "b"), size=64))


def network() -> nn.Module:
    """One convolution and one linear layer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 30 * 30, 2))


def plain_epoch(records: Pictures, workers: int) -> None:
    """An epoch without privacy."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(records, BATCH, shuffle=True, num_workers=workers):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def private_epoch(records: Pictures, workers: int) -> None:
    """A private epoch."""
    model = network()
    steps = round(len(records) / BATCH)
    plan = assay.Plan(records=len(records), batch_size=BATCH, steps=steps, noise_multiplier=1.0, delta=1e-5)
    step = assay.PrivateStep(model, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in step.batches(records, num_workers=workers):
        step.backward(F.cross_entropy(model(x), y, reduction="none"))
        optimizer.step()
    step.close()


def run(files: int = FILES, workers: int = WORKERS, turns: int = TURNS) -> Epochs:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        records = write_files(Path(folder), files)
        plain_epoch(records, workers)  # reads the files once
        turned = [[timed(epoch, records, workers) for epoch in (plain_epoch, private_epoch)] for _ in range(turns)]
    (plain, plain_cpu), (private, private_cpu) = (map(min, *one) for one in zip(*turned, strict=True))
    return Epochs(
        files=files, workers=workers, plain=plain, private=private, plain_cpu=plain_cpu, private_cpu=private_cpu
    )


def rendered(found: Epochs) -> str:
    """For people."""
    return (
        f"{found.files:,} JPEG files, {found.workers} workers: plain {found.plain:.2f} s, private "
        f"{found.private:.2f} s, "
        f"ratio {found.ratio:.3f} (at most {TARGET}); of processors plain {found.plain_cpu:.2f} s, private "
        f"{found.private_cpu:.2f} s, ratio {found.private_cpu / found.plain_cpu:.3f}"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = run(options.files, options.workers)
    print(json.dumps({**asdict(found), "ratio": found.ratio}) if options.json else rendered(found))


if __name__ == "__main__":
    main()
