"""Binomial noise: the computed ρ bounds the exact divergences and the exact privacy profile.

The theorem is the paper's.
"""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.dp_event import SelfComposedDpEvent, ZCDpEvent
from scipy.special import logsumexp
from scipy.stats import binom

from assay.accounting.epsilon import Adjacency, epsilon
from assay.federated.binomial import rho, theorem_epsilon


def pair(trials, shift):
    """Bin(N, ½) at the outcomes of both, and the same shifted."""
    outcomes = np.arange(0, trials + shift + 1)
    return binom.pmf(outcomes, trials, 0.5), binom.pmf(outcomes - shift, trials, 0.5)


def exact_delta(trials, shifts, eps):
    """sup_S P(S) - e^ε Q(S) for a product of shifted binomials, by summing over all outcomes."""
    p, q = np.ones(1), np.ones(1)
    for shift in shifts:
        one, other = pair(trials, shift)
        p, q = np.multiply.outer(p, one).ravel(), np.multiply.outer(q, other).ravel()
    return max(np.maximum(p - math.exp(eps) * q, 0).sum(), np.maximum(q - math.exp(eps) * p, 0).sum())


@pytest.mark.parametrize("trials", [600, 2000, 10_000])
def test_rho_bounds_the_exact_divergences(trials):
    largest = int(math.sqrt(trials) / 4)
    found = rho(trials, largest, 1.0)
    for shift in {1, 2, largest}:
        p, q = pair(trials, shift)
        kept = (p > 1e-25) & (q > 1e-25)  # the rest is what δ's slack is for
        p, q = p[kept] / p[kept].sum(), q[kept] / q[kept].sum()
        for order in (1.0001, 1.5, 2, 5, 17.3, 64, 512):
            exact = logsumexp(order * np.log(p) + (1 - order) * np.log(q)) / (order - 1)
            assert exact <= found * order * shift**2 * (1 + 1e-9)
    # and is not far above what the variance N/4 gives in the limit
    assert 2 / trials <= found <= 2 / trials * 1.15


@pytest.mark.parametrize("shifts", [(1,), (5,), (3, 4), (5, 5)])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_epsilon_is_an_upper_bound_of_the_exact_one(shifts, delta):
    trials = 600
    event = ZCDpEvent(rho(trials, max(shifts), math.hypot(*shifts)))
    spent = epsilon(event, delta, Adjacency.ADD_OR_REMOVE_ONE)
    assert exact_delta(trials, shifts, spent) <= delta
    # and within a factor of the exact ε
    low, high = 0.0, spent
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if exact_delta(trials, shifts, middle) > delta else (low, middle)
    assert spent <= 1.6 * high + 0.02


def test_every_shift_within_the_bounds_is_covered():
    """All whole-number vectors of two coordinates with norm at most 5 and entries at most 4."""
    trials, event = 600, ZCDpEvent(rho(600, 4, 5.0))
    eps = epsilon(event, 1e-3, Adjacency.ADD_OR_REMOVE_ONE)
    for shifts in itertools.product(range(5), repeat=2):
        if 0 < math.hypot(*shifts) <= 5:
            assert exact_delta(trials, shifts, eps) <= 1e-3


def test_replacing_is_covered():
    """A client's vector v replaced by w moves the sum by w - v, up to twice as far and in each coordinate up to twice
    as much.
    """
    event = ZCDpEvent(rho(600, 3, 3.0))
    eps = epsilon(event, 1e-3, Adjacency.REPLACE_ONE)
    assert exact_delta(600, (6,), eps) <= 1e-3


def test_composition_of_releases():
    one = ZCDpEvent(rho(600, 2, 2.0))
    eps = epsilon(SelfComposedDpEvent(one, 2), 1e-3, Adjacency.ADD_OR_REMOVE_ONE)
    assert exact_delta(600, (2, 2), eps) <= 1e-3


def test_too_few_trials_give_no_bound():
    assert rho(500, 1, 1.0) == math.inf
    assert rho(10_000, 26, 1.0) == math.inf


def test_theorem_by_hand():
    # N = 40,000, d = 100, δ = 1e-3, Δ₁ = 10, Δ₂ = 5, Δ_∞ = 2; each term by hand
    first = 5 * math.sqrt(2 * math.log(1250)) / 100
    second = (5 * 2.5 * math.sqrt(math.log(10_000)) + 10 / 3) / (10_000 * (1 - 1e-4))
    third = (2 / 3 * 2 * math.log(1250) + 2 * 2 / 3 * math.log(2_000_000) * math.log(10_000)) / 10_000
    assert theorem_epsilon(40_000, 100, 1e-3, 10, 5, 2) == pytest.approx(first + second + third, rel=1e-12)
    assert theorem_epsilon(1000, 100, 1e-3, 10, 5, 2) == math.inf, "N/4 is below 23 log(10d/δ)"


def test_the_computed_bound_is_below_the_theorem():
    trials, l2 = 40_000, 5.0
    computed = epsilon(ZCDpEvent(rho(trials, 2, l2)), 1e-3, Adjacency.ADD_OR_REMOVE_ONE)
    assert computed < theorem_epsilon(trials, 100, 1e-3, 10, l2, 2)
