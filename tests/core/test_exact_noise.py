"""Exact noise in whole steps and runs."""

from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from assay import Plan, PrivateStep, fit
from assay.audit.observe import observed
from assay.data.sampling import FullBatch
from assay.errors import ConfigError, UnsupportedModelError
from assay.mechanisms.exact import Grid
from assay.randomness.streams import Seeded
from assay.runs.result import cross_entropy
from assay.training.meter import MeanLoss
from assay.training.preflight import check_ranks
from assay.training.settings import Training


def exactly(plan: Plan, **more) -> Plan:
    given = {"records": plan.records, "batch_size": plan.batch_size, "steps": 3, "noise_multiplier": 1.0, "delta": 1e-3}
    return Plan(**given | more, exact=True)


def sums(model, data, plan, **more):
    """The sums before the noise of every step, as vectors."""
    step = PrivateStep(model, plan, **{"randomness": Seeded(1)} | more)
    step.chain = watched = observed(step.chain)
    for x, y in step.batches(data):
        step.backward(cross_entropy(model(x), y))
    step.close()
    return [torch.cat([v.reshape(-1) for v in release.total.values()]) for release in watched.releases]


@pytest.mark.parametrize("left_out", [0, 57, 119])
def test_a_record_moves_the_sum_by_the_bound_at_most_in_exact_arithmetic(model, records, plan, left_out):
    """And no bit of the others' share, though all of them move to another place and the number of parts changes."""
    x, y = records.tensors
    kept = torch.arange(len(x)) != left_out
    full = {"sampling": FullBatch, "steps": 1}
    (whole,) = sums(model, records, exactly(plan, **full, batch_size=120), max_physical_batch=17)
    less = TensorDataset(x[kept], y[kept])
    (without,) = sums(model, less, exactly(plan, **full, records=119, batch_size=119), max_physical_batch=17)
    alone = TensorDataset(x[~kept], y[~kept])
    (own,) = sums(model, alone, exactly(plan, **full, records=1, batch_size=1), max_physical_batch=17)
    assert torch.equal(whole - without, own)
    assert own.any()
    assert sum(Fraction(v) ** 2 for v in own.tolist()) <= Fraction(1, 4)  # the bound is 0.5
    assert all((Fraction(v) / Fraction(Grid(0.5).unit)).denominator == 1 for v in whole.tolist())


def test_the_gradient_is_that_of_floating_point_but_for_the_noise(model, records, plan):
    (exact,) = sums(model, records, exactly(plan, sampling=FullBatch, steps=1, batch_size=120))
    usual = Plan(records=120, batch_size=120, steps=1, noise_multiplier=1.0, delta=1e-3, sampling=FullBatch)
    (floating,) = sums(model, records, usual)
    assert float((exact - floating).norm() / floating.norm()) < 1e-4


def test_all_parts_have_one_shape_and_an_empty_batch_is_a_step(model, records, plan):
    step = PrivateStep(model, exactly(plan, batch_size=2, steps=12), randomness=Seeded(2))
    shapes, norms = set(), []
    for x, y in step.batches(records):
        shapes.add(x.shape)
        if step.backward(cross_entropy(model(x), y)):
            norms.append(float(sum(p.grad.norm() for p in model.parameters())))
    assert shapes == {(8, 4)}
    assert len(norms) == 12
    assert min(norms) > 0
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


class Listed(Dataset):
    """Records that are not tensors but numbers and strings."""

    def __init__(self, *, words: bool) -> None:
        self.words = words

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int):
        return torch.full((4,), float(i)), "three" if self.words else i % 3


def test_any_data_set_of_numbers_will_do(model, plan):
    assert len(sums(model, Listed(words=False), exactly(plan, records=60))) == 3
    with pytest.raises(ConfigError, match="dataset"):
        sums(model, Listed(words=True), exactly(plan, records=60))


class Slanted(nn.Module):
    """What a record gets depends on where it stands, in the last bits only."""

    def forward(self, x):
        return x * (1 + 1e-6 * torch.arange(len(x)).unsqueeze(1))


def test_a_model_whose_last_bits_depend_on_the_place_is_refused(records, plan):
    model = nn.Sequential(Slanted(), nn.Linear(4, 3))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(UnsupportedModelError, match="last bits"):
        sums(model, records, exactly(plan))
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_a_loss_whose_last_bits_depend_on_the_place_is_refused(model, records, plan):
    def slanted(outputs, targets):
        return cross_entropy(outputs, targets) * (1 + 1e-6 * torch.arange(len(targets)))

    with pytest.raises(UnsupportedModelError, match="the loss"):
        fit(model, records, plan=exactly(plan), loss=slanted)


@pytest.mark.parametrize("randomness", [Seeded(1), None])
def test_models_that_draw_random_numbers_are_asked_without_them(records, plan, randomness):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3))
    assert len(sums(model, records, exactly(plan), randomness=randomness)) == 3
    assert model.training


def test_a_seeded_run_repeats_to_the_bit(records, plan):
    def weights():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        return fit(model, records, plan=exactly(plan), training=Training(seed=4)).model.state_dict()

    once, again = weights(), weights()
    assert all(torch.equal(once[name], again[name]) for name in once)


def test_what_is_not_exact_is_refused(model, records, plan):
    with pytest.raises(ConfigError, match="side"):
        PrivateStep(model, exactly(plan), side=[MeanLoss()])
    with pytest.raises(ConfigError, match="ranks"):
        check_ranks(exactly(plan), 2)
    with pytest.raises(ConfigError, match="precision"):
        fit(model, records, plan=exactly(plan), training=Training(precision="bf16"))
    step = PrivateStep(model, exactly(plan))
    x, _ = next(step.batches(records))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ConfigError, match="precision"):
        model(x)
