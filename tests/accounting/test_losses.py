"""Privacy profiles of single releases, and their composition, against exact and independent computations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss, LaplacePrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.optimize import brentq
from scipy.stats import binom, norm

from assay.accounting import composition
from assay.accounting.composition import epsilon_at, refined
from assay.accounting.losses import (
    Array,
    Gaussian,
    Laplace,
    Poisson,
    PoissonReplaced,
    RandomizedResponse,
    Term,
    Terms,
    WithoutReplacement,
)

EPS = np.concatenate([[0.0], np.geomspace(1e-6, 20, 200)])


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.3, 0.5), (0.9, 3.0), (0.001, 12.0)])
def test_profiles_are_those_of_dp_accounting(rate: float, sigma: float) -> None:
    def theirs(loss: type[GaussianPrivacyLoss | LaplacePrivacyLoss], adjacency: AdjacencyType) -> Array:
        made = loss(sigma, sampling_prob=rate, adjacency_type=adjacency)
        return np.asarray(made.get_delta_for_epsilon(EPS))

    gaussian, laplace = Poisson(rate, Gaussian(sigma)), Poisson(rate, Laplace(sigma))
    same = {"rtol": 0, "atol": 1e-15}
    np.testing.assert_allclose(gaussian.forward(EPS), theirs(GaussianPrivacyLoss, AdjacencyType.REMOVE), **same)
    np.testing.assert_allclose(gaussian.backward(EPS), theirs(GaussianPrivacyLoss, AdjacencyType.ADD), **same)
    np.testing.assert_allclose(laplace.forward(EPS), theirs(LaplacePrivacyLoss, AdjacencyType.REMOVE), **same)
    np.testing.assert_allclose(laplace.backward(EPS), theirs(LaplacePrivacyLoss, AdjacencyType.ADD), **same)
    # The pair of "replace one" has the records at +1 and -1: the multiplier stays relative to one record.
    replaced = theirs(GaussianPrivacyLoss, AdjacencyType.REPLACE)
    np.testing.assert_allclose(PoissonReplaced(rate, sigma).forward(EPS), replaced, **same)


def hockey_stick(p: Array, q: Array, x: Array, eps: Array) -> Array:
    return np.array([trapezoid(np.maximum(p - math.exp(e) * q, 0), x) for e in eps])


def mixture(x: Array, sigma: float, weighted_means: list[tuple[float, float]]) -> Array:
    return sum((w * norm.pdf(x, mean, sigma) for w, mean in weighted_means), np.zeros_like(x))


records = st.floats(-1, 1)  # what a record adds to the sum, clipped to C = 1


@given(st.lists(records, min_size=3, max_size=3), records, records, st.floats(0.4, 3), st.floats(0.05, 0.95))
@settings(max_examples=40, deadline=None)
def test_no_data_set_beats_the_bounds_on_sampling(
    others: list[float], old: float, new: float, sigma: float, rate: float
) -> None:
    """Enumerates every sample of small data sets, and compares what neighbours really give with the bounds."""
    eps = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0])
    x = np.linspace(-4 - 9 * sigma, 4 + 9 * sigma, 8001)
    slack = 1e-6  # of the trapezoidal rule across the kinks of [p - e^ε q]₊

    def poisson(data: list[float]) -> Array:
        samples = itertools.product([0, 1], repeat=len(data))
        return mixture(
            x,
            sigma,
            [(rate ** sum(s) * (1 - rate) ** (len(data) - sum(s)), sum(np.multiply(s, data))) for s in samples],
        )

    def fixed(data: list[float], size: int) -> Array:
        sums = [sum(sample) for sample in itertools.combinations(data, size)]
        return mixture(x, sigma, [(1 / len(sums), total) for total in sums])

    without, with_old, with_new = poisson(others), poisson([*others, old]), poisson([*others, new])
    added = Poisson(rate, Gaussian(sigma))
    assert (hockey_stick(with_old, without, x, eps) <= added.forward(eps) + slack).all()
    assert (hockey_stick(without, with_old, x, eps) <= added.backward(eps) + slack).all()
    bound = PoissonReplaced(rate, sigma).forward(eps)
    assert (hockey_stick(with_old, with_new, x, eps) <= bound + slack).all()
    for size in (1, 2, 3):
        bound = WithoutReplacement(size, 4, Gaussian(sigma / 2)).forward(eps)
        stick = hockey_stick(fixed([*others, old], size), fixed([*others, new], size), x, eps)
        assert (stick <= bound + slack).all()


def test_the_bound_on_samples_of_fixed_size_is_reached() -> None:
    """All records at -1 and the new one at +1: no smaller bound would be sound."""
    sigma, x, eps = 1.0, np.linspace(-12, 12, 20001), np.array([0.0, 0.3, 1.0, 2.0])
    old = norm.pdf(x, -2, sigma)
    new = mixture(x, sigma, [(0.5, -2.0), (0.5, 0.0)])
    bound = WithoutReplacement(2, 4, Gaussian(sigma / 2)).forward(eps)
    np.testing.assert_allclose(hockey_stick(new, old, x, eps), bound, atol=1e-6)


TERMS: list[Term] = [
    Gaussian(0.7),
    Laplace(2.0),
    RandomizedResponse(0.6, 5),
    Poisson(0.03, Gaussian(0.8)),
    Poisson(0.2, Laplace(0.5)),
    PoissonReplaced(0.05, 1.1),
    WithoutReplacement(3, 50, Gaussian(0.6)),
]


@pytest.mark.parametrize("term", TERMS, ids=str)
def test_a_step_on_the_grid_is_exact_there_and_never_below(term: Term) -> None:
    h = 0.05
    step = composition.discretised(term.forward, term.backward, h, 1e-12)
    on = h * np.arange(60)
    between = on + 0.37 * h
    profile = [step.get_delta_for_epsilon(float(e)) for e in on]
    np.testing.assert_allclose(profile, term.forward(on), rtol=0, atol=1e-12)
    above = [step.get_delta_for_epsilon(float(e)) for e in between]
    assert (np.array(above) >= term.forward(between) - 1e-13).all()
    # All mass is there: at ε = -∞ the profile is one.
    assert step.get_delta_for_epsilon(-200.0) == pytest.approx(1, abs=1e-12)


def twice(term: Term, eps: float, *, sigma: float, rate: float, old: float, new: float) -> float:
    """δ(ε) of two steps exactly: the profile of one, averaged over the loss of the other."""
    x = np.linspace(-14 * sigma - 2, 14 * sigma + 2, 40001)
    p = mixture(x, sigma, [(rate, old), (1 - rate, 0.0)])
    q = mixture(x, sigma, [(rate, new), (1 - rate, 0.0)])
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.where(p > 0, eps - np.log(p) + np.log(q), 0.0)
    up, down = term.forward(np.maximum(rest, 0)), term.backward(np.maximum(-rest, 0))
    one = np.where(rest >= 0, up, -np.expm1(np.minimum(rest, 0)) + np.exp(np.minimum(rest, 0)) * down)
    return float(trapezoid(p * one, x))


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 0.6), (0.3, 1.0), (0.7, 4.0)])
@pytest.mark.parametrize("replace", [False, True])
def test_two_steps_agree_with_their_integral(rate: float, sigma: float, replace: bool) -> None:
    term: Term = PoissonReplaced(rate, sigma) if replace else Poisson(rate, Gaussian(sigma))
    delta = 1e-5
    exact = brentq(
        lambda e: twice(term, e, sigma=sigma, rate=rate, old=1.0, new=-1.0 if replace else 0.0) - delta, 0, 100
    )
    found, settled = refined(((term, 2),), [1], 1e-4 * delta, lambda pmf, _: [epsilon_at(pmf, delta)])
    assert settled
    assert exact * (1 - 1e-6) <= found[0, 0] <= exact * 1.01


def test_randomized_response_agrees_with_the_binomial_distribution() -> None:
    term, count = RandomizedResponse(0.5, 2), 30
    truth = 0.75  # P(truth) of two buckets at noise ½

    def delta(eps: float) -> float:
        k = np.arange(count + 1)
        p, q = binom.pmf(k, count, truth), binom.pmf(k, count, 1 - truth)
        return float(np.maximum(p - math.exp(eps) * q, 0).sum())

    answers, _ = refined(
        ((term, count),), [1], 1e-13, lambda pmf, _: [pmf.get_delta_for_epsilon(e) for e in (1.0, 5.0, 10.0)]
    )
    for eps, answer in zip((1.0, 5.0, 10.0), answers[0], strict=True):
        assert delta(eps) * (1 - 1e-9) <= answer <= delta(eps) * 1.01


@pytest.mark.parametrize(
    ("terms", "delta"),
    [
        (((Poisson(0.01, Gaussian(1.0)), 1000),), 1e-5),
        (((Poisson(1e-4, Gaussian(0.6)), 20_000),), 1e-6),
        (((Poisson(1e-3, Gaussian(200.0)), 20_000),), 1e-5),
        (((Poisson(0.2, Gaussian(0.4)), 300),), 1e-5),
        (((PoissonReplaced(0.02, 2.0), 5000),), 1e-6),
        (((WithoutReplacement(100, 10_000, Gaussian(0.5)), 500),), 1e-5),
        (((Poisson(0.01, Laplace(0.5)), 400),), 1e-6),
        (((RandomizedResponse(0.8, 3), 40),), 1e-6),
        (((Poisson(0.02, Gaussian(4.5)), 240), (Gaussian(1.3), 1), (Laplace(5.0), 3)), 1e-6),
    ],
    ids=str,
)
def test_the_result_is_within_one_percent_of_much_finer_grids_and_not_below(terms: Terms, delta: float) -> None:
    intervals: list[float] = []

    def query(pmf: composition.DensePLDPmf, steps: int) -> list[float]:
        intervals.append(pmf._discretization)
        return [epsilon_at(pmf, delta)]

    found, settled = refined(terms, [1], 1e-4 * delta, query)
    total = sum(count for _, count in terms)
    _, finer = composition.answers_on_grid(
        terms, [1], min(intervals) / 8, 1e-4 * delta / (2 * total), 1e-4 * delta / 2, query
    )
    assert settled
    assert finer[0, 0] * (1 - 1e-6) <= found[0, 0] <= finer[0, 0] * 1.01


def test_epsilon_beyond_the_range_of_the_exponential_is_still_found() -> None:
    """e^-ε is zero in floating point above 745; the Gaussian itself has a closed form to compare with."""
    sigma = 0.03
    pmf = composition.discretised(Gaussian(sigma).forward, Gaussian(sigma).forward, 0.1, 1e-12)
    found = epsilon_at(pmf, 1e-5)
    assert found > 650
    at = Gaussian(sigma).forward(np.array([found, found * 0.999]))
    assert at[0] <= 1e-5 < at[1]
