"""On an accelerator the host must not wait for the device: a step reads one number, whether all norms are finite.

No accelerator is needed to see that. Whatever makes the host read a tensor is an operation of its own, and so is
whatever has an output whose size depends on values.
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from assay import Plan, PrivateStep
from assay.data.sampling import FullBatch
from assay.randomness.streams import Seeded

RECORDS = 6
WAITS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim", "bincount")


class Waits(TorchDispatchMode):
    """The operations for which the host would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        name = func.overloadpacket.__name__
        if name in WAITS:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def attending() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3))


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), (5,)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 64, 3), nn.Flatten(), nn.Linear(256, 3)
        ),
        (2, 6, 6),
    ),
    "transformer": (attending, (3, 8)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3)), (3,)),
}
ONCE_MORE = {"embedding": 1}  # which words a batch has


def waits(name: str, records: int) -> tuple[list[list[str]], list[int]]:
    """What the host would wait for in each later step, and how many operations each has."""
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make()
    x = torch.randint(9, (records, *shape)) if name == "embedding" else torch.randn(records, *shape)
    data = TensorDataset(x, torch.randint(3, (records,)))
    plan = Plan(
        records=records, batch_size=records, steps=25, noise_multiplier=0.0, delta=1e-3, sampling=FullBatch
    )  # without noise, which an accelerator draws itself
    step = PrivateStep(model, plan, randomness=Seeded(0))
    found, counts = [], []
    for i, (x, y) in enumerate(step.batches(data)):
        with Waits() as seen:
            step.backward(F.cross_entropy(model(x), y, reduction="none"))
        if i >= 18:  # the first batches are checked
            found.append(seen.seen)
            counts.append(seen.operations)
    step.close()
    return found, counts


@pytest.mark.parametrize("name", MODELS)
def test_the_host_waits_once_in_a_step(name: str) -> None:
    found, _ = waits(name, RECORDS)
    assert statistics.median(map(len, found)) == 1 + ONCE_MORE.get(name, 0), found


@pytest.mark.parametrize("name", MODELS)
def test_no_operation_is_repeated_for_every_record(name: str) -> None:
    few, many = (statistics.median(waits(name, records)[1]) for records in (RECORDS, 8 * RECORDS))
    assert many <= few
