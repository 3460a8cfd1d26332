"""The figures against independent computations, and the intervals against what they promise."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, norm
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve

from assay.attacks import evaluation
from assay.attacks.evaluation import Scores, accuracy_allowed, evaluate, gain
from assay.errors import ConfigError

# few distinct values: ties are where ranks go wrong
some_scores = st.lists(st.integers(-4, 4), min_size=2, max_size=40).map(lambda v: np.array(v, dtype=float))


def truth(members, nonmembers):
    return np.r_[np.ones(len(members)), np.zeros(len(nonmembers))], np.r_[members, nonmembers]


@given(some_scores, some_scores)
def test_auc_is_sklearns(members, nonmembers):
    found = evaluation.auc(members, nonmembers)
    assert found.value == pytest.approx(roc_auc_score(*truth(members, nonmembers)), abs=1e-12)
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1
    assert found.low < found.high


@given(some_scores, some_scores)
def test_balanced_accuracy_is_sklearns(members, nonmembers):
    labels, scores = truth(members, nonmembers)
    found = evaluation.balanced_accuracy(members, nonmembers)
    assert found.value == pytest.approx(balanced_accuracy_score(labels, scores >= 0), abs=1e-12)
    assert 0 <= found.low <= found.value <= found.high <= 1


@given(some_scores, some_scores, st.sampled_from([0.001, 0.01, 0.1, 0.3]))
def test_tpr_is_the_best_point_of_sklearns_curve_within_the_false_positive_rate(members, nonmembers, rate):
    fpr, tpr, _ = roc_curve(*truth(members, nonmembers), drop_intermediate=False)
    found = evaluation.tpr_at(members, nonmembers, rate)
    assert found.tpr.value == pytest.approx(tpr[fpr <= rate + 1e-12].max(), abs=1e-12)


@given(some_scores, some_scores)
def test_the_threshold_for_calibration_is_the_best_there_is(members, nonmembers):
    def accuracy(threshold):
        return (np.mean(members >= threshold) + np.mean(nonmembers < threshold)) / 2

    chosen = evaluation.best_threshold(members, nonmembers)
    assert accuracy(chosen) == pytest.approx(max(accuracy(t) for t in np.r_[members, nonmembers]), abs=1e-12)


def test_the_interval_is_delongs_with_more_records_at_both_ends():
    members, nonmembers = np.array([0.9, 0.8, 0.8, 0.4, 0.3]), np.array([0.7, 0.8, 0.2, 0.1])
    kernel = (members[:, None] > nonmembers) + (members[:, None] == nonmembers) / 2
    more = [0.0, 0.0, 1.0, 1.0]  # z = 2: two at either end
    variance = np.r_[kernel.mean(1), more].var() / 9 + np.r_[kernel.mean(0), more].var() / 8
    found = evaluation.auc(members, nonmembers, 2 * norm.cdf(2) - 1)
    centre = (4 * 0.75 + 2) / 8  # by the smaller group
    assert found.value == pytest.approx(0.75)
    assert (found.low, found.high) == pytest.approx(
        (centre - 2 * math.sqrt(variance), min(1.0, centre + 2 * math.sqrt(variance))), abs=1e-12
    )


def test_in_large_groups_the_interval_is_delongs():
    generator = np.random.default_rng(8)
    members, nonmembers = generator.normal(1, 1, 20_000), generator.normal(0, 1, 10_000)
    above = np.searchsorted(np.sort(nonmembers), members) / 10_000
    below = 1 - np.searchsorted(np.sort(members), nonmembers) / 20_000
    half = norm.ppf(0.975) * math.sqrt(above.var(ddof=1) / 20_000 + below.var(ddof=1) / 10_000)
    found = evaluation.auc(members, nonmembers)
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=0.02 * half)


def test_groups_that_do_not_overlap_leave_doubt():
    found = evaluation.auc(np.arange(10.0, 20.0), np.arange(10.0))
    assert (found.value, found.high) == (1.0, 1.0)
    assert 0.5 < found.low < 0.025 ** (1 / 10)  # so low, ten members may all happen to stand above the rest
    mirrored = evaluation.auc(np.arange(10.0), np.arange(10.0, 20.0))
    assert (mirrored.value, mirrored.low) == (0.0, 0.0)
    assert mirrored.high == pytest.approx(1 - found.low, abs=1e-12)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.9, 0.95]))
def test_clopper_pearson_is_scipys(counts, confidence):
    found = evaluation.clopper_pearson(*counts, confidence)
    exact = binomtest(*counts).proportion_ci(confidence, method="exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-9)


def most_misses(rate, trials):
    """What is exceeded with probability 1e-6 at most, if intervals miss with probability `rate`."""
    return binom.isf(1e-6, trials, rate)


def normal(mean, std=1.0):
    return lambda generator, n: generator.normal(mean, std, n)


def outliers(mean, share, moved):
    return lambda generator, n: generator.normal(mean, 1, n) + moved * (generator.random(n) < share)


def labels(rate):
    return lambda generator, n: (generator.random(n) < rate).astype(float)


MEMBERS = {  # what members' scores are, those of non-members, and the area
    "alike": (normal(0), normal(0), 0.5),
    "near": (normal(1), normal(0), norm.cdf(1 / math.sqrt(2))),
    "far": (normal(2), normal(0), norm.cdf(2 / math.sqrt(2))),
    "apart": (normal(3), normal(0), norm.cdf(3 / math.sqrt(2))),
    "wide": (normal(2, 5), normal(0), norm.cdf(2 / math.sqrt(26))),
    "narrow": (normal(2, 0.2), normal(0), norm.cdf(2 / math.sqrt(1.04))),
    "few stand out": (outliers(0, 0.2, 6), normal(0), 0.4 + 0.2 * norm.cdf(6 / math.sqrt(2))),
    "few fall behind": (
        outliers(3, 0.2, -9),
        normal(0),
        0.8 * norm.cdf(3 / math.sqrt(2)) + 0.2 * norm.cdf(-6 / math.sqrt(2)),
    ),
    "two values": (labels(0.95), labels(0.02), 0.5 + 0.93 / 2),
}


@pytest.mark.parametrize("sizes", [(5, 5), (10, 200), (200, 10), (60, 60)], ids=str)
@pytest.mark.parametrize("scores", MEMBERS)
def test_auc_intervals_cover_in_groups_of_any_size(scores, sizes):
    """Of 95 % confidence; where at most 5 % miss, more than `most_misses` are seen with probability 1e-6."""
    members, nonmembers, area = MEMBERS[scores]
    generator, trials, misses = np.random.default_rng(3), 1000, 0
    for _ in range(trials):
        found = evaluation.auc(members(generator, sizes[0]), nonmembers(generator, sizes[1]))
        misses += not found.low <= area <= found.high
    assert misses <= most_misses(0.05, trials)


def test_tpr_and_fpr_intervals_cover_what_the_threshold_does_to_fresh_records():
    generator, trials = np.random.default_rng(5), 1000
    missed_tpr = missed_fpr = 0
    for _ in range(trials):
        members, nonmembers = generator.normal(2, 1, 70), generator.normal(0, 1, 250)
        found = evaluation.tpr_at(members, nonmembers, 0.01)
        threshold = np.sort(nonmembers)[-3]  # 1 % of 250 allows two false positives
        missed_tpr += not found.tpr.low <= norm.sf(threshold - 2) <= found.tpr.high
        missed_fpr += not found.fpr_low <= norm.sf(threshold) <= found.fpr_high
    assert missed_tpr <= most_misses(0.05, trials)
    assert missed_fpr <= most_misses(0.05, trials)
    assert missed_fpr >= binom.ppf(1e-6, trials, 0.05)  # exact, not merely wide


def test_balanced_accuracy_intervals_cover():
    generator, trials = np.random.default_rng(6), 1000
    misses = 0
    for _ in range(trials):
        found = evaluation.balanced_accuracy(generator.normal(1, 1, 60), generator.normal(0.2, 1, 60))
        misses += not found.low <= (norm.cdf(1) + norm.cdf(-0.2)) / 2 <= found.high
    assert misses <= most_misses(0.05, trials)


def test_a_result_is_json_and_says_that_it_is_not_private():
    generator = np.random.default_rng(7)
    scores = Scores(members=generator.normal(1, 1, 50), nonmembers=generator.normal(0, 1, 40), calibration="by hand")
    plain = json.loads(json.dumps(evaluate("loss", scores).to_json(), allow_nan=False))
    assert plain["attack"] == "loss"
    assert (plain["members"], plain["nonmembers"], plain["calibration"]) == (50, 40, "by hand")
    assert [rate["fpr"] for rate in plain["tpr_at_fpr"]] == [0.001, 0.01]
    assert plain["auc"]["low"] < plain["auc"]["value"] < plain["auc"]["high"]
    assert "without noise" in plain["note"]


def test_few_nonmembers_cannot_vouch_for_a_small_false_positive_rate():
    scores = Scores(members=np.ones(50), nonmembers=np.arange(-40.0, 0.0), calibration="by hand")
    strictest = evaluate("loss", scores).tpr_at_fpr[0]
    assert strictest.tpr.value == 1.0
    assert strictest.fpr_high > 0.08


@pytest.mark.parametrize("bad", [np.array([1.0]), np.array([1.0, math.nan]), np.ones((3, 2))])
def test_scores_that_cannot_be_ranked_are_refused(bad):
    with pytest.raises(ConfigError, match="nonmembers"):
        Scores(members=np.ones(3), nonmembers=bad, calibration="by hand")


def test_confidence_is_a_probability():
    scores = Scores(members=np.ones(3), nonmembers=np.ones(3), calibration="by hand")
    with pytest.raises(ConfigError, match="confidence"):
        evaluate("loss", scores, confidence=1.0)


def test_what_was_gained_is_said_beside_what_epsilon_allows():
    random = np.random.default_rng(0)
    scores = Scores(members=random.normal(0.5, 1, 500), nonmembers=random.normal(-0.5, 1, 500), calibration="")
    result = evaluate("loss", scores)
    said = gain([result], epsilon=math.log(3), delta=0.0)
    assert f"right in {100 * result.balanced_accuracy.value:.1f} %" in said
    assert "allows up to 25.0 points (75.0 %)" in said
    assert accuracy_allowed(math.inf, 0.0) == 1
    assert accuracy_allowed(0.0, 0.1) == pytest.approx(0.55)
