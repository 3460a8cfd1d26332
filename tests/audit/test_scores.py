"""Scores of anybody's canaries to a lower bound."""

import math

import numpy as np
import pytest
from scipy import stats

from assay import audit
from assay.accounting.epsilon import gdp_mu
from assay.audit import one_run
from assay.audit.bounds import epsilon_of_mu
from assay.audit.scores import guessed
from assay.errors import ConfigError

DELTA = 1e-5


def scores(mu: float, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One run: fair coins, noise N(0, 1), included canaries higher by μ."""
    random = np.random.default_rng(seed)
    coins = random.random(m) < 0.5
    values = random.standard_normal(m) + mu * coins
    return values[coins], values[~coins]


def test_one_run_at_epsilon_four():
    """What the literature reports for one simulated run of 5000 canaries at ε = 4: 1.40, 2.06, 1.56, 3.78."""
    included, excluded = scores(gdp_mu(4.0, DELTA), 5000, 0)
    found = {
        (assume, independent): audit.from_scores(
            included, excluded, delta=DELTA, assume=assume, independent=independent
        ).epsilon
        for assume in ("nothing", "gaussian")
        for independent in (False, True)
    }
    assert 1.2 < found["nothing", False] < found["gaussian", False] < 4
    assert 1.2 < found["nothing", True] < 4
    assert 3.4 < found["gaussian", True] < 4


def test_the_result_says_how_it_was_obtained():
    included, excluded = scores(1.0, 400, 1)
    found = audit.from_scores(included, excluded, delta=DELTA, guesses=100)
    assert found.canaries == 400
    assert found.confidence == pytest.approx(0.95)
    assert found.assumption == ""
    assert "of 100 guesses right about 400 canaries" in found.how
    assert "Steinke" in found.estimator
    right = guessed(included, excluded, 100)
    assert found.epsilon == one_run.epsilon_lower(right, delta=DELTA, significance=1 - 0.95)
    assert "Gaussian" in audit.from_scores(included, excluded, delta=DELTA, assume="gaussian").assumption


def test_trying_several_numbers_of_guesses_is_paid_for():
    """The best of eight sizes at an eighth of the significance each, never better than the same size fixed
    beforehand.
    """
    included, excluded = scores(1.5, 1000, 2)
    free = audit.from_scores(included, excluded, delta=DELTA)
    fixed = [audit.from_scores(included, excluded, delta=DELTA, guesses=1000 >> k).epsilon for k in range(8)]
    assert free.epsilon < max(fixed)
    assert "Bonferroni" in free.how


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("assume", ["nothing", "gaussian"])
def test_gaussian_noise_is_overstated_no_more_often_than_allowed(assume, independent, split):
    """False-alarm rate of this test below 1e-6.

    Audits at 80 % confidence, where alarms are frequent enough to be seen.
    """
    mu, delta, trials = 1.0, 1e-3, 100
    true = epsilon_of_mu(mu, delta)
    over = sum(
        audit.from_scores(
            *scores(mu, 120, 100 + i), delta=delta, confidence=0.8, assume=assume, independent=independent, split=split
        ).epsilon
        > true
        for i in range(trials)
    )
    assert over <= stats.binom.isf(1e-6, trials, 0.2)


def test_independent_scores_are_all_counted_and_beat_a_split():
    """A split (one half chooses the threshold, the other is counted) shows 0.88 on average at μ = 1, m = 1000; all
    scores together show 1.14.
    """
    found = [audit.from_scores(*scores(1.0, 1000, i), delta=DELTA, independent=True) for i in range(20)]
    assert np.mean([f.epsilon for f in found]) > 1
    assert all(f.epsilon < epsilon_of_mu(1.0, DELTA) for f in found)
    assert "ranks, Bonferroni-corrected" in found[0].how


def test_scores_with_ties_are_overstated_no_more_often_than_allowed():
    """Randomised response of ε = 1 has scores 0 and 1 only. False-alarm rate of this test below 1e-6."""
    trials, over, right = 200, 0, math.e / (1 + math.e)
    for seed in range(trials):
        draw = np.random.default_rng(seed)
        included, excluded = draw.random(60) < right, draw.random(60) >= right
        over += audit.from_scores(included, excluded, delta=0.0, confidence=0.5, independent=True).epsilon > 1
    assert over <= stats.binom.isf(1e-6, trials, 0.5)


def test_half_of_the_canaries_may_choose_the_test():
    """One run at ε = 8: finer thresholds are worth more than half of 5000 canaries."""
    included, excluded = scores(gdp_mu(8.0, DELTA), 5000, 4)
    divided, split = (
        audit.from_scores(included, excluded, delta=DELTA, assume="gaussian", split=split) for split in (False, True)
    )
    assert divided.epsilon < split.epsilon < 8
    assert split.canaries in (2500, 2501, 2499)
    assert "chosen on the other half" in split.how


def test_the_half_that_chooses_does_not_depend_on_the_scores():
    """Scores moved up or stretched are divided alike, and show the same."""
    included, excluded = scores(2.0, 300, 6)
    for independent in (False, True):
        first, second = (
            audit.from_scores(3 * ins + 7, 3 * outs + 7, delta=DELTA, independent=independent, split=True)
            for ins, outs in ((included, excluded), ((included - 7) / 3, (excluded - 7) / 3))
        )
        assert first.epsilon == pytest.approx(second.epsilon)


def test_equal_scores_show_nothing_in_whatever_order_they_come():
    for assume in ("nothing", "gaussian"):
        assert audit.from_scores(np.ones(500), np.ones(500), delta=DELTA, assume=assume).epsilon == 0
        assert audit.from_scores(np.ones(500), np.ones(500), delta=DELTA, assume=assume, independent=True).epsilon == 0
    assert guessed(np.ones(50), np.ones(50), 100).right == 0


def test_infinite_scores_are_scores():
    """A loss of infinity is a very low score."""
    included, excluded = np.full(300, math.inf), np.full(300, -math.inf)
    assert audit.from_scores(included, excluded, delta=DELTA).epsilon > 3


def test_nonsense_is_refused():
    good = np.arange(10.0)
    for field, arguments in {
        "included": ([math.nan], good),
        "excluded": (good, []),
    }.items():
        with pytest.raises(ConfigError, match=field):
            audit.from_scores(*arguments, delta=DELTA)
    for field, options in {
        "assume": {"assume": "luck"},
        "guesses": {"guesses": 21},
        "threshold": {"threshold": 1.0},
        "confidence": {"confidence": 1.0},
        "delta": {"delta": 1.0},
    }.items():
        with pytest.raises(ConfigError, match=field):
            audit.from_scores(good, good, **{"delta": DELTA, **options})
    with pytest.raises(ConfigError, match="guesses"):
        audit.from_scores(good, good, delta=DELTA, independent=True, guesses=3)


@pytest.mark.parametrize(
    ("claimed", "verified", "audited", "expected"),
    [
        (1.0, 1.0, 0.5, "consistent"),
        (1.0, 7.0, 5.0, "claim-refuted"),
        (1.0, math.inf, math.inf, "claim-refuted"),
        (8.0, 7.0, 7.5, "bug"),
        (1.0, 1.0, 1.0, "consistent"),
        (math.inf, 1.0, math.inf, "bug"),
    ],
)
def test_verdicts(claimed, verified, audited, expected):
    found = audit.verdict(claimed, verified, audited)
    assert found.value == expected
    said = audit.sentence(found, audited, 0.95)
    assert said.startswith({"bug": "implementation bug", "claim-refuted": "claim refuted"}.get(expected, expected))
    assert "95 %" in said
    assert ("5 % of audits err" in said) is (expected == "bug")
