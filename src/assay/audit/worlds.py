"""Two worlds: train many times with one record and many times without it.

This is the oldest audit and assumes the least: every run is a separate trial, so error counts are binomial whatever
happens inside. It is expensive (hundreds of runs for an ε of 3). With few runs it shows little: n in each world show at
most about log(n/4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from assay.accounting.epsilon import Adjacency
from assay.audit.bounds import epsilon_of_mu
from assay.audit.canaries import PlaceholderRecords
from assay.audit.independent import shift_lower
from assay.audit.persons import canary_rows, with_canaries
from assay.audit.result import Audit
from assay.audit.scores import GAUSSIAN, from_scores
from assay.audit.trained import TrainingAudit
from assay.audit.training import in_place_of_last, losses_of, replaces_records, with_more
from assay.data.persons import Ids
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
    """Audit anybody's training. All scores are counted, at several thresholds (see `from_scores`), and added up.

    Args:
        score: `score(included, i)` trains run i with the record or without it, on fresh randomness, and returns how
            much the outcome looks as if the record was there (any number, higher for more).
        runs: How many in each world.
        delta: δ.
        confidence: The probability that all bounds hold together.

    Returns:
        The bounds.

    Raises:
        ConfigError: There are too few runs.
    """
    if runs < 4:
        raise ConfigError("worlds", runs, "a whole number of runs in each world, 4 or above")
    scores = np.array([[score(included, i) for included in (True, False)] for i in range(runs)])
    return bound_worlds(scores[:, 0], scores[:, 1], delta=delta, confidence=confidence)


def bound_worlds(
    included: NDArray[np.float64], excluded: NDArray[np.float64], *, delta: float, confidence: float = 0.95
) -> TrainingAudit:
    """Bounds from the scores of runs with the record and without it. All of them hold together with this confidence.

    Args:
        included: A score for each run with the record; scores are independent, and higher where it looks included.
        excluded: A score for each run without it.
        delta: δ.
        confidence: The probability that all bounds hold together.

    Returns:
        The bounds.
    """
    each = 1 - (1 - confidence) / 3
    plain = from_scores(included, excluded, delta=delta, confidence=each, independent=True)
    gaussian = from_scores(included, excluded, delta=delta, confidence=each, independent=True, assume="gaussian")
    mu = shift_lower(included, excluded, significance=1 - each)
    sums = Audit(
        epsilon=epsilon_of_mu(mu, delta),
        delta=delta,
        confidence=each,
        estimator="sums of scores, Gaussian family",
        canaries=len(included) + len(excluded),
        how=f"scores of {len(included)} runs with the record and {len(excluded)} without it: shifted by at least"
        f" μ = {mu:.4g} standard deviations",
        assumption=f"scores are independent and normal, and {GAUSSIAN}",
    )
    return TrainingAudit(plain=plain, gaussian=gaussian, included=included, excluded=excluded, more=(sums,))


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

    Where neighbours replace a record, the canary takes the place of the last one.

    Args:
        model: The model with its initial weights, which the attacker knows: all runs begin with them. It never changes.
        data: The records of the run.
        plan: The run's plan.
        canary: One record, (x, y).
        runs: How many in each world.
        loss: `loss(output, target)` gives a value for each record.
        training: The run's settings. From a seed, each run gets a different one.
        confidence: The probability that all bounds hold together.
        steps: How many of the plan's steps the run took; None for all.
        units: Whose each record is, where a person is the unit; the canary is then a person with copies of the record.

    Returns:
        The bounds.

    Raises:
        ConfigError: There are too few runs, or the plan does not allow this audit.
    """
    training = (training or Training.of_method(plan.method)).at_batch(plan.batch_size)
    adds = plan.adjacency is Adjacency.ADD_OR_REMOVE_ONE
    if adds and plan.stage is not None and not plan.stage.takes_fewer:
        raise ConfigError(
            *plan.stage_option,
            "a release before training that takes one record fewer than planned, to train without the canary;"
            " use --canaries with --black-box, or audit one step",
        )
    device = pick_device(training.device)
    alone = TensorDataset(*(part.unsqueeze(0) for part in canary))
    if replaces_records(plan, 1):
        joined, absent, both = in_place_of_last(data, alone, torch.tensor([True])), Insertion(), units
        plan = with_more(plan, plan.records)
    else:
        rows = canary_rows(plan)
        joined = TensorDataset(
            *(torch.cat([t, c.repeat_interleave(rows, 0)]) for t, c in zip(data.tensors, alone.tensors, strict=True))
        )
        absent, both = _Absent(rows), with_canaries(units, plan, 1)
        plan = with_more(plan, plan.records + rows)

    def score(included: bool, i: int) -> float:
        records, insertion = (joined, Insertion()) if included else (data, absent)
        trained = copies.of_model(model)
        if trained is None:
            raise ConfigError("model", type(model).__name__, "a model that can be copied, to train it many times")
        settings = replace(training, seed=seed_of_run(training.seed, included, i))
        train_again(
            trained, records, plan=plan, loss=loss, training=settings, steps=steps, insertion=insertion, units=both
        )
        return -float(losses_of(trained, alone, loss, device)[0])

    return two_worlds(score, runs=runs, delta=plan.delta, confidence=confidence)


def seed_of_run(seed: int | None, included: bool, i: int) -> int | None:
    """A different seed for each run of two worlds; None if there is none."""
    return None if seed is None else (seed + 2 * i + included) % 2**64


class _Absent(Insertion):
    """A record with weight 0 takes the canary's place, which a stage does not see.

    The denominator is constant: one that followed the number of records would tell the worlds apart by itself.
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
