"""The stage of a run: charged first, released once, and kept with the run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from assay.accounting.ledger import Ledger
from assay.data.records import Records
from assay.distributed.world import ALONE
from assay.errors import AssayError
from assay.methods.plan import Plan
from assay.methods.stage import Released, Stage, event_of
from assay.randomness.streams import Randomness, Within, fresh_source
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory
from assay.training.step import PrivateStep


def release_stage(
    stage: Stage,
    *,
    model: nn.Module,
    records: Records,
    ledger: Ledger,
    randomness: Randomness,
    device: torch.device,
    directory: RunDirectory | None,
) -> Released:
    """What the stage releases: charged first and kept with the run. After a crash, what the run has kept.

    With a seed the same draws are made again, and an earlier charge covers them. Without one, a charge whose answer is
    not on disk is lost: somebody may have seen that answer.

    Raises:
        AssayError: The directory holds a release that the ledger was never charged for.
    """
    event = event_of(stage)
    if directory is not None and directory.stage.exists():
        if not ledger.paid(event):
            raise AssayError(
                f"{directory.stage} was never charged in {directory.ledger}: the ε of this run is not known"
            )
        return kept_release(directory)
    ledger.pay(event, draws=randomness.fingerprint)
    found = stage.release(model, records, Within(fresh_source(randomness), "stage"), device, train_privately)
    if directory is not None:
        rest = {name: value for name, value in found.items() if name not in stage.kept}
        if rest:
            checkpoint.save(directory.records, rest, {}, directory.digest())
        stage.draw(found, directory.path)
        # last: if this file exists, the release is complete
        checkpoint.save(directory.stage, {name: found[name] for name in stage.kept}, {}, directory.digest())
    return found


def kept_release(directory: RunDirectory) -> Released:
    """What the directory of a run holds of its release."""
    there = [path for path in (directory.stage, directory.records) if path.exists()]
    run = directory.digest()
    return {name: value for path in there for name, value in checkpoint.load(path, run)[0].items()}


def train_privately(
    network: nn.Module, records: Records, plan: Plan, optimizer: torch.optim.Optimizer, randomness: Randomness
) -> None:
    """Train a classifier that a stage needs, under its own plan. The stage has charged that plan's event as a whole."""
    step = PrivateStep(network, plan, randomness=randomness, world=ALONE)  # only the leader releases a stage
    for x, y in step.batches(records):
        if step.backward(F.cross_entropy(network(x), y, reduction="none")):
            optimizer.step()
    step.close()
