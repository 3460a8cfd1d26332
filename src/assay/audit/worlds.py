"""Two worlds: trained many times with one record and many times without it.

The oldest audit and the one that assumes least: every run is a trial of its own, so that error counts are binomial whatever happens inside.
It is dear (hundreds of runs for an ε of 3) and blunt where there are few runs: n in each world cannot show more than log(n/4) or so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.audit.scores import from_scores
from assay.audit.training import TrainingAudit, losses_of, private_step, train, with_more
from assay.data.records import Records
from assay.errors import ConfigError
from assay.methods.plan import Plan
from assay.methods.stage import Loss
from assay.runs.result import cross_entropy
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
) -> TrainingAudit:
    """Train copies of `model` under `plan` on `data` with the canary (x, y) and without it; the score is how low its loss ends.

    All runs begin with the model's weights: the attacker knows them. A seed of `training` gives each run a seed of its own.
    `steps` is how many of the plan's steps a run took whose budget ended it early; all of them if left out.
    """
    training = training or Training()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    device = pick_device(training.device)
    alone = TensorDataset(*(part.unsqueeze(0) for part in canary))
    joined = [torch.cat([t, c]) for t, c in zip(data.tensors, alone.tensors, strict=True)]
    plan = with_more(plan, len(joined[0]))

    def score(included: bool, i: int) -> float:
        own = training if training.seed is None else replace(training, seed=(training.seed + 2 * i + included) % 2**64)
        model.load_state_dict(start)
        # Without the canary its place is held by a record that counts for nothing: the denominator is a constant, and one that
        # followed the number of records would tell the worlds apart by itself.
        counts = torch.ones(len(joined[0]))
        counts[-1] = float(included)
        records = Records(TensorDataset(*joined, counts), device)
        train(private_step(model, plan, own), model, records, lambda out, y, count: loss(out, y) * count, own, steps)
        return -float(losses_of(model, alone, loss, device)[0])

    try:
        return two_worlds(score, runs=runs, delta=plan.delta, confidence=confidence)
    finally:
        model.load_state_dict(start)


def _audited(
    included: NDArray[np.float64], excluded: NDArray[np.float64], delta: float, confidence: float
) -> TrainingAudit:
    plain = from_scores(included, excluded, delta=delta, confidence=confidence, independent=True)
    gaussian = from_scores(included, excluded, delta=delta, confidence=confidence, independent=True, assume="gaussian")
    return TrainingAudit(plain=plain, gaussian=gaussian, included=included, excluded=excluded)
