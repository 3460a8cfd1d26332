"""Bounds from error counts: reference values, and a false-alarm rate that is what it says."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay.accounting.epsilon import gaussian_epsilon
from assay.audit import bounds
from assay.audit.bounds import Errors
from assay.errors import ConfigError

# values from jax_privacy 2.0.0 auditing._clopper_pearson_upper(count, trials, significance)
UPPER = [
    (0, 100, 0.025, 0.03621669264517641),
    (5, 100, 0.025, 0.11283491110546275),
    (50, 100, 0.05, 0.5863782853690882),
    (99, 100, 0.025, 0.9997468539670226),
    (1234, 20000, 0.025, 0.06512382761567571),
]
# false positives, excluded, false negatives, included, significance, δ, then values from jax_privacy 2.0.0:
# CanaryScoreAuditor.epsilon_clopper_pearson(significance, δ, one_sided=False, threshold_strategy=Explicit) and
# epsilon_from_gdp(3 · significance, max(δ, 1e-5)), whose correction is for the three thresholds that such scores have
LOWER = [
    (10, 1000, 300, 1000, 0.05, 1e-05, 3.6004414785664545, 13.416305138746521),
    (100, 1000, 3, 1000, 0.05, 1e-05, 4.611441631226572, 20.786970974976448),
    (0, 500, 250, 500, 0.1, 0.0, 4.348855751498702, 12.66937245189421),
    (1587, 10000, 1587, 10000, 0.05, 1e-05, 1.6141553532220398, 9.630332028873957),
]


def errors(fp: int, excluded: int, fn: int, included: int) -> Errors:
    return Errors(false_positives=fp, excluded=excluded, false_negatives=fn, included=included)


@pytest.mark.parametrize(("count", "trials", "significance", "expected"), UPPER)
def test_rates_are_bounded_as_clopper_and_pearson_do(count, trials, significance, expected):
    assert bounds.rate_below(count, trials, significance) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("fp", "excluded", "fn", "included", "significance", "delta", "any_", "gaussian"), LOWER)
def test_lower_bounds_agree_with_jax_privacy(fp, excluded, fn, included, significance, delta, any_, gaussian):
    found = errors(fp, excluded, fn, included)
    assert bounds.epsilon_lower(found, delta=delta, significance=significance) == pytest.approx(any_, rel=1e-9)
    mu = bounds.mu_lower(found, significance=significance)
    assert bounds.epsilon_of_mu(mu, max(delta, 1e-5)) == pytest.approx(gaussian, rel=1e-5)


@given(n=st.integers(1, 5000), data=st.data())
def test_no_counts_give_a_negative_or_infinite_bound(n, data):
    fp, fn = data.draw(st.integers(0, n)), data.draw(st.integers(0, n))
    found = errors(fp, n, fn, n)
    assert 0 <= bounds.epsilon_lower(found, delta=1e-5, significance=0.05) < math.inf
    assert 0 <= bounds.mu_lower(found, significance=0.05) < math.inf


@given(n=st.integers(10, 3000), data=st.data())
def test_fewer_errors_never_lower_the_bounds(n, data):
    fp, fn = data.draw(st.integers(1, n)), data.draw(st.integers(0, n))
    more, fewer = errors(fp, n, fn, n), errors(fp - 1, n, fn, n)
    assert bounds.mu_lower(fewer, significance=0.05) >= bounds.mu_lower(more, significance=0.05)


def test_the_epsilon_of_mu_is_that_of_the_gaussian_mechanism():
    assert bounds.epsilon_of_mu(1.0, 1e-5) == pytest.approx(4.3771781, abs=1e-6)
    assert bounds.epsilon_of_mu(0.5, 1e-5) == gaussian_epsilon(2.0, 1e-5)
    assert bounds.epsilon_of_mu(0.0, 1e-5) == 0
    assert bounds.epsilon_of_mu(math.inf, 1e-5) == math.inf


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("place", [0.5, 1.3])
def test_a_gaussian_mechanism_is_overstated_no_more_often_than_allowed(mu, place):
    """4000 audits at 95 %: more than 276 false alarms have a probability below 1e-6 (binomial, p = 0.05)."""
    trials, n, delta = 4000, 500, 1e-2
    most = stats.binom.isf(1e-6, trials, 0.05)
    random = np.random.default_rng(7)
    fps = random.binomial(n, stats.norm.sf(place * mu), trials)
    fns = random.binomial(n, stats.norm.cdf(place * mu - mu), trials)
    true = bounds.epsilon_of_mu(mu, delta)
    found = [errors(int(fp), n, int(fn), n) for fp, fn in zip(fps, fns, strict=True)]
    assert sum(bounds.mu_lower(e, significance=0.05) > mu for e in found) <= most
    assert sum(bounds.epsilon_lower(e, delta=delta, significance=0.05) > true for e in found) <= most


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_response_is_overstated_no_more_often_than_allowed(epsilon):
    """The mechanism for which the bound without assumptions is tight; false-alarm rate of this test below 1e-6."""
    trials, n = 4000, 400
    wrong = 1 / (1 + math.exp(epsilon))
    random = np.random.default_rng(8)
    counts = random.binomial(n, wrong, (trials, 2))
    over = sum(
        bounds.epsilon_lower(errors(int(a), n, int(b), n), delta=0.0, significance=0.05) > epsilon for a, b in counts
    )
    assert over <= stats.binom.isf(1e-6, trials, 0.05)


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="false_positives"):
        errors(5, 4, 0, 4)
    with pytest.raises(ConfigError, match="confidence"):
        bounds.mu_lower(errors(1, 4, 0, 4), significance=0.0)
    with pytest.raises(ConfigError, match="delta"):
        bounds.epsilon_of_mu(1.0, 0.0)
