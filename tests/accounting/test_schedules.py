"""Noise that falls over a run: charged step by step for what was really added."""

import itertools
import json
import math

import pytest
import torch.nn.functional as F
from dp_accounting import NeighboringRelation, dp_event, pld
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from assay import ConfigError, Plan, PrivateStep, methods
from assay.accounting import schedules
from assay.accounting.epsilon import gaussian_epsilon
from assay.accounting.ledger import Ledger
from assay.accounting.schedules import Constant, Decay
from assay.data.sampling import FullBatch, Shuffled
from assay.randomness.streams import OsSeeded, Seeded


def plan(**settings) -> Plan:
    return Plan(
        **{"records": 1000, "batch_size": 100, "steps": 40, "noise_multiplier": 2.0, "delta": 1e-5, "clip": 1.0}
        | {"noise_schedule": Decay(levels=4, last=0.5)}
        | settings
    )


@given(
    steps=st.integers(1, 500),
    levels=st.integers(2, 12),
    last=st.floats(0.05, 1),
    start=st.integers(0, 500),
    length=st.integers(0, 500),
)
def test_a_schedule_has_every_step_once(steps, levels, last, start, length):
    stretches = schedules.Decay(levels=levels, last=last).stretches(steps)
    assert sum(n for n, _ in stretches) == steps
    assert stretches[0][1] == 1
    assert all(a >= b for (_, a), (_, b) in itertools.pairwise(stretches))
    one_by_one = [factor for n, factor in stretches for _ in range(n)]
    part = schedules.within(stretches, start, length)
    assert [factor for n, factor in part for _ in range(n)] == one_by_one[start : start + length]


def test_without_sampling_the_cost_is_the_sum_of_precisions():
    # Gaussians compose exactly: μ² = Σ n/σ²
    p = plan(sampling=FullBatch, batch_size=1000)
    sigmas = [2.0 * 0.5 ** (i / 3) for i in range(4)]
    mu = math.sqrt(sum(10 / sigma**2 for sigma in sigmas))
    assert p.epsilon() == pytest.approx(gaussian_epsilon(1 / mu, 1e-5), rel=1e-9)


def test_sampled_levels_compose_as_dp_accounting_composes_them():
    accountant = pld.PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4)
    for i in range(4):
        event = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0 * 0.5 ** (i / 3)))
        accountant.compose(event, 10)
    theirs = accountant.get_epsilon(1e-5)
    assert plan().epsilon() == pytest.approx(theirs, rel=0.01)
    assert (
        plan(noise_schedule=Constant()).epsilon()
        < theirs
        < plan(noise_schedule=Constant(), noise_multiplier=1).epsilon()
    )


def test_calibration_meets_the_target_with_a_schedule():
    settings = {"records": 1000, "batch_size": 100, "epochs": 3, "delta": 1e-5, "noise_schedule": Decay(last=0.6)}
    found = Plan.calibrated(epsilon=2.0, **settings)
    assert 0.999 * 2 <= found.epsilon() <= 2
    assert found.stretches[-1][1] == pytest.approx(0.6)
    assert Plan.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_refused_where_it_is_not_charged_exactly():
    for settings in (
        {"method": methods.get("lssgd")},
        {"sampling": Shuffled},
        {"noise_schedule": "decay"},
    ):
        with pytest.raises(ConfigError, match="noise_schedule"):
            plan(**settings)
    for text in ("decay:levels=1", "decay:last=0", "decay:last=1.5", "cosine"):
        with pytest.raises(ConfigError, match="noise_schedule"):
            schedules.parse(text)


def test_the_noise_of_each_step_is_that_of_its_level(records):
    # with all gradients clipped to nothing but noise: 2000 coordinates a step tell its standard deviation
    model = nn.Sequential(nn.Linear(3, 2000, bias=False), nn.Linear(2000, 2))
    model[1].requires_grad_(False)
    p = plan(steps=8)
    step = PrivateStep(model, p, randomness=Seeded(1))
    for i, (x, y) in enumerate(step.batches(records)):
        assert step.backward(F.cross_entropy(model(x), y, reduction="none"))
        spread = float(model[0].weight.grad.std()) * 100
        expected = 2.0 * 0.5 ** ((i // 2) / 3)
        # inputs are zero, so gradients are; relative error of a standard deviation of 6000 numbers: 0.9 %, 6 σ is 1e-9
        assert spread == pytest.approx(expected, rel=0.055)
    assert step.epsilon() == pytest.approx(p.epsilon())
    step.close()


def test_what_was_charged_after_each_step_is_what_those_steps_cost(take, tmp_path):
    p = plan(steps=8)
    ledger = Ledger(tmp_path / "ledger.jsonl", delta=p.delta, adjacency=p.adjacency, ceiling=None)
    take(PrivateStep(nn.Linear(3, 2), p, ledger=ledger, randomness=OsSeeded()), steps=5)
    assert ledger.event() == dp_event.ComposedDpEvent([p.steps_event(5)])
    # fresh randomness goes on where the schedule is, and both parts are charged
    again = PrivateStep(nn.Linear(3, 2), p, ledger=ledger, randomness=OsSeeded(), taken=5)
    assert again.limit == 8
    take(again)
    assert ledger.event() == dp_event.ComposedDpEvent([p.steps_event(5), p.steps_event(3, start=5)])
    assert ledger.epsilon() == pytest.approx(p.epsilon(), rel=0.01)


def test_a_seeded_run_that_was_stopped_ends_where_the_other_ends(stopped_and_resumed):
    second = stopped_and_resumed(plan(steps=20), at=12)
    assert "5 steps at 2, 5 steps at 1.587" in second.statement
    assert second.record["noise_schedule"] == "decay:levels=4,last=0.5"
