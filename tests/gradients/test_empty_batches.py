"""An empty Poisson batch is a step like any other, and no model is given a record that it cannot take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import assay
from assay.data.records import Records
from assay.data.units import Unit
from assay.gradients.clip_rules.adaptive import AdaptiveQuantile
from assay.randomness.streams import Seeded

RECORDS, STEPS = 8, 24


class Words(nn.Module):
    """Word ids begin at 1, and 0 is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.lookup = torch.eye(4)

    def forward(self, ids: Tensor) -> Tensor:
        if int(ids.min()) < 1:
            raise IndexError("index -1 is out of range")
        out: Tensor = self.linear(self.lookup[ids - 1].mean(1))
        return out


class Sentences(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([1 + index % 4, 4]), index % 2


def plan(**others: Any) -> assay.Plan:
    return assay.Plan(records=RECORDS, batch_size=1, steps=STEPS, noise_multiplier=1.0, delta=1e-2, **others)


def is_empty(step: int) -> bool:
    return len(plan().sampler.draw(step, Seeded(3))) == 0


def model() -> Words:
    torch.manual_seed(0)
    return Words()


def stacked() -> TensorDataset:
    words, targets = zip(*(Sentences()[i] for i in range(RECORDS)), strict=True)
    return TensorDataset(torch.stack(words), torch.tensor(targets))


def losses_of(network: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(network(batch[0]), batch[1], reduction="none")


def trained(chosen: assay.Plan, step_of: Callable[[nn.Module], assay.PrivateStep], batches: Any) -> tuple[Tensor, ...]:
    """Train in a loop of one's own: the parameters, and how often an empty batch moved them."""
    network, moved = model(), []
    step = step_of(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for batch in batches(step):
        before = network.linear.weight.detach().clone()
        stepped = step.backward_of_none() if batch is None else step.backward(losses_of(network, batch))
        assert stepped
        optimizer.step()
        moved.append(not torch.equal(before, network.linear.weight))
    assert step.taken == chosen.steps
    assert step.epsilon() == pytest.approx(chosen.epsilon())
    assert all(moved)
    return network.linear.weight.detach(), network.linear.bias.detach()


def equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_some_batches_of_these_plans_are_empty() -> None:
    assert 0 < sum(map(is_empty, range(STEPS))) < STEPS


@pytest.mark.parametrize("data", [Sentences(), stacked()])
def test_a_run_with_empty_batches_never_shows_the_model_zeros(data: Dataset[tuple[Tensor, int]]) -> None:
    result = assay.fit(model(), data, plan=plan(), training=assay.Training(seed=3))
    assert result.record["steps"] == result.record["steps_charged"] == STEPS
    assert result.epsilon == pytest.approx(plan().epsilon())


@pytest.mark.parametrize("others", [{}, {"clip": AdaptiveQuantile(0.5)}])
def test_a_stand_in_leaves_every_bit_as_a_step_of_noise_alone(others: dict[str, Any]) -> None:
    chosen = plan(**others)

    def seeded(network: nn.Module) -> assay.PrivateStep:
        return assay.PrivateStep(network, chosen, randomness=Seeded(3))

    with_stand_ins = trained(chosen, seeded, lambda step: step.batches(Sentences()))
    as_loader = trained(chosen, seeded, lambda step: (b for _ in range(3) for b in step.loader(stacked())))
    without = trained(chosen, seeded, lambda step: step.batches_or_none(Records(Sentences())))
    assert equal(with_stand_ins, without)
    assert equal(as_loader, without)


def test_a_stand_in_without_finite_numbers_leaves_no_trace() -> None:
    inputs = torch.randn(RECORDS, 3)
    spoilt = inputs.clone()
    spoilt[0] = torch.nan
    chosen = plan()
    empty = [step for step in range(STEPS) if is_empty(step)]

    def weights(first: Tensor) -> list[Tensor]:
        torch.manual_seed(0)
        network, released = nn.Linear(3, 2), []
        step = assay.PrivateStep(network, chosen, randomness=Seeded(3))
        for batch in step.batches(TensorDataset(first, torch.zeros(RECORDS, dtype=torch.int64))):
            counted, number = step.nonfinite, step.taken
            step.backward(losses_of(network, batch))
            if number in empty:
                assert step.nonfinite == counted
                released.append(network.weight.grad.clone())
        return released

    assert equal(weights(inputs), weights(spoilt))


def test_rows_of_persons_stand_in_as_well() -> None:
    unit = Unit(name="patient", persons=4, rows=2)
    chosen = assay.Plan(records=4, batch_size=1, steps=STEPS, noise_multiplier=1.0, delta=1e-2, unit=unit)
    network = model()
    step = assay.PrivateStep(network, chosen, randomness=Seeded(3))
    for batch in step.batches(Sentences(), units=[i // 2 for i in range(RECORDS)]):
        assert step.backward(losses_of(network, batch))
    assert step.taken == STEPS


def test_exact_noise_fills_its_parts_with_records_that_the_model_can_take() -> None:
    training = assay.Training(seed=3)
    result = assay.fit(model(), stacked(), plan=plan(exact=True), training=training)
    assert result.record["steps"] == STEPS


class Remembers(Words):
    """Keeps a sum of what it has seen, once it is told to."""

    told = False

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(())

    def forward(self, ids: Tensor) -> Tensor:
        if self.told:
            self.seen = self.seen + ids.sum()
        return super().forward(ids) + self.seen


def test_a_model_that_keeps_something_of_a_stand_in_is_refused() -> None:
    network = Remembers()
    step = assay.PrivateStep(network, plan(), randomness=Seeded(3))

    def train() -> None:
        for batch in step.batches(Sentences()):
            network.told = is_empty(step.taken)
            step.backward(losses_of(network, batch))

    with pytest.raises(assay.UnsupportedModelError, match="seen"):
        train()
    assert network.told


def test_a_missing_backward_names_its_likely_causes() -> None:
    step = assay.PrivateStep(model(), plan(), randomness=Seeded(3))
    with pytest.raises(assay.AssayError, match=r"ahead.*accumulated.*out\.loss"):
        list(step.batches(Sentences()))
