"""`PrivateStep.loader`: sized, one epoch per iteration, and ε is that of the steps taken however it is used."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset
from tqdm import tqdm

import assay
from assay.errors import AssayError, BudgetSpentError
from assay.randomness.streams import Seeded

RECORDS = TensorDataset(torch.arange(120.0).view(-1, 1).repeat(1, 3) / 120, torch.arange(120) % 2)


class Slow(Dataset):
    """Records that are fetched one by one, as worker processes do."""

    def __len__(self):
        return 120

    def __getitem__(self, i):
        return RECORDS[i]


def plan(**more):
    settings = {"records": 120, "batch_size": 20, "steps": 12, "noise_multiplier": 1.0, "delta": 1e-3}
    return assay.Plan(**settings | more)


def new_step(made=None, **more):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, assay.PrivateStep(model, made or plan(), randomness=Seeded(1), **more)


def take(model, step, batch):
    x, y = batch
    return step.backward(F.cross_entropy(model(x), y, reduction="none"))


def test_two_epochs_are_the_batches_of_the_plan():
    model, step = new_step()
    expected = []
    for x, y in step.batches(RECORDS):
        expected.append(x)
        take(model, step, (x, y))
    step.close()
    model, step = new_step()
    loader, seen = step.loader(RECORDS), []
    assert (len(loader), loader.dataset, loader.batch_size, loader.num_workers) == (6, RECORDS, 20, 0)
    for epoch in range(2):
        bar = tqdm(loader, disable=True)
        assert bar.total == 6
        for batch in bar:
            assert len(loader) == 6  # also while it is under way
            seen.append(batch[0])
            take(model, step, batch)
        assert step.taken == 6 * (epoch + 1)
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))
    assert step.epsilon() == pytest.approx(plan().epsilon())
    assert len(loader) == 0
    with pytest.raises(BudgetSpentError, match="no further epoch"):
        iter(loader)
    step.close()


@pytest.mark.parametrize("batch", [17, 37, 119, 120])
def test_as_many_iterations_as_epochs_take_every_step(batch):
    made = assay.Plan.calibrated(epsilon=3, delta=1e-3, records=120, batch_size=batch, epochs=3)
    model, step = new_step(made)
    loader = step.loader(RECORDS)
    for _ in range(3):
        planned, before = len(loader), step.taken
        for one in loader:
            take(model, step, one)
        assert step.taken - before == planned
    assert step.taken == made.steps
    step.close()


def test_after_a_break_and_after_a_resume_the_epoch_is_completed():
    model, step = new_step()
    loader = step.loader(RECORDS)
    for i, batch in enumerate(loader):
        if i == 2:
            break  # drawn, without its backward: it is no step
        take(model, step, batch)
    assert (step.taken, len(loader)) == (2, 4)
    step.settle()
    assert step.epsilon() == pytest.approx(plan().epsilon(steps=2))
    step.close()
    resumed = assay.PrivateStep(model, plan(), ledger=step.ledger, taken=2, randomness=Seeded(2))
    loader = resumed.loader(RECORDS)
    for _ in range(2):
        for batch in loader:
            take(model, resumed, batch)
    assert resumed.taken == 12
    assert resumed.epsilon() >= plan().epsilon() * 0.999
    resumed.close()


def test_workers_fetch_the_same_batches_and_a_break_ends_them():
    def inputs(workers, stop):
        model, step = new_step()
        found = []
        for x, y in step.loader(Slow(), num_workers=workers):
            found.append(x)
            take(model, step, (x, y))
            if step.taken == stop:
                break
        step.settle()
        spent = step.epsilon()
        step.close()
        return found, spent

    alone, spent = inputs(0, 6)
    fetched, same = inputs(2, 6)
    assert all(torch.equal(a, b) for a, b in zip(alone, fetched, strict=True))
    assert spent == same
    _, less = inputs(2, 3)  # batches were fetched ahead, and are not charged: nothing of them was released
    assert less == pytest.approx(plan().epsilon(steps=3))


def test_whoever_fetches_ahead_is_told():
    model, step = new_step()
    with pytest.raises(AssayError, match="something fetches batches ahead"):
        list(step.loader(RECORDS))
    first, second = iter(step.loader(RECORDS)), iter(step.loader(RECORDS))
    next(first)
    take(model, step, next(second))
    with pytest.raises(AssayError, match="another loop"):
        next(first)
    assert step.taken == 1
    step.close()


def test_a_batch_of_a_loop_that_another_has_replaced_is_refused():
    model, step = new_step()
    first, second = iter(step.loader(RECORDS)), iter(step.loader(RECORDS))
    batch = next(first)
    next(second)
    with pytest.raises(AssayError, match="records of an earlier batch"):
        take(model, step, batch)
    step.close()


def test_parts_have_no_length():
    model, step = new_step(max_physical_batch=8)
    loader = step.loader(RECORDS)
    with pytest.raises(TypeError, match="max_physical_batch"):
        len(loader)
    assert tqdm(loader, disable=True).total is None
    for batch in loader:
        take(model, step, batch)
    assert step.taken == 6
    step.close()
