"""The verified ε against closed forms, other accountants and its own promises."""

from __future__ import annotations

import math
import time

import pytest
from dp_accounting import NeighboringRelation, dp_event, pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.accounting import epsilon as accounting
from assay.accounting.epsilon import Adjacency, Bound, UnaccountableError, delta_for, epsilon, rdp_epsilon
from assay.errors import AssayError, ConfigError

ADD, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE
GAUSSIAN, LAPLACE = dp_event.GaussianDpEvent(1.0), dp_event.LaplaceDpEvent(1.0)


def sampled(rate: float, sigma: float, steps: int) -> dp_event.DpEvent:
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
    return dp_event.SelfComposedDpEvent(step, steps)


# The closed form of Balle and Wang (2018, theorem 8), solved for ε by bisection in 60 digits with mpmath 1.3.
ANALYTIC = [
    (1.0, 1e-5, 4.37717809568122463),
    (0.3, 1e-5, 19.1307678343619238),
    (5.0, 1e-6, 0.834117548624052345),
    (0.1, 1e-5, 91.8172896246637447),
    (50.0, 1e-5, 0.0586322553060961637),
    (4000.0, 1e-5, 0.000340078383134138918),
    (2.0, 1e-9, 2.90973238076361697),
]


@pytest.mark.parametrize(("sigma", "delta", "exact"), ANALYTIC)
def test_gaussians_without_sampling_are_exact(sigma: float, delta: float, exact: float) -> None:
    whole = dp_event.GaussianDpEvent(sigma)
    parts = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(sigma * 100), 10_000)
    mixed = dp_event.ComposedDpEvent(
        [dp_event.GaussianDpEvent(sigma / 0.6), dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(sigma * 5), 16)]
    )
    everyone = dp_event.PoissonSampledDpEvent(1.0, whole)
    for event in (whole, parts, mixed, everyone):
        found = epsilon(event, delta, ADD)
        assert exact * (1 - 1e-14) <= found <= exact * (1 + 1e-9) + 1e-11
    # Replacing a record moves the sum by twice its bound.
    assert epsilon(dp_event.GaussianDpEvent(2 * sigma), delta, REPLACE) == pytest.approx(exact, rel=1e-8)


# (lower, upper) bounds on ε of the PRV accountant (Gopi et al. 2021) of Opacus 1.6.0 at eps_error 0.001.
PRV = [
    (0.01, 1.0, 1000, 1e-5, 1.827105, 1.829369),
    (512 / 60_000, 1.0, 2344, 1e-5, 2.351786, 2.354093),
    (0.1, 2.0, 500, 1e-6, 6.215424, 6.217973),
    (128 / 50_000, 12.0, 19_531, 1e-5, 0.090172, 0.092189),
    (0.01, 0.5, 2000, 1e-5, 18.108520, 18.112756),
    (2048 / 60_000, 2.0, 440, 1e-5, 1.547635, 1.549839),
]


@pytest.mark.parametrize(("rate", "sigma", "steps", "delta", "lower", "upper"), PRV)
def test_agrees_with_the_prv_accountant(
    rate: float, sigma: float, steps: int, delta: float, lower: float, upper: float
) -> None:
    assert lower <= epsilon(sampled(rate, sigma, steps), delta, ADD) <= upper * 1.01


@pytest.mark.parametrize(
    ("relation", "adjacency", "rate", "sigma", "steps", "interval"),
    [
        # 0.187 at interval 1e-3, 0.0930 at 1e-4, 0.0912 at 1e-5: the interval must fit the run.
        (NeighboringRelation.ADD_OR_REMOVE_ONE, ADD, 128 / 50_000, 12.0, 19_531, 1e-5),
        (NeighboringRelation.ADD_OR_REMOVE_ONE, ADD, 0.02, 1.5, 300, 1e-3),
        (NeighboringRelation.REPLACE_ONE, REPLACE, 0.02, 1.5, 300, 1e-3),
    ],
)
def test_agrees_with_dp_accounting_on_a_fine_grid(
    relation: NeighboringRelation, adjacency: Adjacency, rate: float, sigma: float, steps: int, interval: float
) -> None:
    theirs = pld.PLDAccountant(relation, value_discretization_interval=interval)
    theirs.compose(sampled(rate, sigma, steps))
    assert epsilon(sampled(rate, sigma, steps), 1e-5, adjacency) == pytest.approx(theirs.get_epsilon(1e-5), rel=0.002)


def test_the_published_gredp_run_on_mnist_is_at_7_18() -> None:
    """Batch 500 of 60,000, 30 epochs, the multiplier 2.172 published for ε = 1, and five layers of half the noise."""
    run = sampled(500 / 60_000, 2.172 / math.sqrt(2 * 5), 30 * 120)
    assert epsilon(run, 1e-5, ADD) == pytest.approx(7.18, rel=0.01)


def test_twenty_thousand_steps_take_under_a_second() -> None:
    start = time.process_time()
    epsilon(sampled(0.0123, 1.37, 20_000), 1e-5, ADD)
    assert time.process_time() - start < 1


EXTREMES = [
    (rate, sigma, steps, delta)
    for rate in (1e-6, 0.01, 0.9)
    for sigma in (0.3, 3.0, 500.0)
    for steps in (1, 1000, 200_000)
    for delta in (1e-5,)
]


@pytest.mark.parametrize(("rate", "sigma", "steps", "delta"), EXTREMES)
def test_extremes_neither_fail_nor_go_below_zero(rate: float, sigma: float, steps: int, delta: float) -> None:
    event = sampled(rate, sigma, steps)
    found = epsilon(event, delta, ADD)
    assert 0 <= found < math.inf
    # A second, independent upper bound; ours is the closer one to within what it may be off itself.
    assert found <= accounting.rdp_epsilon(event, delta, ADD) * 1.006


@pytest.mark.parametrize("target", [0.001, 0.01, 50.0, 200.0])
def test_small_and_large_epsilons_agree_with_the_gaussian_limit(target: float) -> None:
    """Much noise over many steps: by the central limit theorem of Dong, Roth and Su (2022) close to μ-GDP."""
    mu = accounting.gdp_mu(target, 1e-5)
    rate, steps = 0.5, 20_000
    sigma = rate * math.sqrt(steps) / mu
    assert epsilon(sampled(rate, sigma, steps), 1e-5, ADD) == pytest.approx(target, rel=0.02)


def test_delta_alone_may_cover_everything() -> None:
    assert epsilon(sampled(1e-6, 500.0, 200_000), 1e-5, ADD) == 0
    assert epsilon(dp_event.GaussianDpEvent(1e6), 1e-5, ADD) == 0
    assert epsilon(dp_event.NoOpDpEvent(), 0.0, ADD) == epsilon(dp_event.ComposedDpEvent([]), 1e-5, ADD) == 0


def test_tiny_deltas_fall_back_on_renyi_divergences() -> None:
    event = sampled(0.001, 1.0, 2000)
    found = epsilon(event, 1e-30, ADD)
    assert epsilon(event, 1e-9, ADD) < found < math.inf
    assert found == accounting.rdp_epsilon(event, 1e-30, ADD)


def fixed_size(steps: int) -> dp_event.DpEvent:
    return dp_event.SelfComposedDpEvent(dp_event.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN), steps)


@pytest.mark.parametrize(
    ("event", "delta", "adjacency", "expected"),
    [
        (GAUSSIAN, 1e-5, ADD, Bound.EXACT),
        (dp_event.NoOpDpEvent(), 1e-5, ADD, Bound.EXACT),
        (sampled(0.01, 1.0, 100), 1e-5, ADD, Bound.PLD),
        (sampled(0.01, 1.0, 100), 1e-5, REPLACE, Bound.PLD),
        (sampled(256 / 60_000, 1.0, 10_000), 1e-5, ADD, Bound.PLD),
        (sampled(256 / 60_000, 1.0, 10_000), 3e-11, ADD, Bound.LOOSE_PLD),  # two thirds of δ go to rounding
        (sampled(256 / 60_000, 1.0, 10_000), 1e-11, ADD, Bound.RENYI),  # all of it
        (fixed_size(20), 1e-5, REPLACE, Bound.LOOSE_PLD),  # no exact pair is known
        (dp_event.ZCDpEvent(0.1), 1e-5, ADD, Bound.RENYI),
        (dp_event.ComposedDpEvent([LAPLACE, dp_event.LaplaceDpEvent(2.0)]), 0.0, ADD, Bound.SUM),
        (dp_event.NonPrivateDpEvent(), 1e-5, ADD, Bound.NONE),
        (GAUSSIAN, 0.0, ADD, Bound.NONE),
    ],
)
def test_an_epsilon_says_which_bound_it_is(
    event: dp_event.DpEvent, delta: float, adjacency: Adjacency, expected: Bound
) -> None:
    assert accounting.bound(event, delta, adjacency) is expected
    if expected is Bound.RENYI:
        assert epsilon(event, delta, adjacency) == pytest.approx(rdp_epsilon(event, delta, adjacency), rel=1e-6)


@pytest.mark.parametrize(
    "bare",
    [
        dp_event.NonPrivateDpEvent(),
        dp_event.GaussianDpEvent(0.0),
        dp_event.LaplaceDpEvent(0),
        dp_event.PoissonSampledDpEvent(0.01, dp_event.NonPrivateDpEvent()),
        dp_event.PoissonSampledDpEvent(0.01, dp_event.ComposedDpEvent([GAUSSIAN, dp_event.GaussianDpEvent(0.0)])),
        dp_event.PoissonSampledDpEvent(1.0, dp_event.NonPrivateDpEvent()),
    ],
)
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_what_leaves_without_noise_costs_everything(bare: dp_event.DpEvent, adjacency: Adjacency) -> None:
    event = dp_event.ComposedDpEvent([sampled(0.1, 2.0, 10), bare])
    assert epsilon(event, 1e-5, adjacency) == math.inf
    assert accounting.rdp_epsilon(event, 1e-5, adjacency) == math.inf
    assert accounting.delta_for(event, 10.0, adjacency) == 1
    assert accounting.epsilon_after(event, 1e-5, adjacency, [0, 1]) == [0, math.inf]
    assert epsilon(dp_event.SelfComposedDpEvent(bare, 0), 1e-5, adjacency) == 0


def test_nobody_sampled_costs_nothing() -> None:
    assert epsilon(sampled(0.0, 1.0, 100), 1e-5, ADD) == 0


ranges = {
    "rate": st.floats(-5, -0.05).map(lambda x: 10**x),
    "sigma": st.floats(-0.4, 2).map(lambda x: 10**x),
    "steps": st.floats(0, 4).map(lambda x: int(10**x)),
    "delta": st.floats(-8, -3).map(lambda x: 10**x),
}


@given(**ranges)
@settings(max_examples=15, deadline=None)
def test_grows_with_steps_rate_and_adjacency_and_falls_with_noise_and_delta(
    rate: float, sigma: float, steps: int, delta: float
) -> None:
    here = epsilon(sampled(rate, sigma, steps), delta, ADD)
    off = 1.006  # each result may lie this much above its limit
    assert here <= off * epsilon(sampled(rate, sigma, 2 * steps), delta, ADD)
    assert here <= off * epsilon(sampled(min(1.2 * rate, 1.0), sigma, steps), delta, ADD)
    assert here <= off * epsilon(sampled(rate, sigma, steps), delta, REPLACE)
    assert off * here >= epsilon(sampled(rate, 1.2 * sigma, steps), delta, ADD)
    assert off * here >= epsilon(sampled(rate, sigma, steps), 2 * delta, ADD)
    # Sampling cannot cost more than no sampling.
    assert here <= off * epsilon(sampled(1.0, sigma, steps), delta, ADD)


def test_composition_counts_the_same_however_it_is_written() -> None:
    step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(0.9))
    nested = dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(dp_event.SelfComposedDpEvent(step, 20), 5),
            dp_event.ComposedDpEvent([step] * 50),
            dp_event.NoOpDpEvent(),
        ]
    )
    assert epsilon(nested, 1e-5, ADD) == epsilon(dp_event.SelfComposedDpEvent(step, 150), 1e-5, ADD)


def test_releases_from_one_sample_are_merged_before_sampling() -> None:
    two = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(3.0), dp_event.GaussianDpEvent(4.0)])
    for adjacency in Adjacency:
        joint = epsilon(dp_event.PoissonSampledDpEvent(0.1, two), 1e-6, adjacency)
        assert joint == pytest.approx(
            epsilon(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.4)), 1e-6, adjacency), rel=1e-9
        )


def test_laplace_is_pure_and_doubles_when_a_record_is_replaced() -> None:
    event = dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(2.0), 3)
    assert epsilon(event, 0.0, ADD) == pytest.approx(1.5)
    assert epsilon(event, 0.0, REPLACE) == pytest.approx(3.0)
    # One release in closed form: δ = 1 - e^((ε - ε₀)/2).
    one = dp_event.LaplaceDpEvent(2.0)
    assert epsilon(one, 0.01, ADD) == pytest.approx(0.5 + 2 * math.log1p(-0.01), rel=0.01)
    assert epsilon(one, 0.01, ADD) >= 0.5 + 2 * math.log1p(-0.01)
    assert accounting.delta_for(one, 0.5 + 2 * math.log1p(-0.01), ADD) == pytest.approx(0.01)
    many = dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(20.0), 500)
    assert epsilon(many, 1e-5, ADD) < accounting.rdp_epsilon(many, 1e-5, ADD) < 25


def test_randomized_response_is_counted_as_often_as_it_happens() -> None:
    """dp_accounting 0.6 leaves the count out: 1.0987 for 1, 5 and 50 answers."""
    answer = dp_event.RandomizedResponseDpEvent(0.5, 2)
    pure = math.log(3)
    assert epsilon(answer, 0.0, REPLACE) == pytest.approx(pure)
    for count in (1, 5, 50):
        event = dp_event.SelfComposedDpEvent(answer, count)
        assert epsilon(event, 0.0, REPLACE) == pytest.approx(count * pure)
        assert epsilon(event, 1e-9, REPLACE) >= 0.9 * pure * min(count, 20)
        assert epsilon(event, 1e-9, REPLACE) <= accounting.rdp_epsilon(event, 1e-9, REPLACE) * 1.006
    with pytest.raises(UnaccountableError, match="replace-one"):
        epsilon(answer, 1e-5, ADD)
    assert epsilon(dp_event.RandomizedResponseDpEvent(1.0, 2), 0.0, REPLACE) == 0
    assert epsilon(dp_event.RandomizedResponseDpEvent(0.0, 2), 0.5, REPLACE) == math.inf


def fixed_size(size: int, source: int, sigma: float, steps: int) -> dp_event.DpEvent:
    step = dp_event.SampledWithoutReplacementDpEvent(source, size, dp_event.GaussianDpEvent(sigma))
    return dp_event.SelfComposedDpEvent(step, steps)


@pytest.mark.parametrize(("size", "sigma", "steps"), [(100, 1.0, 500), (1000, 2.0, 200), (10, 0.8, 5000)])
def test_samples_of_fixed_size(size: int, sigma: float, steps: int) -> None:
    found = epsilon(fixed_size(size, 10_000, sigma, steps), 1e-5, REPLACE)
    # Given the other b-1 records the sum holds z (or z') with probability q, else some u; relative to u both
    # are at most 2C away, which is Poisson sampling at half the multiplier when a record is replaced.
    assert found <= epsilon(sampled(size / 10_000, sigma / 2, steps), 1e-5, REPLACE)
    # And the others can all be at -C: then the new record moves the sum by 2C with probability q.
    assert found >= epsilon(sampled(size / 10_000, sigma / 2, steps), 1e-5, ADD) / 1.006
    assert found <= accounting.rdp_epsilon(fixed_size(size, 10_000, sigma, steps), 1e-5, REPLACE)


def test_samples_of_fixed_size_at_their_limits() -> None:
    everyone = fixed_size(50, 50, 3.0, 7)
    assert epsilon(everyone, 1e-5, REPLACE) == epsilon(sampled(1.0, 3.0, 7), 1e-5, REPLACE)
    assert epsilon(fixed_size(0, 50, 3.0, 7), 1e-5, REPLACE) == 0
    with pytest.raises(UnaccountableError, match="changes the number of records"):
        epsilon(fixed_size(5, 50, 3.0, 7), 1e-5, ADD)


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (dp_event.PoissonSampledDpEvent(0.1, LAPLACE), REPLACE),
        (dp_event.SampledWithoutReplacementDpEvent(10, 5, LAPLACE), REPLACE),
        (dp_event.PoissonSampledDpEvent(0.1, dp_event.ComposedDpEvent([GAUSSIAN, LAPLACE])), ADD),
        (dp_event.PoissonSampledDpEvent(0.1, dp_event.SelfComposedDpEvent(LAPLACE, 2)), ADD),
        (dp_event.PoissonSampledDpEvent(0.1, dp_event.PoissonSampledDpEvent(0.1, GAUSSIAN)), ADD),
        (dp_event.PoissonSampledDpEvent(0.1, dp_event.RandomizedResponseDpEvent(0.5, 2)), REPLACE),
        (dp_event.SampledWithReplacementDpEvent(10, 5, GAUSSIAN), ADD),
        (dp_event.UnsupportedDpEvent(), ADD),
        (dp_event.ZCDpEvent(0.1, 0.5), ADD),
        (dp_event.PoissonSampledDpEvent(0.1, dp_event.ZCDpEvent(0.1)), ADD),
        (dp_event.GaussianDpEvent(-1.0), ADD),
        (dp_event.GaussianDpEvent(math.nan), ADD),
    ],
)
def test_what_cannot_be_bounded_is_refused_and_never_skipped(event: dp_event.DpEvent, adjacency: Adjacency) -> None:
    for whole in (event, dp_event.ComposedDpEvent([GAUSSIAN, event])):
        with pytest.raises(AssayError):
            epsilon(whole, 1e-5, adjacency)
        with pytest.raises(AssayError):
            accounting.rdp_epsilon(whole, 1e-5, adjacency)
        with pytest.raises(AssayError):
            accounting.delta_for(whole, 1.0, adjacency)


def test_sampled_laplace_noise() -> None:
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.02, LAPLACE), 200)
    theirs = pld.PLDAccountant(value_discretization_interval=1e-4)
    theirs.compose(event)
    assert epsilon(event, 1e-6, ADD) == pytest.approx(theirs.get_epsilon(1e-6), rel=0.005)
    assert epsilon(event, 0.0, ADD) == pytest.approx(200 * math.log1p(0.02 * math.expm1(1)))
    assert accounting.rdp_epsilon(event, 1e-6, ADD) == math.inf


def test_the_cross_check_is_dp_accountings_and_knows_about_replacement() -> None:
    theirs = rdp.RdpAccountant()
    theirs.compose(sampled(0.01, 1.0, 1000))
    found = accounting.rdp_epsilon(sampled(0.01, 1.0, 1000), 1e-5, ADD)
    assert theirs.get_epsilon(1e-5) <= found <= theirs.get_epsilon(1e-5) * (1 + 1e-6)
    # dp_accounting's own Rényi accountant takes the multiplier as it stands when a record is replaced.
    replaced = accounting.rdp_epsilon(dp_event.GaussianDpEvent(4.0), 1e-5, REPLACE)
    assert replaced == accounting.rdp_epsilon(dp_event.GaussianDpEvent(2.0), 1e-5, ADD)
    assert replaced > epsilon(dp_event.GaussianDpEvent(4.0), 1e-5, REPLACE)


def test_the_curve_falls_with_delta_and_passes_through_each_epsilon() -> None:
    event = sampled(0.01, 0.8, 700)
    deltas = [1e-3, 1e-6, 1e-9]
    curve = accounting.epsilon_curve(event, deltas, ADD)
    assert [delta for delta, _ in curve] == deltas
    bounds = [eps for _, eps in curve]
    assert bounds == sorted(bounds)
    assert accounting.epsilon_curve(event, [], ADD) == []
    for delta, eps in curve:
        assert eps == pytest.approx(epsilon(event, delta, ADD), rel=0.006)
        # δ(ε) falls steeply: half a percent of ε is a few percent of δ.
        assert accounting.delta_for(event, eps, ADD) == pytest.approx(delta, rel=0.08)


def test_delta_for_one_gaussian_is_the_closed_form() -> None:
    for sigma, delta, exact in ANALYTIC:
        assert accounting.delta_for(dp_event.GaussianDpEvent(sigma), exact, ADD) == pytest.approx(delta, rel=1e-9)


def test_epsilon_after_each_epoch() -> None:
    step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(0.9))
    counts = [0, 300, 100, 200, 100]
    spent = accounting.epsilon_after(step, 1e-5, ADD, counts)
    for count, eps in zip(counts, spent, strict=True):
        assert eps == pytest.approx(epsilon(dp_event.SelfComposedDpEvent(step, count), 1e-5, ADD), rel=0.006)
    every = accounting.epsilon_after(step, 1e-5, ADD, range(10, 40, 3))
    assert every == sorted(every)
    with pytest.raises(ConfigError):
        accounting.epsilon_after(step, 1e-5, ADD, [3, -1])


@given(st.floats(-3, 2).map(lambda x: 10**x), st.floats(-9, -2).map(lambda x: 10**x))
@settings(deadline=None)
def test_gdp_says_the_same_in_other_words(eps: float, delta: float) -> None:
    mu = accounting.gdp_mu(eps, delta)
    assert accounting.gaussian_epsilon(1 / mu, delta) == pytest.approx(eps, rel=1e-6, abs=1e-9)


def test_gdp_at_the_ends() -> None:
    assert accounting.gdp_mu(math.inf, 1e-5) == math.inf
    # Total variation 2Φ(μ/2) - 1 = δ at ε = 0.
    assert accounting.gdp_mu(0.0, 1e-5) == pytest.approx(1e-5 * math.sqrt(2 * math.pi), rel=1e-6)
    assert accounting.gaussian_epsilon(0.0, 1e-5) == math.inf


@pytest.mark.parametrize("delta", [-1e-9, 1.0, 1.5, math.nan])
def test_delta_must_be_a_probability_below_one(delta: float) -> None:
    for ask in (
        lambda: epsilon(GAUSSIAN, delta, ADD),
        lambda: accounting.rdp_epsilon(GAUSSIAN, delta, ADD),
        lambda: accounting.epsilon_after(GAUSSIAN, delta, ADD, [1]),
        lambda: accounting.gdp_mu(1.0, delta),
        lambda: accounting.gaussian_epsilon(1.0, delta),
    ):
        with pytest.raises(ConfigError) as error:
            ask()
        assert error.value.field == "delta"


def test_epsilon_must_be_finite_and_not_negative() -> None:
    for eps in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError):
            accounting.delta_for(GAUSSIAN, eps, ADD)
    with pytest.raises(ConfigError):
        accounting.gdp_mu(-1.0, 1e-5)
    with pytest.raises(ConfigError):
        accounting.gaussian_epsilon(-1.0, 1e-5)


def test_zero_concentrated_releases_are_composed_by_their_divergences() -> None:
    """ρ adds up; four times as much where a record is replaced (Bun and Steinke 2016, proposition 1.9)."""
    gaussian = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(4.0), 20)
    known_by_rho = dp_event.SelfComposedDpEvent(dp_event.ZCDpEvent(1 / 32), 20)
    for adjacency in Adjacency:
        spent = epsilon(known_by_rho, 1e-5, adjacency)
        assert spent == pytest.approx(rdp_epsilon(gaussian, 1e-5, adjacency), rel=1e-6)
        assert spent > epsilon(gaussian, 1e-5, adjacency), "a Gaussian is known better than by ρ"
    once = epsilon(dp_event.ZCDpEvent(20 / 8), 1e-5, Adjacency.ADD_OR_REMOVE_ONE)
    assert once == pytest.approx(epsilon(known_by_rho, 1e-5, Adjacency.REPLACE_ONE), rel=1e-6)


def test_zero_concentrated_releases_together_with_others() -> None:
    rho, gaussian = dp_event.ZCDpEvent(0.02), dp_event.GaussianDpEvent(5.0)
    both = epsilon(dp_event.ComposedDpEvent([rho, gaussian]), 1e-5, Adjacency.ADD_OR_REMOVE_ONE)
    assert both == pytest.approx(epsilon(dp_event.ZCDpEvent(0.04), 1e-5, Adjacency.ADD_OR_REMOVE_ONE), rel=1e-6)
    assert epsilon(dp_event.ZCDpEvent(0.0), 1e-5, Adjacency.ADD_OR_REMOVE_ONE) == 0.0
    assert epsilon(rho, 0.0, Adjacency.ADD_OR_REMOVE_ONE) == math.inf


def test_sampling_does_not_amplify_what_is_known_by_rho_only() -> None:
    event = dp_event.PoissonSampledDpEvent(0.1, dp_event.ZCDpEvent(0.02))
    with pytest.raises(UnaccountableError, match="no bound"):
        epsilon(event, 1e-5, Adjacency.ADD_OR_REMOVE_ONE)
    with pytest.raises(UnaccountableError):
        delta_for(dp_event.ZCDpEvent(0.02), 1.0, Adjacency.ADD_OR_REMOVE_ONE)
