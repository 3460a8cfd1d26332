"""An empty Poisson batch is a step like any other, and a model that cannot take zeros is never given any."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import assay
from assay.randomness.streams import Seeded

RECORDS, STEPS = 8, 24


class Words(nn.Module):
    """Word ids begin at 1; 0 is an error unless it is said to be padding."""

    def __init__(self, padded: bool = False) -> None:
        super().__init__()
        self.padded = padded
        self.linear = nn.Linear(4, 2)
        self.lookup = torch.eye(4)

    def forward(self, ids: Tensor) -> Tensor:
        if int(ids.min()) < 1 and not self.padded:
            raise IndexError("index -1 is out of range")
        out: Tensor = self.linear(self.lookup[ids - 1].mean(1))
        return out


class Sentences(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([1 + index % 4, 4]), index % 2


def plan() -> assay.Plan:
    return assay.Plan(records=RECORDS, batch_size=1, steps=STEPS, noise_multiplier=1.0, delta=1e-2)


def model(padded: bool = False) -> Words:
    torch.manual_seed(0)
    return Words(padded)


def stacked() -> TensorDataset:
    words, targets = zip(*(Sentences()[i] for i in range(RECORDS)), strict=True)
    return TensorDataset(torch.stack(words), torch.tensor(targets))


@pytest.mark.parametrize("data", [Sentences(), stacked()])
def test_a_run_with_empty_batches_never_shows_the_model_zeros(data: Dataset[tuple[Tensor, int]]) -> None:
    drawn = [len(plan().sampler.draw(step, Seeded(3))) for step in range(STEPS)]
    assert 0 < drawn.count(0) < STEPS
    training = assay.Training(seed=3)
    result = assay.fit(model(), data, plan=plan(), training=training)
    assert result.record["steps"] == result.record["steps_charged"] == STEPS
    assert result.epsilon == pytest.approx(plan().epsilon())


def test_an_empty_batch_moves_the_model_by_noise_in_your_own_loop() -> None:
    network, moved, empty = model(padded=True), [], []
    step = assay.PrivateStep(network, plan(), randomness=Seeded(3))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for ids, labels in step.batches(Sentences()):
        empty.append(len(plan().sampler.draw(step.taken, Seeded(3))) == 0)
        before = network.linear.weight.detach().clone()
        assert step.backward(F.cross_entropy(network(ids), labels, reduction="none"))
        optimizer.step()
        moved.append(not torch.equal(before, network.linear.weight))
    assert len(moved) == STEPS
    assert any(empty)
    assert all(moved)
    assert step.epsilon() == pytest.approx(plan().epsilon())


def test_both_loops_release_the_same_bits() -> None:
    network = model(padded=True)
    step = assay.PrivateStep(network, plan(), randomness=Seeded(3))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for ids, labels in step.batches(Sentences()):
        step.backward(F.cross_entropy(network(ids), labels, reduction="none"))
        optimizer.step()
    other = model()
    again = assay.PrivateStep(other, plan(), randomness=Seeded(3))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    from assay.data.records import Records

    for batch in again.batches_or_none(Records(Sentences())):
        if batch is None:
            assert again.backward_of_none()
        else:
            again.backward(F.cross_entropy(other(batch[0]), batch[1], reduction="none"))
        optimizer.step()
    assert torch.equal(network.linear.weight, other.linear.weight)


def test_a_missing_backward_names_its_likely_causes() -> None:
    step = assay.PrivateStep(model(), plan(), randomness=Seeded(3))
    with pytest.raises(assay.AssayError, match=r"ahead.*accumulated.*out\.loss"):
        list(step.batches(Sentences()))
