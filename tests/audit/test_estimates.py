"""Estimates of ε: what they say, and that they do not pass for bounds."""

import math

import numpy as np
import pytest

from assay import audit
from assay.audit.bounds import epsilon_of_mu
from assay.errors import ConfigError

DELTA = 1e-5


def scores(mu, m, seed):
    random = np.random.default_rng(seed)
    return random.standard_normal(m) + mu, random.standard_normal(m)


def test_an_interval_for_gaussian_noise_holds_as_often_as_it_says():
    """Of 60 intervals at 90 %, at least 36 hold the true ε: fewer would happen with probability below 1e-8."""
    true = epsilon_of_mu(1.5, DELTA)
    found = [
        audit.estimate(*scores(1.5, 300, i), delta=DELTA, assume="gaussian", confidence=0.9, resamples=200)
        for i in range(60)
    ]
    assert all(one.low <= one.epsilon <= one.high for one in found)
    assert sum(one.low <= true <= one.high for one in found) >= 36


def test_without_an_assumption_the_estimate_is_the_largest_ratio_of_rates():
    """100 of 1000 excluded at or above 1, all included there: ln((1 - δ)/0.1). Then the two sides exchanged."""
    included = np.ones(1000)
    excluded = np.where(np.arange(1000) < 100, 1.0, 0.0)
    expected = math.log((1 - DELTA) / 0.1)
    assert audit.estimate(included, excluded, delta=DELTA).epsilon == pytest.approx(expected)
    assert audit.estimate(-excluded, -included, delta=DELTA).epsilon == pytest.approx(expected)


def test_jax_privacy_estimates_the_same():
    auditing = pytest.importorskip("jax_privacy.auditing")
    included, excluded = scores(2.0, 4000, 0)
    theirs = auditing.CanaryScoreAuditor(included, excluded).epsilon_raw_counts(50, DELTA, one_sided=False)
    assert audit.estimate(included, excluded, delta=DELTA).epsilon == pytest.approx(theirs, abs=0.02)


def test_few_errors_count_for_nothing():
    """Fewer than 50 canaries of a side cannot show a ratio, however far apart they are."""
    assert audit.estimate(np.ones(49), np.zeros(49), delta=DELTA).epsilon == 0


def test_equal_scores_suggest_nothing():
    for assume in ("nothing", "gaussian"):
        found = audit.estimate(np.ones(200), np.ones(200), delta=DELTA, assume=assume)
        assert (found.epsilon, found.high) == (0, 0)


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("delta", {"delta": -1.0}),
        ("assume", {"assume": "laplace"}),
        ("resamples", {"resamples": 10}),
        ("confidence", {"confidence": 1.0}),
        ("included", {"included": []}),
    ],
)
def test_nonsense_is_refused(field, changed):
    included, excluded = scores(1.0, 100, 0)
    given = {"included": included, "excluded": excluded, "delta": DELTA} | changed
    with pytest.raises(ConfigError, match=field):
        audit.estimate(**given)
