"""Noise on inputs: the scales of Algorithm 2, the noise really drawn, and the ε that follows from it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.accounting.epsilon import Adjacency, epsilon
from assay.errors import ConfigError, DataError
from assay.methods.perturb import InputNoise, Regions, segment
from assay.methods.perturb.inputs import input_sensitivity, local_event
from assay.randomness.streams import OsSeeded, Seeded

BOTH = (Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE)
shares = st.lists(st.floats(0.01, 1), min_size=1, max_size=30)


def regions_of(values: list[float]) -> Regions:
    return segment(torch.tensor(values, dtype=torch.float64), 0.1)


def test_scales_of_algorithm_2_by_hand() -> None:
    regions = segment(torch.tensor([0.9, 0.1, 0.1, 0.1], dtype=torch.float64), 0.05)
    noise = InputNoise.published(regions, epsilon=0.6, batch_size=50, first_units=3)
    # Δ_f = 2·3·4 = 24; Σ μ|R̄| = ¼·0.9 + ¾·0.1 = 0.3, so ε_k = 0.6·3 and 0.6/3; b = 24/(50 ε_k)
    assert input_sensitivity(3, 4) == 24
    torch.testing.assert_close(noise.scales, torch.tensor([24 / 90, 2.4, 2.4, 2.4]).double())
    assert noise.bias_scale == pytest.approx(24 / (50 * 0.6))
    assert noise.epsilon == pytest.approx(90 / 24 + 3 / 2.4)
    assert noise.epsilon == pytest.approx(50 * 0.6 / (2 * 3))


@given(shares, st.floats(0.01, 10), st.floats(1, 5000), st.integers(1, 3000))
def test_the_published_scales_cost_batch_size_times_epsilon_2_over_twice_the_units(
    values: list[float], budget: float, size: float, units: int
) -> None:
    noise = InputNoise.published(regions_of(values), epsilon=budget, batch_size=size, first_units=units)
    assert noise.epsilon == pytest.approx(size * budget / (2 * units))


def scaled_for(regions: Regions, budget: float) -> InputNoise:
    """Scales in the regions' proportions with Σ 1/b_j = ε: |L| = 2|h_0| in the paper's."""
    return InputNoise.published(regions, epsilon=budget, batch_size=2, first_units=1)


@given(shares, st.floats(0.01, 100))
def test_scales_for_an_epsilon_cost_that_epsilon(values: list[float], budget: float) -> None:
    noise = scaled_for(regions_of(values), budget)
    assert noise.epsilon == pytest.approx(budget)
    for adjacency in BOTH:
        assert epsilon(noise.event(adjacency), 0.0, adjacency) == pytest.approx(budget)


@given(
    st.lists(st.tuples(st.floats(0.05, 50), st.floats(0, 1), st.floats(0, 1), st.floats(-3, 4)), min_size=1, max_size=9)
)
def test_no_two_records_differ_in_likelihood_by_more_than_epsilon(
    rows: list[tuple[float, float, float, float]],
) -> None:
    noise = InputNoise(scales=torch.tensor([b for b, *_ in rows], dtype=torch.float64))
    ratio = math.fsum((abs(seen - other) - abs(seen - x)) / b for b, x, other, seen in rows)
    assert ratio <= noise.epsilon * (1 + 1e-12)
    worst = math.fsum((abs(2 - 0) - abs(2 - 1)) / b for b, *_ in rows)
    assert worst == pytest.approx(noise.epsilon), "reached by a record of ones against one of zeros, seen beyond 1"


def test_the_noise_drawn_has_the_scales_that_are_charged() -> None:
    """Mean absolute noise of 4,000 records within 6.5 standard errors for 6 features: false alarms below 1e-9."""
    scales = torch.tensor([[0.1, 1.0, 3.0], [7.0, 20.0, 500.0]], dtype=torch.float64)
    x = torch.rand(4000, 2, 3, dtype=torch.float64)
    drawn = InputNoise(scales=scales).perturbed(x, Seeded(3)) - x
    relative = drawn.abs().mean(0) / scales
    assert float((relative - 1).abs().max()) < 6.5 / math.sqrt(4000)
    centre = drawn.mean(0) / scales
    assert float(centre.abs().max()) < 6.5 * math.sqrt(2 / 4000)
    # records and features get numbers of their own: the largest of 15 correlations, 6.5 standard errors
    correlation = torch.corrcoef((drawn / scales).flatten(1).T)
    assert float((correlation - torch.eye(6)).abs().max()) < 6.5 / math.sqrt(4000)
    assert torch.unique(drawn / scales).numel() == drawn.numel()


def test_noise_is_drawn_once_a_record_and_repeats_only_with_the_same_seed() -> None:
    noise = InputNoise(scales=torch.ones(5, dtype=torch.float64))
    x = torch.rand(1500, 5)
    first = noise.perturbed(x, Seeded(1))
    assert torch.equal(first, noise.perturbed(x, Seeded(1)))
    assert not torch.equal(first, noise.perturbed(x, Seeded(2)))
    assert not torch.equal(noise.perturbed(x, OsSeeded()), noise.perturbed(x, OsSeeded()))
    assert first.dtype == x.dtype
    assert noise.perturbed(x[:0], Seeded(1)).shape == (0, 5)


def test_a_feature_without_budget_is_not_released() -> None:
    regions = segment(torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64), 0.1)
    noise = scaled_for(regions, 3.0)
    assert noise.scales[0] == math.inf
    assert noise.epsilon == pytest.approx(3.0)
    got = noise.perturbed(torch.rand(10, 3), Seeded(0))
    assert not got[:, 0].any()
    assert got.isfinite().all()
    assert got[:, 1:].all()


@pytest.mark.parametrize("bad", [-1e-6, 1 + 1e-6, math.nan, math.inf, -math.inf])
def test_features_outside_the_unit_interval_are_refused_or_clamped_as_declared(bad: float) -> None:
    x = torch.full((5, 2), 0.5, dtype=torch.float64)
    x[3, 1] = bad
    scales = torch.full((2,), 1e-9, dtype=torch.float64)
    with pytest.raises(DataError, match="record 3"):
        InputNoise(scales=scales).perturbed(x, Seeded(0))
    got = InputNoise(scales=scales, outside="clamp").perturbed(x, Seeded(0))
    assert float(got[3, 1]) == pytest.approx(0.0 if math.isnan(bad) else min(max(bad, 0.0), 1.0), abs=1e-6)
    assert float(got[0, 0]) == pytest.approx(0.5, abs=1e-6)
    assert math.isnan(x[3, 1]) or x[3, 1] == bad, "the records themselves are left alone"


def test_the_ends_of_the_interval_are_inside() -> None:
    noise = InputNoise(scales=torch.ones(2))
    assert noise.perturbed(torch.tensor([[0.0, 1.0]]), Seeded(0)).shape == (1, 2)


def test_bias_noise_has_its_scale() -> None:
    """Mean absolute value of 20,000 numbers within 6.5 standard errors."""
    regions = regions_of([0.5, 0.1])
    noise = InputNoise.published(regions, epsilon=0.4, batch_size=10, first_units=20_000)
    bias = torch.full((20_000,), 2.0)
    drawn = noise.perturbed_bias(bias, Seeded(0).stream("bias noise", 0)) - bias
    assert noise.bias_scale == pytest.approx(2 * 20_000 * 2 / 10 / 0.4)
    assert abs(float(drawn.abs().mean()) / noise.bias_scale - 1) < 6.5 / math.sqrt(20_000)
    with pytest.raises(ConfigError, match="bias_scale"):
        InputNoise(scales=torch.ones(2)).perturbed_bias(bias, Seeded(0).stream("bias noise", 0))


@pytest.mark.parametrize("adjacency", BOTH)
def test_a_local_release_costs_the_same_whoever_is_a_neighbour(adjacency: Adjacency) -> None:
    assert epsilon(local_event(0.0, adjacency), 1e-5, adjacency) == 0
    assert epsilon(local_event(math.inf, adjacency), 1e-5, adjacency) == math.inf
    assert epsilon(local_event(7.5, adjacency), 0.0, adjacency) == pytest.approx(7.5)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda r: InputNoise(scales=torch.tensor([0.0])), "scales"),
        (lambda r: InputNoise(scales=torch.tensor([math.nan])), "scales"),
        (lambda r: InputNoise(scales=torch.ones(1), outside="ignore"), "outside"),
        (lambda r: InputNoise.published(r, epsilon=0.0, batch_size=5, first_units=1), "epsilon2"),
        (lambda r: InputNoise.published(r, epsilon=1.0, batch_size=0, first_units=1), "batch_size"),
        (lambda r: InputNoise.published(r, epsilon=1.0, batch_size=5, first_units=0), "first_units"),
        (lambda r: scaled_for(r, math.inf), "epsilon2"),
        (lambda r: InputNoise(scales=torch.ones(3)).perturbed(torch.rand(4, 2), Seeded(0)), "inputs"),
    ],
)
def test_bad_settings_are_refused(make: object, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(regions_of([0.5, 0.1]))  # type: ignore[operator]
    assert caught.value.field == field
