"""Calibration ends inside the interval that it promises, and asks for few ε on the way."""

from __future__ import annotations

import math

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.accounting.calibrate import LEAST_NOISE, MOST_NOISE, most_steps, smallest_noise
from assay.accounting.epsilon import Adjacency, epsilon, gaussian_epsilon
from assay.errors import ConfigError


class Counted:
    """A cost that counts how often it is asked."""

    def __init__(self, cost) -> None:
        self.cost, self.calls = cost, 0

    def __call__(self, x):
        self.calls += 1
        return self.cost(x)


@pytest.mark.parametrize("target", [0.01, 0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize(
    ("adjacency", "rate", "steps"),
    [(Adjacency.ADD_OR_REMOVE_ONE, 512 / 60_000, 2344), (Adjacency.REPLACE_ONE, 0.05, 200)],
)
def test_noise_for_a_verified_epsilon(adjacency: Adjacency, target: float, rate: float, steps: int) -> None:
    def cost(sigma: float) -> float:
        step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
        return epsilon(dp_event.SelfComposedDpEvent(step, steps), 1e-5, adjacency)

    counted = Counted(cost)
    sigma = smallest_noise(counted, target)
    assert 0.999 * target <= cost(sigma) <= target
    assert counted.calls <= 9


@given(st.floats(-3, 2.5).map(lambda x: 10**x), st.floats(0.001, 0.2))
@settings(max_examples=40, deadline=None)
def test_noise_for_one_gaussian(target: float, tolerance: float) -> None:
    sigma = smallest_noise(lambda s: gaussian_epsilon(s, 1e-5), target, tolerance=tolerance)
    assert (1 - tolerance) * target <= gaussian_epsilon(sigma, 1e-5) <= target


@given(st.floats(0.05, 1e5), st.floats(0.2, 5))
def test_a_cost_that_is_infinite_below_and_nothing_above(edge: float, power: float) -> None:
    def cost(sigma: float) -> float:
        return math.inf if sigma < edge else 0.0 if sigma > 1.5 * edge else (edge / sigma) ** power

    target = 1.25 ** (-power)
    sigma = smallest_noise(cost, target)
    assert 0.999 * target <= cost(sigma) <= target


def test_a_jump_over_the_interval_ends_on_the_safe_side() -> None:
    sigma = smallest_noise(lambda s: 3.0 if s < 7.0 else 0.0, 1.0)
    assert sigma == pytest.approx(7.0, rel=1e-9)
    assert sigma >= 7.0


@pytest.mark.parametrize("cost", [lambda s: math.inf, lambda s: 2.0, lambda s: 2.0 + 1 / s])
def test_out_of_reach_is_said_with_what_can_be_had(cost) -> None:
    with pytest.raises(ConfigError, match="at least") as error:
        smallest_noise(cost, 1.0)
    assert error.value.field == "epsilon"
    assert f"{MOST_NOISE:g}" in str(error.value)


def test_a_budget_that_nothing_can_spend_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most") as error:
        smallest_noise(lambda s: 1 / s, 1000.0)
    assert error.value.field == "epsilon"
    assert f"{LEAST_NOISE:g}" in str(error.value)


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_the_target_must_be_finite_and_above_zero(target: float) -> None:
    for search in (smallest_noise, most_steps):
        with pytest.raises(ConfigError) as error:
            search(lambda x: 1.0, target)
        assert error.value.field == "epsilon"


@given(st.integers(1, 10**7), st.floats(0.1, 3))
def test_the_most_steps_are_found_exactly(most: int, power: float) -> None:
    counted = Counted(lambda n: (n / (most + 0.5)) ** power)
    assert most_steps(counted, 1.0) == most
    assert counted.calls <= 45


@given(st.integers(1, 1000), st.integers(0, 1000))
def test_the_limit_is_never_passed(most: int, limit: int) -> None:
    def cost(n: int) -> float:
        assert 1 <= n <= limit
        return 0.5 if n <= most else math.inf

    assert most_steps(cost, 1.0, limit=limit) == min(most, limit)


def test_no_step_at_all() -> None:
    assert most_steps(lambda n: 2.0, 1.0) == 0


def test_steps_within_a_verified_epsilon() -> None:
    def cost(steps: int) -> float:
        step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
        return epsilon(dp_event.SelfComposedDpEvent(step, steps), 1e-5, Adjacency.ADD_OR_REMOVE_ONE)

    steps = most_steps(cost, 2.0)
    assert cost(steps) <= 2.0 < cost(steps + 1)
