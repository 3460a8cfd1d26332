"""BLT strategies: as good as jax_privacy's, what a record moves is what is charged, and noise with a few buffers."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz as toeplitz_matrix

from assay import ConfigError, Plan
from assay.accounting import schedules
from assay.accounting.blt import optimised
from assay.accounting.epsilon import gaussian_epsilon
from assay.accounting.schedules import Buffered, Toeplitz
from assay.accounting.toeplitz import error
from assay.mechanisms.buffered import BufferedGaussian
from assay.mechanisms.types import Bounded
from assay.randomness.streams import Seeded

SMALL = Buffered(buffers=2, separation=10, length=40)


def plan(**changed) -> Plan:
    given = {"records": 1000, "batch_size": 100, "steps": 40, "noise_multiplier": 2.0, "delta": 1e-5}
    return Plan(**given | {"noise_schedule": SMALL} | changed)


def matrix_of(coefficients: np.ndarray) -> np.ndarray:
    return toeplitz_matrix(coefficients, np.zeros_like(coefficients))


@pytest.mark.parametrize(
    ("buffers", "length", "separation", "theirs"),
    [
        (1, 50, 50, 4.529428583),
        (2, 50, 50, 4.420574494),
        (3, 200, 50, 31.73246201),
        (4, 1000, 100, 148.68858033),
        (5, 1000, 1000, 9.30125591),
    ],
)
def test_strategies_are_as_good_as_those_of_jax_privacy(buffers, length, separation, theirs):
    """`theirs`: `LossFn.build_min_sep(n=length, error="mean", min_sep=separation).loss` of what its `optimize_loss`
    finds with as many buffers (jax_privacy 2.0.0, double precision).
    """
    assert optimised(buffers, length, separation).error() == pytest.approx(theirs, rel=5e-5)


def test_one_pass_over_the_records_is_better_off_than_with_bands():
    """A record in one batch: bands cancel less, however many there are as buffers."""
    assert optimised(3, 200, 200).error() < error(Toeplitz(bands=4, length=200).strategy, 200) / 2


@given(
    buffers=st.integers(1, 4),
    separation=st.integers(2, 40),
    length=st.integers(2, 90),
    gaps=st.lists(st.integers(0, 5), min_size=45, max_size=45),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=20, deadline=None)
def test_a_record_moves_no_more_than_is_charged_whenever_it_takes_part(buffers, separation, length, gaps, seed):
    """Any steps at least `separation` apart, any directions: ‖C g‖² ≤ the turns so far, after every number of steps."""
    strategy = optimised(buffers, length, separation)
    turns = np.cumsum([gap + separation * (i > 0) for i, gap in enumerate(gaps)])
    turns = turns[turns < length]
    random = np.random.default_rng(seed)
    for common in (True, False):  # one direction in all turns, or one for each
        directions = random.standard_normal((1 if common else len(turns), 3))
        moved = np.zeros((length, 3))
        moved[turns] = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        squares = np.cumsum((matrix_of(strategy.coefficients()) @ moved) ** 2, axis=0).sum(1)
        assert (squares <= np.ceil(np.arange(1, length + 1) / separation)).all()


def test_a_record_in_every_turn_of_the_first_group_moves_as_much_as_is_charged():
    """The bound is attained, so no scale could be larger."""
    strategy = optimised(3, 200, 50)
    moved = np.zeros(200)
    moved[::50] = 1
    assert ((matrix_of(strategy.coefficients()) @ moved) ** 2).sum() == pytest.approx(4, rel=1e-6)


@pytest.mark.parametrize("changed", [{"scale": 1.0}, {"weight": (-0.1, 0.2)}, {"weight": (0.8, 0.8)}, {"length": 50}])
def test_strategies_without_a_proof_are_refused(changed):
    with pytest.raises(AssertionError, match="strategy"):
        replace(SMALL.blt, **changed)


@given(buffers=st.integers(1, 4), steps=st.integers(1, 40), seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_the_noise_times_the_strategy_is_white(buffers, steps, seed):
    """C w = z to rounding, step by step, from one buffer for each θ."""
    strategy = optimised(buffers, 40, 10)
    mechanism = BufferedGaussian(multiplier=3.0, strategy=strategy)
    kind = {"dtype": torch.float64, "device": torch.device("cpu")}
    seen, spreads = [], []
    for t in range(steps):
        private = mechanism.release(Bounded({"a": torch.zeros(8, **kind)}, 0.5), Seeded(seed).stream("noise", t))
        assert private.event == dp_event.GaussianDpEvent(3.0)
        seen.append(private.value["a"].numpy() / 1.5)
        spreads.append(private.noise_std / 1.5)
    fresh = torch.stack([Seeded(seed).stream("noise", t).normal((8,), **kind) for t in range(steps)]).numpy()
    matrix = matrix_of(strategy.coefficients()[:steps])
    np.testing.assert_allclose(matrix @ np.array(seen), fresh, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(spreads, np.linalg.norm(np.linalg.inv(matrix), axis=1))


def test_the_noise_ends_with_the_run_that_it_was_made_for():
    mechanism = BufferedGaussian(multiplier=3.0, strategy=optimised(1, 3, 3))
    for t in range(3):
        mechanism.release(Bounded({"a": torch.zeros(2)}, 1.0), Seeded(0).stream("noise", t))
    with pytest.raises(AssertionError, match="step 4 of a strategy for 3"):
        mechanism.release(Bounded({"a": torch.zeros(2)}, 1.0), Seeded(0).stream("noise", 3))


def test_every_turn_is_charged_whole_and_the_plan_is_kept():
    p = plan()
    assert p.event() == dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(2.0), 4)
    assert p.epsilon() == pytest.approx(gaussian_epsilon(2 / math.sqrt(4), 1e-5))
    assert p.epsilon(steps=11) == pytest.approx(gaussian_epsilon(2 / math.sqrt(2), 1e-5))
    assert Plan.from_json(json.loads(json.dumps(p.to_json()))) == p
    assert schedules.parse("blt:buffers=2,separation=10,length=40") == SMALL
    groups = [set(p.sampler.draw(t, Seeded(0)).tolist()) for t in range(20)]
    assert groups[:10] == groups[10:]
    assert sorted(i for group in groups[:10] for i in group) == list(range(1000))


def test_what_a_schedule_leaves_open_comes_from_the_run():
    """Length and groups; a run of another length is another strategy, and the plan that is kept says the same."""
    p = plan(noise_schedule=schedules.parse("blt:buffers=2"))
    assert p.schedule == SMALL
    assert p.chain().noise.strategy == SMALL.blt
    assert p.event() == plan().event()
    longer = replace(p, steps=60, batch_size=50)
    assert longer.schedule == Buffered(buffers=2, separation=20, length=60)
    assert Plan.from_json(json.loads(json.dumps(longer.to_json()))) == longer
    banded = plan(noise_schedule=schedules.parse("toeplitz:bands=4"))
    assert banded.chain().noise.strategy == Toeplitz(bands=4, length=40).strategy


def test_epsilon_of_a_long_run_does_not_wait_for_its_strategy():
    """What a turn costs does not depend on the coefficients, whose search takes minutes for 90,000 steps."""
    long = plan(records=900_000, batch_size=10, steps=90_000, noise_schedule=Buffered())
    assert long.epsilon() == pytest.approx(gaussian_epsilon(2.0, 1e-5))
    found = Plan.calibrated(epsilon=1, delta=1e-5, records=1000, batch_size=100, steps=400, noise_schedule=Buffered())
    assert 0.999 <= found.epsilon() <= 1
    most = Plan.calibrated(
        epsilon=1, delta=1e-5, records=1000, batch_size=100, noise_multiplier=20.0, noise_schedule=Buffered()
    )
    assert most.schedule.longest == most.steps > 100


@pytest.mark.parametrize("size", [0, -3, math.nan, 1e9])
def test_a_batch_size_that_makes_no_groups_is_refused(size):
    with pytest.raises(ConfigError, match="batch_size"):
        plan(batch_size=size, noise_schedule=Buffered())


@pytest.mark.parametrize("name", ["separation", "length"])
def test_a_strategy_needs_a_run(name):
    with pytest.raises(ConfigError, match=f"noise_schedule {name}"):
        _ = replace(SMALL, **{name: None}).blt


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("batch_size", {"batch_size": 50}),
        ("batch_size", {"batch_size": 102}),
        ("noise_schedule length", {"steps": 41}),
        ("noise_schedule", {"exact": True}),
    ],
)
def test_refused_where_nothing_is_proven(field, changed):
    with pytest.raises(ConfigError, match=field):
        plan(**changed)


@pytest.mark.parametrize("text", ["blt:buffers=0", "blt:buffers=9", "blt:separation=1", "blt:length=1"])
def test_settings_out_of_range_are_refused(text):
    with pytest.raises(ConfigError, match="noise_schedule"):
        schedules.parse(text)


def test_a_seeded_run_that_was_stopped_ends_where_the_other_ends(stopped_and_resumed):
    second = stopped_and_resumed(plan(steps=20), at=13)
    assert "takes back some of the noise of all steps before it" in second.statement
    assert "one of 10 groups" in second.statement
