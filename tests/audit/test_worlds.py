"""Training in two worlds, with a record and without it."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import ConfigError, Optimizer, Plan, Training
from assay.accounting.epsilon import gaussian_epsilon
from assay.audit.worlds import trained_in_two_worlds, two_worlds
from assay.data.sampling import FullBatch, Poisson

DELTA = 1e-5
CANARY = (torch.full((8,), 3.0), torch.tensor(0))


def data(n: int = 40) -> TensorDataset:
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, 1 + (x[:, 0] > 0).long())


def plan(noise: float, **more) -> Plan:
    made = {"records": 40, "batch_size": 40, "steps": 4, "sampling": FullBatch} | more
    return Plan(noise_multiplier=noise, delta=DELTA, **made)


def audited(made: Plan, runs: int):
    torch.manual_seed(0)
    training = Training(seed=1, optimizer=Optimizer(lr=1.0, momentum=0.0, schedule="constant"))
    return trained_in_two_worlds(nn.Linear(8, 3), data(), made, CANARY, runs=runs, training=training)


def test_a_gaussian_release_shows_what_there_is_to_show():
    """A release of μ = 3 in each run: the two bounds lie below its ε, the sharper one within a third of it (fixed
    seed).
    """
    noise = np.random.default_rng(0)
    found = two_worlds(lambda included, _: 3.0 * included + noise.normal(), runs=2000, delta=DELTA)
    truth = gaussian_epsilon(1 / 3, DELTA)
    assert 0 < found.plain.epsilon < found.gaussian.epsilon <= truth
    assert found.gaussian.epsilon > 2 / 3 * truth


def test_a_private_training_is_consistent_and_one_with_too_little_noise_is_not():
    """Fixed seeds.

    With a hundredth of the noise the canary's loss gives every run away, which the honest plan's ε forbids.
    """
    honest = plan(1.0)
    found = audited(honest, 24)
    assert found.plain.epsilon <= honest.epsilon()
    assert found.gaussian.epsilon <= honest.epsilon()
    careless = audited(plan(0.01), 40)
    assert careless.plain.epsilon > 1.5
    assert float(careless.included.min()) > float(careless.excluded.max())
    assert careless.gaussian.epsilon > found.gaussian.epsilon


def test_nothing_but_the_record_differs_between_the_worlds():
    """A canary without a gradient leaves no trace: without noise, both worlds end with the same model.

    A denominator that followed the number of records would show here.
    """

    def loss(out, y):
        """The canary, which has label 0, is told apart by the model's output and pulls at nothing."""
        return torch.where(y > 0, out.square().sum(1), (out.detach() + 0 * out).sum(1))

    torch.manual_seed(0)
    training = Training(seed=1, optimizer=Optimizer(lr=0.1, momentum=0.0, schedule="constant"))
    model = nn.Linear(8, 3)
    found = trained_in_two_worlds(model, data(), plan(0.0), CANARY, runs=4, loss=loss, training=training)
    assert np.array_equal(found.included, found.excluded)
    with torch.no_grad():
        assert abs(float(found.included[0]) + float(model(CANARY[0]).sum())) > 0.01  # it was trained


def test_the_model_is_given_back_as_it_was():
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    trained_in_two_worlds(model, data(), plan(1.0), CANARY, runs=4)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_runs_draw_their_own_noise():
    found = audited(plan(1.0, sampling=Poisson, batch_size=10), 8)
    assert len({*found.included.tolist(), *found.excluded.tolist()}) == 16
    assert math.isfinite(float(found.included.sum()))


def test_too_few_runs_are_refused():
    with pytest.raises(ConfigError, match=r"worlds.*3.*4 or above"):
        two_worlds(lambda included, _: float(included), runs=3, delta=DELTA)
