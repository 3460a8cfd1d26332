"""Ranks that would count one record twice. This file is also the script that they run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import AssayError, Plan, PrivateStep
from assay.distributed.world import world

RECORDS = 40


def tried(data: TensorDataset) -> str:
    """How many steps these ranks take, or why none."""
    model = nn.Linear(3, 2)
    world().align(model)
    plan = Plan(records=RECORDS, batch_size=8, steps=2, noise_multiplier=1.0, delta=1e-3)
    step = PrivateStep(model, plan)
    try:
        for (x,) in step.batches(data):
            step.backward(model(x).square().sum(1))
    except AssayError as error:
        return str(error)
    return f"{step.taken} steps"


def test_ranks_with_a_record_in_common_are_refused(tmp_path: Path) -> None:
    """A record that two ranks take moves a step's sum by 2C."""
    from distributed.launching import run_ranks

    run_ranks(2, Path(__file__), tmp_path, cwd=tmp_path)
    for rank in range(2):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert "the same records in the same order" in said["another order"]
        assert "shares without a record in common" in said["one half twice"]
        assert "shares without a record in common" in said["one record twice"]
        assert "shares without a record in common" in said["one record twice, mixed"]
        assert said["the same order"] == said["two halves"] == said["copies"] == "2 steps"


if __name__ == "__main__":
    records = torch.arange(3.0 * RECORDS).view(RECORDS, 3)
    rank, half = not world().leader, RECORDS // 2
    cases = {
        "the same order": records,
        "another order": records.flip(0) if rank else records,
        "two halves": records[half:] if rank else records[:half],
        "one half twice": records[:half],
        "one record twice": records[half - 1 : -1] if rank else records[:half],
        "one record twice, mixed": (records[half - 1 : -1] if rank else records[:half])[torch.randperm(half)],
        "copies": records.remainder(2)[half:] if rank else records.remainder(2)[:half],
    }
    found = {name: tried(TensorDataset(given)) for name, given in cases.items()}
    Path(sys.argv[1], f"{int(rank)}.json").write_text(json.dumps(found))
