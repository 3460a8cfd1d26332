"""Two worlds: trained many times with one record and many times without it.

The oldest audit and the one that assumes least: every run is a trial of its own, so that error counts are binomial whatever happens inside.
It is dear (hundreds of runs for an ε of 3) and blunt where there are few runs: n in each world cannot show more than log(n/4) or so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset

from assay.audit.canaries import PlaceholderRecords
from assay.audit.persons import canary_rows, with_canaries
from assay.audit.scores import from_scores
from assay.audit.training import TrainingAudit, losses_of, with_more
from assay.data.units import Ids
from assay.errors import ConfigError
from assay.methods.plan import Plan
from assay.methods.stage import Loss
from assay.models import copies
from assay.runs.result import cross_entropy
from assay.training.loop import Insertion, train_again
from assay.training.settings import Training, pick_device


def two_worlds(
    score: Callable[[bool, int], float], *, runs: int, delta: float, confidence: float = 0.95
) -> TrainingAudit:
    """Audit anybody's training: `score(included, i)` trains run i with the record or without it, on randomness of its own, and
    says how much the outcome looks like one with it (any number, higher for more).

    Half of the scores choose the threshold, the other half is counted.
    """
    if runs < 4:
        raise ConfigError("worlds", runs, "a whole number of runs in each world, 4 or above")
    scores = np.array([[score(included, i) for included in (True, False)] for i in range(runs)])
    return _audited(scores[:, 0], scores[:, 1], delta, confidence)


def trained_in_two_worlds(
    model: nn.Module,
    data: TensorDataset,
    plan: Plan,
    canary: tuple[Tensor, Tensor],
    *,
    runs: int,
    loss: Loss = cross_entropy,
    training: Training | None = None,
    confidence: float = 0.95,
    steps: int | None = None,
    units: Ids | None = None,
) -> TrainingAudit:
    """Train copies of `model` on `data` with the canary and without it; the score is how low its loss ends.

    Args:
        model: The model with its initial weights, which the attacker knows: all runs begin with them. It stays as it is.
        data: The records of the run.
        plan: The run's own plan.
        canary: One record, (x, y).
        runs: How many in each world.
        loss: `loss(output, target)` gives one value for each record.
        training: The run's own settings. A seed gives each run a seed of its own.
        confidence: With which each of the two bounds holds.
        steps: How many of the plan's steps the run took, if it ended early. All by default.
        units: Whose each record is, where a person is the unit; the canary is then a person with copies of the record.

    Raises:
        ConfigError: For too few runs, or for a plan that cannot be audited so.
    """
    training = (training or Training()).at_batch(plan.batch_size)
    if plan.stage is not None and not plan.stage.takes_fewer:
        raise ConfigError(
            *plan.stage_option,
            "a release before training that takes one record fewer than planned, to train without the canary; "
            "use --canaries with --black-box, or audit one step",
        )
    device = pick_device(training.device)
    alone = TensorDataset(*(part.unsqueeze(0) for part in canary))
    rows = canary_rows(plan)
    joined = TensorDataset(
        *(torch.cat([t, c.repeat_interleave(rows, 0)]) for t, c in zip(data.tensors, alone.tensors, strict=True))
    )
    both = with_canaries(units, plan, 1)
    plan = with_more(plan, plan.records + rows)

    def score(included: bool, i: int) -> float:
        own = training if training.seed is None else replace(training, seed=(training.seed + 2 * i + included) % 2**64)
        records, insertion = (joined, Insertion()) if included else (data, _Absent(rows))
        begun = copies.of_model(model)
        if begun is None:
            raise ConfigError("model", type(model).__name__, "a model that can be copied, to train it many times")
        settings: dict[str, Any] = {"plan": plan, "loss": loss, "training": own, "steps": steps, "units": both}
        train_again(begun, records, **settings, insertion=insertion)
        return -float(losses_of(begun, alone, loss, device)[0])

    return two_worlds(score, runs=runs, delta=plan.delta, confidence=confidence)


class _Absent(Insertion):
    """A record that counts for nothing holds the canary's place.

    The denominator is a constant: one that followed the number of records would tell the worlds apart by itself. A
    stage does not see the place at all.
    """

    def __init__(self, rows: int = 1) -> None:
        self._rows = rows

    def records(self, data: Dataset[Any], device: torch.device) -> PlaceholderRecords:
        return _Counted(data, self._rows, device)

    def loss(self, own: Loss) -> Loss:
        return lambda output, target: own(output, target[0]) * target[1]


class _Counted(PlaceholderRecords):
    """Targets with a factor beside each: 0 for a placeholder, 1 for a record."""

    def gather(self, index: Tensor) -> Any:
        inputs, targets = super().gather(index)
        counts = torch.ones(len(index), device=self.device)
        counts[self.places] = 0.0
        return [inputs, (targets, counts)]

    def zeros(self, count: int = 1) -> Any:
        return pytree.tree_map(torch.zeros_like, self.gather(torch.zeros(count, dtype=torch.long)))


def _audited(
    included: NDArray[np.float64], excluded: NDArray[np.float64], delta: float, confidence: float
) -> TrainingAudit:
    plain = from_scores(included, excluded, delta=delta, confidence=confidence, independent=True)
    gaussian = from_scores(included, excluded, delta=delta, confidence=confidence, independent=True, assume="gaussian")
    return TrainingAudit(plain=plain, gaussian=gaussian, included=included, excluded=excluded)
