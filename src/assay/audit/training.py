"""The audit of a whole training run, trained once with canaries among its records.

White box: gradient canaries, scored by what every step releases. Black box: whole records (blank or mislabelled), scored by
the final model's loss. Each canary is included by a fair coin of its own. The model that comes out was trained on canaries:
throw it away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from assay.accounting.epsilon import Adjacency
from assay.audit import one_run
from assay.audit.canaries import PlaceholderRecords, insert, likelihood_scores
from assay.audit.result import Audit
from assay.audit.scores import Assume, from_scores
from assay.data.records import Records
from assay.distributed.world import ALONE
from assay.errors import ConfigError
from assay.methods.plan import Plan
from assay.methods.stage import Loss
from assay.runs.result import cross_entropy
from assay.training.settings import Training, pick_device
from assay.training.step import PrivateStep

if TYPE_CHECKING:
    from assay.federated.plan import FederatedPlan


@dataclass(frozen=True, kw_only=True)
class TrainingAudit:
    """Scores of the canaries, and the bounds that follow: `plain` from nothing, `gaussian` for a Gaussian trade-off function.

    Both are one-run bounds; their numbers of guesses were fixed before the run, from the plan's verified ε.
    """

    plain: Audit
    gaussian: Audit
    included: NDArray[np.float64]
    excluded: NDArray[np.float64]


def white_box(
    model: nn.Module,
    data: Dataset[Any],
    plan: Plan,
    *,
    canaries: int = 1000,
    loss: Loss = cross_entropy,
    training: Training | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    steps: int | None = None,
) -> TrainingAudit:
    """Train once with gradient canaries on distinct coordinates. `seed` chooses coordinates and coins, not the noise.

    `steps` is how many of the plan's steps a run took whose budget ended it early; all of them if left out.
    """
    training = training or Training()
    coins = fair_coins(canaries, seed)
    included = torch.nonzero(coins).flatten()
    records = PlaceholderRecords(data, len(included), pick_device(training.device))
    step = private_step(model, with_more(plan, len(records)), training)
    chain = insert(step, records, included, canaries, seed)
    train(step, model, records, loss, training, steps)
    scores = likelihood_scores(chain.seen, chain.size, plan.sampler.rate)
    return audited(scores, coins, plan, confidence, verified=plan.epsilon(steps=steps))


def black_box(
    model: nn.Module,
    data: TensorDataset,
    plan: Plan,
    canaries: TensorDataset,
    *,
    loss: Loss = cross_entropy,
    training: Training | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    steps: int | None = None,
) -> TrainingAudit:
    """Train once with these records among the others; the score is how much their loss fell. See `blank` and `mislabelled`.

    `steps` is as for `white_box`.
    """
    training = training or Training()
    device = pick_device(training.device)
    coins = fair_coins(len(canaries), seed)
    joined = TensorDataset(*(torch.cat([t, c[coins]]) for t, c in zip(data.tensors, canaries.tensors, strict=True)))
    records = Records(joined, device)
    model.to(device)
    before = losses_of(model, canaries, loss, device)
    step = private_step(model, with_more(plan, len(records)), training)
    train(step, model, records, loss, training, steps)
    fallen = before - losses_of(model, canaries, loss, device)
    return audited(fallen, coins, plan, confidence, verified=plan.epsilon(steps=steps))


def blank(data: TensorDataset, count: int, classes: int, seed: int = 0) -> TensorDataset:
    """Records of uniform noise in the range of the data, with random labels."""
    generator = torch.Generator().manual_seed(seed)
    x = data.tensors[0]
    low, high = float(x.min()), float(x.max())
    noise = torch.rand(count, *x.shape[1:], generator=generator) * (high - low) + low
    return TensorDataset(noise.to(x.dtype), torch.randint(classes, (count,), generator=generator))


def mislabelled(data: TensorDataset, count: int, classes: int, seed: int = 0) -> TensorDataset:
    """Records drawn from `data` (use held-out ones) with a wrong label each."""
    generator = torch.Generator().manual_seed(seed)
    x, y = data.tensors
    if count > len(x):
        raise ConfigError("canaries", count, f"at most the number of records to draw from, {len(x)}")
    chosen = torch.randperm(len(x), generator=generator)[:count]
    return TensorDataset(x[chosen], (y[chosen] + torch.randint(1, classes, (count,), generator=generator)) % classes)


def fair_coins(canaries: int, seed: int) -> Tensor:
    """Whether each canary is included."""
    if canaries < 1:
        raise ConfigError("canaries", canaries, "a whole number, 1 or above")
    return torch.rand(canaries, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1)) < 0.5


def with_more(plan: Plan, records: int) -> Plan:
    """The plan for so many records at the same sampling rate: the same event, hence the same ε.

    Canaries are added to sums, which then leave the grid of exact noise: floating-point noise of the same size takes
    its place.
    """
    if plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
        raise ConfigError("adjacency", plan.adjacency.value, "add-or-remove-one: canaries are there or they are not")
    size = float(records) if plan.sampling == "full" else plan.sampler.rate * records
    return replace(plan, records=records, batch_size=size, epsilon_limit=None, exact=False)


def private_step(model: nn.Module, plan: Plan, training: Training) -> PrivateStep:
    """The step of a run under these settings."""
    if plan.stage is not None:
        raise ConfigError(
            *plan.stage_option,
            "one that releases nothing before training, to train again in an audit; audit one step instead (without --canaries or --worlds)",
        )
    model.to(pick_device(training.device)).train()
    physical = training.max_physical_batch
    return PrivateStep(model, plan, randomness=training.randomness(), max_physical_batch=physical, world=ALONE)


def train(
    step: PrivateStep,
    model: nn.Module,
    records: Records,
    loss: Callable[..., Tensor],
    training: Training,
    steps: int | None = None,
) -> None:
    """All steps of the plan, or the first `steps`, with nothing written down: an audit's model is thrown away.

    A run that ended early is played under its whole plan: the noise and the learning rate of a step follow from its place in that.
    """
    optimizer = training.optimizer.build(model)
    try:
        for x, *target in step.batches(records, steps):
            training.optimizer.set_lr(optimizer, step.taken, step.plan.steps)
            if step.backward(loss(model(x), *target)):
                optimizer.step()
    finally:
        step.close()


def losses_of(model: nn.Module, data: TensorDataset, loss: Loss, device: torch.device) -> NDArray[np.float64]:
    """The model's loss on each record; 0 where it is no number."""
    model.eval()
    with torch.no_grad():
        parts = [
            loss(model(x.to(device)), y.to(device)).cpu()
            for x, y in zip(*(t.split(1000) for t in data.tensors), strict=True)
        ]
    model.train()
    return torch.cat(parts).double().nan_to_num(nan=0.0).numpy()


def audited(
    scores: NDArray[np.float64],
    coins: Tensor,
    plan: Plan | FederatedPlan,
    confidence: float,
    *,
    verified: float | None = None,
) -> TrainingAudit:
    """Both one-run bounds; the numbers of guesses follow from the ε of what was played (the plan's if left out), not from the scores."""
    member = coins.numpy()
    included, excluded = scores[member], scores[~member]
    alpha = 1 - confidence
    spent = plan.epsilon() if verified is None else verified

    def bound(assume: Assume, lower: Callable[..., float]) -> Audit:
        fixed = partial(lower, delta=plan.delta, significance=alpha)
        made = one_run.most_guesses(spent, plan.delta, len(scores), fixed)
        return from_scores(included, excluded, delta=plan.delta, confidence=confidence, assume=assume, guesses=made)

    plain, gaussian = bound("nothing", one_run.epsilon_lower), bound("gaussian", one_run.epsilon_lower_gaussian)
    return TrainingAudit(plain=plain, gaussian=gaussian, included=included, excluded=excluded)
