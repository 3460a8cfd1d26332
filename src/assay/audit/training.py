"""The audit of a whole training run, trained once with canaries among its records.

White box: gradient canaries, scored by what every step releases. Black box: whole records (blank or mislabelled),
scored by the final model's loss. A separate fair coin includes each canary. Where neighbours replace a record, the
canaries take the place of the last records: the coin decides on the canary or its reverse (white box), or on the canary
or the record itself (black box). The resulting model was trained on canaries: throw it away.

The run's loop trains it (`assay.training.loop.train_again`), with the run's stage, views, precision, averages and
scaled learning rate. Without canaries the resulting parameters are those of the run, to the bit.
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
from assay.audit.canaries import CanaryChain, PlaceholderRecords, insert, likelihood_scores
from assay.audit.independent import own_family
from assay.audit.persons import PlaceholderPersons, canary_rows, unit_with, with_canaries
from assay.audit.trained import Apart, TrainingAudit, bound_all, fair_coins
from assay.data.persons import Ids, UnitRecords
from assay.data.records import Records
from assay.data.samplers import Sampler
from assay.errors import ConfigError
from assay.methods.plan import Plan
from assay.methods.stage import Loss, Stage
from assay.runs.result import cross_entropy
from assay.training.loop import Insertion, train_again
from assay.training.settings import Training, pick_device
from assay.training.step import PrivateStep


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
    units: Ids | None = None,
) -> TrainingAudit:
    """Train once with gradient canaries on distinct coordinates.

    A canary is a gradient and has no input, so it does not take part in what a stage releases before training.

    Args:
        model: The model with its initial weights; it is trained in place.
        data: The records of the run.
        plan: The run's plan.
        canaries: How many; each is included by a fair coin.
        loss: `loss(output, target)` gives a value for each record.
        training: The run's settings.
        confidence: The probability that all bounds hold together.
        seed: Chooses coordinates and coins, not the noise.
        steps: How many of the plan's steps the run took; None for all.
        units: Whose each record is, where a person is the unit; a canary is then a person.

    Returns:
        The bounds.

    Raises:
        ConfigError: The plan or the number of canaries does not allow this audit.
    """
    training, plan = (training or Training.of_method(plan.method)).at_batch(plan.batch_size), plan.for_model(model)
    if plan.unit is not None and not plan.unit.whole:
        raise ConfigError(
            "unit_sampling",
            plan.unit.sampled.value,
            "persons, for gradient canaries; use input canaries (--black-box) or audit one step",
        )
    if plan.selection is not None and plan.selection.most is not None:
        raise ConfigError(
            "variant",
            plan.method.variant,
            "sound, for gradient canaries: they see steps that were taken back, and the claim is about those that are"
            " kept; use input canaries (--black-box) or audit one step",
        )
    coins = fair_coins(canaries, seed)
    replaced = replaces_records(plan, canaries)
    inserted = _Gradients(plan.stage, coins, seed, replaced)
    more = with_more(plan, plan.records + (0 if replaced else inserted.places))
    if more.stage_event != plan.stage_event:
        raise ConfigError(
            *plan.stage_option,
            "a release before training whose cost does not change with the number of records, for gradient canaries;"
            " use input canaries (--black-box) or audit one step",
        )
    train_again(model, data, plan=more, loss=loss, training=training, steps=steps, insertion=inserted, units=units)
    return bound_all(
        inserted.scores(more.sampler),
        coins,
        plan,
        confidence,
        verified=plan.epsilon(steps=steps),
        # records that are not drawn by themselves are in a batch at the cost of others
        apart=Apart(own_family(plan, steps)) if plan.sampler.independent else None,
    )


class _Gradients(Insertion):
    """Gradient canaries on distinct coordinates; the run's stage comes before them."""

    def __init__(self, stage: Stage | None, coins: Tensor, seed: int, replaced: bool) -> None:
        self._stage, self._canaries, self._seed, self._replaced = stage, len(coins), seed, replaced
        self._included = torch.arange(len(coins)) if replaced else torch.nonzero(coins).flatten()
        self._sign = torch.where(coins, 1.0, -1.0) if replaced else torch.ones(len(coins))
        self._chain: CanaryChain | None = None

    @property
    def places(self) -> int:
        """How many records are inserted."""
        return len(self._included)

    def stage(self, plan: Plan) -> Stage | None:  # noqa: ARG002
        return self._stage

    def records(self, data: Dataset[Any], device: torch.device) -> PlaceholderRecords:
        self._records: PlaceholderRecords | PlaceholderPersons = PlaceholderRecords(
            data, self.places, device, replaced=self._replaced
        )
        return self._records

    def by_unit(self, records: Records, ids: Ids | None, plan: Plan) -> Records:
        if plan.unit is None or ids is None:
            return super().by_unit(records, ids, plan)
        own = replace(plan.unit, persons=plan.unit.persons - self.places)
        persons = UnitRecords(Records(records.dataset, records.device), ids, own)
        self._records = PlaceholderPersons(persons, self.places, plan.unit)
        return self._records

    def attach(self, step: PrivateStep) -> None:
        self._chain = insert(step, self._records, self._included, self._canaries, self._seed, self._sign)

    def scores(self, sampler: Sampler) -> NDArray[np.float64]:
        """The scores of all canaries, after training."""
        assert self._chain is not None
        return likelihood_scores(self._chain.seen, self._chain.size, sampler, reversed_=self._replaced)


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
    units: Ids | None = None,
) -> TrainingAudit:
    """Train once with these records among the others; the score is how much their loss fell.

    Args:
        model: The model with its initial weights; it is trained in place.
        data: The records of the run.
        plan: The run's plan.
        canaries: Records that are included by a fair coin each; see `blank` and `mislabelled`.
        loss: `loss(output, target)` gives a value for each record.
        training: The run's settings.
        confidence: The probability that all bounds hold together.
        seed: Chooses the coins, not the noise.
        steps: How many of the plan's steps the run took; None for all.
        units: Whose each record is, where a person is the unit; each canary is then a person with copies of the record.

    Returns:
        The bounds.

    Raises:
        ConfigError: The plan or the number of canaries does not allow this audit.
    """
    training = (training or Training.of_method(plan.method)).at_batch(plan.batch_size)
    device = pick_device(training.device)
    coins = fair_coins(len(canaries), seed)
    if replaces_records(plan, len(canaries)):
        joined, ids, more = in_place_of_last(data, canaries, coins), units, with_more(plan, plan.records)
    else:
        copies, included = canary_rows(plan), int(coins.sum())
        joined = TensorDataset(
            *(
                torch.cat([t, c[coins].repeat_interleave(copies, 0)])
                for t, c in zip(data.tensors, canaries.tensors, strict=True)
            )
        )
        ids = with_canaries(units, plan, included)
        more = with_more(plan, plan.records + included * copies)
    start = _Start(lambda: losses_of(model, canaries, loss, device))
    train_again(model, joined, plan=more, loss=loss, training=training, steps=steps, insertion=start, units=ids)
    fallen = start.losses - losses_of(model, canaries, loss, device)
    return bound_all(fallen, coins, plan, confidence, verified=plan.epsilon(steps=steps))


class _Start(Insertion):
    """Inserts nothing, and takes the model's losses as training begins.

    Not earlier, because a stage may change what the model does with its inputs.
    """

    def __init__(self, losses: Callable[[], NDArray[np.float64]]) -> None:
        self._losses = losses

    def attach(self, step: PrivateStep) -> None:  # noqa: ARG002
        self.losses = self._losses()


def in_place_of_last(data: TensorDataset, canaries: TensorDataset, coins: Tensor) -> TensorDataset:
    """The records, with those canaries that the coins include in place of the last ones."""
    joined = [t.clone() for t in data.tensors]
    for t, c in zip(joined, canaries.tensors, strict=True):
        last = t[len(t) - len(c) :]
        last[coins] = c[coins].to(t.dtype)
    return TensorDataset(*joined)


def blank(data: TensorDataset, count: int, classes: int, seed: int = 0) -> TensorDataset:
    """Records of uniform noise in the range of the data, with random labels."""
    generator = torch.Generator().manual_seed(seed)
    x = data.tensors[0]
    low, high = float(x.min()), float(x.max())
    noise = torch.rand(count, *x.shape[1:], generator=generator) * (high - low) + low
    return TensorDataset(noise.to(x.dtype), torch.randint(classes, (count,), generator=generator))


def mislabelled(data: TensorDataset, count: int, classes: int, seed: int = 0) -> TensorDataset:
    """Records drawn from `data` (use held-out ones), each with a wrong label."""
    generator = torch.Generator().manual_seed(seed)
    x, y = data.tensors
    if count > len(x):
        raise ConfigError("canaries", count, f"at most the number of records to draw from, {len(x)}")
    chosen = torch.randperm(len(x), generator=generator)[:count]
    return TensorDataset(x[chosen], (y[chosen] + torch.randint(1, classes, (count,), generator=generator)) % classes)


def with_more(plan: Plan, records: int) -> Plan:
    """The plan for this many records at the same sampling rate: the same event, hence the same ε.

    Canaries are added to sums, which then leave the grid of exact noise. So floating-point noise of the same size
    replaces exact noise.
    """
    plan = replace(plan, exact=False) if plan.exact else plan
    if records == plan.records:
        return plan
    if plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
        raise ConfigError("adjacency", plan.adjacency.value, "add-or-remove-one: canaries are there or they are not")
    size = float(records) if plan.sampling.whole else plan.sampler.rate * records
    return replace(plan, records=records, batch_size=size, unit=unit_with(plan, records))


def replaces_records(plan: Plan, canaries: int) -> bool:
    """Whether canaries take the place of records; refuses more of them than there are records."""
    if plan.adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        return False
    if plan.unit is not None:
        raise ConfigError("adjacency", plan.adjacency.value, "add-or-remove-one, where the unit is a person")
    if canaries >= plan.records:
        raise ConfigError("canaries", canaries, f"fewer than the {plan.records} records, whose places they take")
    return True


def losses_of(model: nn.Module, data: TensorDataset, loss: Loss, device: torch.device) -> NDArray[np.float64]:
    """The model's loss on each record; 0 where it is NaN."""
    model.eval()
    with torch.no_grad():
        losses = [
            loss(model(x.to(device)), y.to(device)).cpu()
            for x, y in zip(*(t.split(1000) for t in data.tensors), strict=True)
        ]
    model.train()
    return torch.cat(losses).double().nan_to_num(nan=0.0).numpy()
