"""How well an attack tells members from non-members, with confidence intervals.

Every attack gives one score a record, larger for likelier members, and decides "member" at 0 and above. What is
reported here is computed from those scores alone:

- the area under the ROC curve, P(member scores higher) + P(tie)/2, with DeLong's interval (1988), made to hold for small groups as Agresti
  and Coull (1998) do it for proportions;
- the balanced accuracy of the decision at 0, (TPR + TNR)/2, with an interval that combines the Clopper-Pearson limits of
  its two halves (MOVER; Zou and Donner 2008);
- the true positive rate at a small false positive rate, with its Clopper-Pearson interval. The threshold comes from the
  non-members; given it, the count of members above it is binomial, so the interval is exact.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm, rankdata

from assay.audit.bounds import rate_below
from assay.errors import ConfigError

Array = NDArray[np.float64]
FALSE_POSITIVE_RATES = (0.001, 0.01)
NOT_PRIVATE = "measured on the members' records without noise; no ε covers these numbers"


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """One score for each evaluated record; at 0 and above the attack says "member".

    `calibration` says in words what the attack learned its decision from; never from the records scored here.
    """

    members: Array
    nonmembers: Array
    calibration: str

    def __post_init__(self) -> None:
        for field, values in (("members", self.members), ("nonmembers", self.nonmembers)):
            if values.ndim != 1 or len(values) < 2:
                raise ConfigError(field, f"scores of shape {values.shape}", "one score a record, at least two records")
            if not np.isfinite(values).all():
                bad = int((~np.isfinite(values)).sum())
                raise ConfigError(field, f"{bad} of {len(values)} scores are not finite", "finite scores")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RateAt:
    """The true positive rate at a false positive rate of at most `fpr` among the non-members at hand.

    `fpr_low` to `fpr_high` is where the false positive rate of that threshold lies for fresh non-members (exact for scores
    without ties). With fewer than 1/fpr non-members it reaches far above `fpr`: read it before quoting the rate.
    """

    fpr: float
    tpr: Estimate
    fpr_low: float
    fpr_high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackResult:
    """What an attack achieved. Computed from members' records without noise: publishing it is a release no ε covers."""

    attack: str
    members: int
    nonmembers: int
    calibration: str
    confidence: float
    auc: Estimate
    balanced_accuracy: Estimate
    tpr_at_fpr: tuple[RateAt, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "tpr_at_fpr": [asdict(rate) for rate in self.tpr_at_fpr], "note": NOT_PRIVATE}


def evaluate(attack: str, scores: Scores, confidence: float = 0.95) -> AttackResult:
    """All figures of an attack from its scores."""
    if not 0 < confidence < 1:
        raise ConfigError("confidence", confidence, "a number between 0 and 1, both excluded")
    return AttackResult(
        attack=attack,
        members=len(scores.members),
        nonmembers=len(scores.nonmembers),
        calibration=scores.calibration,
        confidence=confidence,
        auc=auc(scores.members, scores.nonmembers, confidence),
        balanced_accuracy=balanced_accuracy(scores.members, scores.nonmembers, confidence),
        tpr_at_fpr=tuple(tpr_at(scores.members, scores.nonmembers, rate, confidence) for rate in FALSE_POSITIVE_RATES),
    )


def auc(members: Array, nonmembers: Array, confidence: float = 0.95) -> Estimate:
    """The area under the ROC curve; DeLong's interval with Agresti and Coull's additional records.

    DeLong's variance comes from how each record's score is placed among the other group's, and is too small, or zero, where few records
    happened to be unlike the others. The worst that placements can be is 0 or 1, as if a proportion were sought. So each group has z²/2 more
    records placed at 0 and as many at 1, which for such placements is Agresti and Coull's interval, and in large groups is DeLong's.
    """
    m, n = len(members), len(nonmembers)
    ranks = rankdata(np.concatenate([members, nonmembers]))
    above = (ranks[:m] - rankdata(members)) / n  # share of non-members below each member
    below = 1 - (ranks[m:] - rankdata(nonmembers)) / m  # share of members above each non-member
    area = float(above.mean())
    z = float(norm.ppf((1 + confidence) / 2))
    fewest, more = min(m, n), z**2
    centre = (fewest * area + more / 2) / (fewest + more)
    half = z * math.sqrt(_variance_of_mean(above, more) + _variance_of_mean(below, more))
    return Estimate(area, max(0.0, centre - half), min(1.0, centre + half))


def _variance_of_mean(placements: Array, more: float) -> float:
    """Of the mean of these and of `more` others, half of them 0 and half 1."""
    size = len(placements) + more
    mean = (placements.sum() + more / 2) / size
    squares = ((placements - mean) ** 2).sum() + more / 2 * (mean**2 + (1 - mean) ** 2)
    return float(squares / size**2)


def balanced_accuracy(members: Array, nonmembers: Array, confidence: float = 0.95) -> Estimate:
    """(TPR + TNR)/2 when 0 and above means "member"."""
    halves = [
        clopper_pearson(int((members >= 0).sum()), len(members), confidence),
        clopper_pearson(int((nonmembers < 0).sum()), len(nonmembers), confidence),
    ]
    value = sum(half.value for half in halves) / 2
    down = math.hypot(*(half.value - half.low for half in halves)) / 2
    up = math.hypot(*(half.high - half.value for half in halves)) / 2
    return Estimate(value, max(0.0, value - down), min(1.0, value + up))


def tpr_at(members: Array, nonmembers: Array, fpr: float, confidence: float = 0.95) -> RateAt:
    """The share of members that score above all but at most ⌊fpr · n⌋ of the n non-members."""
    n = len(nonmembers)
    allowed = math.floor(fpr * n + 1e-9)
    threshold = np.sort(nonmembers)[n - 1 - allowed]
    tail = (1 - confidence) / 2
    # The probability of exceeding the (k+1)-th largest of n draws is Beta(k+1, n-k), whatever their distribution.
    low, high = beta.ppf([tail, 1 - tail], allowed + 1, n - allowed)
    found = clopper_pearson(int((members > threshold).sum()), len(members), confidence)
    return RateAt(fpr=fpr, tpr=found, fpr_low=float(low), fpr_high=float(high))


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """A proportion with its exact two-sided interval: it covers at least as often as `confidence` says."""
    tail = (1 - confidence) / 2
    low, high = 1 - rate_below(trials - successes, trials, tail), rate_below(successes, trials, tail)
    return Estimate(successes / trials, low, high)


def best_threshold(members: Array, nonmembers: Array) -> float:
    """The threshold with the largest balanced accuracy, half-way between two scores. For calibration records only."""
    values = np.unique(np.concatenate([members, nonmembers]))
    found = 1 - np.searchsorted(np.sort(members), values) / len(members)
    alarms = 1 - np.searchsorted(np.sort(nonmembers), values) / len(nonmembers)
    best = int(np.argmax(found - alarms))
    return float(values[max(best - 1, 0)] / 2 + values[best] / 2)
