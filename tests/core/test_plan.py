"""Plans: ε follows from what will run, calibration hits its target, bad settings are named."""

import math

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay import Adjacency, ConfigError, Plan
from assay.accounting.accountants.allocated import RandomAllocationDpEvent
from assay.accounting.schedules import Banded, Decay
from assay.data.sampling import FullBatch, Permuted, Shuffled, WithoutReplacement
from assay.gradients.clipping import AdaptiveQuantile, Automatic, Flat, PerLayer

BASE = {"records": 60_000, "batch_size": 512, "delta": 1e-5}


def test_the_event_is_what_sampler_and_mechanism_state():
    plan = Plan(**BASE, steps=100, noise_multiplier=1.3)
    assert plan.event() == SelfComposedDpEvent(PoissonSampledDpEvent(512 / 60_000, GaussianDpEvent(1.3)), 100)


@pytest.mark.parametrize(
    "clip", [Flat(bound=0.1), PerLayer(bound=3.0), Automatic(bound=1.0), AdaptiveQuantile(bound=2.0)]
)
def test_clipping_does_not_change_the_cost_of_a_step(clip):
    assert Plan(**BASE, steps=10, noise_multiplier=0.9, clip=clip).step_event == GaussianDpEvent(0.9)


def test_micro_batches_cost_no_more_because_the_noise_follows_the_bound():
    plan = Plan(**BASE, steps=10, noise_multiplier=0.9, micro_batch=4, clip=Flat(bound=1.5))
    assert plan.chain().l2 == 3.0
    assert plan.step_event == GaussianDpEvent(0.9)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 8.0, 50.0])
def test_calibrated_noise_spends_between_99_and_100_percent(epsilon):
    plan = Plan.calibrated(epsilon=epsilon, **BASE, epochs=3)
    assert 0.999 * epsilon <= plan.epsilon() <= epsilon
    assert plan.epsilon_limit == epsilon


def test_calibrated_steps_are_the_most_that_fit():
    plan = Plan.calibrated(epsilon=1.0, **BASE, noise_multiplier=1.5)
    assert plan.epsilon() <= 1.0 < plan.epsilon(steps=plan.steps + 1)


def test_calibrated_batch_size_is_the_largest_that_fits():
    plan = Plan.calibrated(epsilon=1.0, delta=1e-5, records=60_000, steps=1000, noise_multiplier=1.5)
    larger = Plan(records=60_000, batch_size=plan.batch_size + 1, steps=1000, noise_multiplier=1.5, delta=1e-5)
    assert plan.epsilon() <= 1.0 < larger.epsilon()


def test_calibrated_batch_size_is_at_most_a_band():
    banded = {"records": 1000, "noise_multiplier": 50.0, "delta": 1e-5, "noise_schedule": Banded(bands=4)}
    assert Plan.calibrated(epsilon=8.0, epochs=3, **banded).batch_size == 250
    plan = Plan.calibrated(epsilon=1.0, steps=400, **banded | {"noise_multiplier": 5.0})
    larger = Plan(batch_size=plan.batch_size + 1, steps=400, **banded | {"noise_multiplier": 5.0})
    assert plan.epsilon() <= 1.0 < larger.epsilon()


def test_calibration_knows_that_a_full_batch_is_all_records():
    full = {"records": 1000, "delta": 1e-5, "sampling": FullBatch}
    plan = Plan.calibrated(epsilon=1.0, epochs=3, **full)
    assert (plan.batch_size, plan.steps) == (1000, 3)
    assert 0.999 <= plan.epsilon() <= 1
    assert Plan.calibrated(epsilon=1.0, noise_multiplier=20.0, **full).batch_size == 1000
    with pytest.raises(ConfigError, match="no batch size can be found"):
        Plan.calibrated(epsilon=1.0, noise_multiplier=20.0, epochs=3, **full)


def test_epsilon_grows_with_steps_and_falls_with_noise():
    plan = Plan(**BASE, steps=200, noise_multiplier=1.0)
    spent = [plan.epsilon(steps=n) for n in (1, 10, 100, 200)]
    assert spent == sorted(spent)
    assert Plan(**BASE, steps=200, noise_multiplier=1.1).epsilon() < plan.epsilon()


def test_no_noise_is_no_privacy():
    assert Plan(**BASE, steps=1, noise_multiplier=0.0).epsilon() == math.inf


def test_shuffled_epochs_are_charged_as_random_allocation():
    shuffled = Plan(**BASE, steps=117 * 3, noise_multiplier=4.0, sampling=Shuffled)
    epoch = RandomAllocationDpEvent(117, GaussianDpEvent(4.0))
    assert shuffled.event() == SelfComposedDpEvent(epoch, 3)
    assert shuffled.epsilon() < Plan(**BASE, steps=117 * 3, noise_multiplier=4.0).epsilon()
    begun = Plan(**BASE, steps=117 * 3 + 1, noise_multiplier=4.0, sampling=Shuffled)
    assert begun.event() == SelfComposedDpEvent(epoch, 4), "an epoch begun is an epoch charged"


def test_a_ledger_that_charged_shuffled_epochs_without_amplification_still_fits():
    plan = Plan(**BASE, steps=117 * 3, noise_multiplier=4.0, sampling=Shuffled)
    assert plan.fits(118, 0, SelfComposedDpEvent(GaussianDpEvent(4.0), 2), once=False)
    assert plan.fits(118, 0, plan.event(118), once=False)
    assert not plan.fits(118, 0, SelfComposedDpEvent(GaussianDpEvent(4.0), 1), once=False), "an epoch too few"
    assert not plan.fits(118, 0, SelfComposedDpEvent(GaussianDpEvent(5.0), 2), once=False), "other noise"


def test_permutations_are_charged_without_amplification():
    settings = {**BASE, "steps": 118 * 3, "noise_multiplier": 4.0, "sampling": Permuted}
    permuted = Plan(**settings, adjacency=Adjacency.REPLACE_ONE)
    assert permuted.event() == SelfComposedDpEvent(GaussianDpEvent(4.0), 3)
    with pytest.raises(ConfigError, match="replace-one"):
        Plan(**settings)


def test_replacing_a_record_costs_more_than_removing_one():
    removed = Plan(**BASE, steps=100, noise_multiplier=1.0)
    replaced = Plan(**BASE, steps=100, noise_multiplier=1.0, adjacency=Adjacency.REPLACE_ONE)
    assert replaced.epsilon() > removed.epsilon()


def test_round_trip_through_json():
    plan = Plan(
        **BASE, steps=7, noise_multiplier=1.25, clip=AdaptiveQuantile(bound=0.3, quantile=0.7), sampling=Shuffled
    )
    again = Plan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json()
    assert again.event() == plan.event()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.5}, "delta"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"noise_multiplier": 1e-320}, "noise_multiplier"),  # its square is 0
        ({"noise_schedule": Decay(last=1e-200)}, "noise_multiplier"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"records": 0}, "records"),
        ({"batch_size": 60_001}, "batch_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"sampling": "bootstrap"}, "sampling"),
        ({"sampling": WithoutReplacement}, "adjacency"),
        ({"sampling": FullBatch}, "batch_size"),
        ({"micro_batch": 0}, "micro_batch"),
        ({"micro_batch": 2, "clip": AdaptiveQuantile()}, "micro_batch"),
        ({"epsilon_limit": -1.0}, "epsilon"),
    ],
)
def test_bad_settings_are_named(change, field):
    with pytest.raises(ConfigError) as caught:
        Plan(**{**BASE, "steps": 10, "noise_multiplier": 1.0, **change})
    assert caught.value.field == field


def test_calibration_needs_exactly_one_thing_to_find():
    with pytest.raises(ConfigError, match="exactly one"):
        Plan.calibrated(epsilon=1.0, **BASE, epochs=1, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="not both"):
        Plan.calibrated(epsilon=1.0, **BASE, epochs=1, steps=3)
    with pytest.raises(ConfigError) as caught:
        Plan.calibrated(epsilon=-1.0, **BASE, epochs=1)
    assert caught.value.field == "epsilon"
