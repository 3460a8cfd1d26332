"""How well an attack tells members from non-members, with confidence intervals.

Every attack scores each record, higher for likelier members, and decides "member" at 0 and above. The figures here
follow from those scores alone:

- The area under the ROC curve, P(member scores higher) + P(tie)/2. Its interval is that of DeLong, DeLong and
  Clarke-Pearson, "Comparing the areas under two or more correlated receiver operating characteristic curves", 1988
  (doi:10.2307/2531595). Additional records make it hold for small groups, as in Agresti and Coull, "Approximate is
  better than 'exact' for interval estimation of binomial proportions", 1998 (doi:10.1080/00031305.1998.10480550).
- The balanced accuracy of the decision at 0, (TPR + TNR)/2. Its interval combines the Clopper-Pearson limits of its two
  halves (Zou and Donner, "Construction of confidence limits about effect measures: a general approach", 2008,
  doi:10.1002/sim.3095).
- The true positive rate at a small false positive rate, with its Clopper-Pearson interval. The threshold comes from the
  non-members; given it, the count of members above it is binomial, so the interval is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """A score for each evaluated record; at 0 and above the attack says "member".

    Attributes:
        members: The scores of members.
        nonmembers: The scores of non-members.
        calibration: What the attack learned its decision from, in words; never from the records scored here.
    """

    members: Array
    nonmembers: Array
    calibration: str

    def __post_init__(self) -> None:
        for field, values in (("members", self.members), ("nonmembers", self.nonmembers)):
            if values.ndim != 1 or len(values) < 2:
                accepted = "a score for each record, at least two records"
                raise ConfigError(field, f"scores of shape {values.shape}", accepted)
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

    `fpr_low` to `fpr_high` is a confidence interval of that threshold's false positive rate for new non-members (exact
    for scores without ties). With fewer than 1/fpr non-members it reaches far above `fpr`: read it before quoting the
    rate.
    """

    fpr: float
    tpr: Estimate
    fpr_low: float
    fpr_high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackResult:
    """What an attack achieved. It comes from members' records without noise: no ε covers its publication."""

    attack: str
    members: int
    nonmembers: int
    calibration: str
    confidence: float
    auc: Estimate
    balanced_accuracy: Estimate
    tpr_at_fpr: tuple[RateAt, ...]

    def to_json(self) -> dict[str, Any]:
        """The result as plain values, for JSON."""
        return {**asdict(self), "tpr_at_fpr": [asdict(rate) for rate in self.tpr_at_fpr], "note": NOT_PRIVATE}


def gain(results: Sequence[AttackResult], epsilon: float, delta: float) -> str:
    """What the best of these attacks gained over guessing, and over what (ε, δ) allows, in one sentence.

    Guessing is right in half of the cases. Under (ε, δ)-differential privacy no decision has TPR + TNR above
    1 + (e^ε - 1 + 2δ)/(e^ε + 1), so none is right in more than half of that (Kairouz, Oh and Viswanath, "The
    composition theorem for differential privacy", 2015, arXiv:1311.0776).

    Args:
        results: What the attacks achieved; the one that is right most often counts.
        epsilon: The verified ε.
        delta: δ.

    Returns:
        The sentence.
    """
    best = max(results, key=lambda result: result.balanced_accuracy.value)
    right = best.balanced_accuracy
    most = accuracy_allowed(epsilon, delta)
    chosen = "" if len(results) == 1 else f", the best of {len(results)} attacks by what they achieved here,"
    more = right.value - 0.5
    said = f"gained {100 * more:.1f} points over guessing (50 %)" if more > 0 else "gained nothing over guessing (50 %)"
    return (
        f"{best.attack}{chosen} was right in {100 * right.value:.1f} % of cases [{100 * right.low:.1f},"
        f" {100 * right.high:.1f}]: it {said}, where the verified ε allows up to {100 * (most - 0.5):.1f} points"
        f" ({100 * most:.1f} %)."
    )


def accuracy_allowed(epsilon: float, delta: float) -> float:
    """The largest balanced accuracy of any attack on an (ε, δ)-private model, as in `gain`."""
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise ConfigError("epsilon", f"{epsilon} at δ = {delta}", "ε of 0 or above, and δ from 0 to 1")
    gap = math.tanh(epsilon / 2) if epsilon < math.inf else 1.0
    return min(1.0, 0.5 + (gap + delta * (1 - gap)) / 2)


def evaluate(attack: str, scores: Scores, confidence: float = 0.95) -> AttackResult:
    """All figures of an attack from its scores.

    Args:
        attack: Its name.
        scores: Its scores.
        confidence: The confidence of the intervals.

    Returns:
        The figures.

    Raises:
        ConfigError: `confidence` is not between 0 and 1.
    """
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

    DeLong's variance comes from the rank of each record's score in the other group. It is too small, or zero, where
    only a few records happen to differ from the others. The worst ranks are 0 and 1, as for a proportion. So each group
    gets z²/2 more records with rank 0 and as many with rank 1. For such ranks that is Agresti and Coull's interval, and
    in large groups it is DeLong's.
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
    """The variance of the mean of these and of `more` others, half of them 0 and half 1."""
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
    tpr = clopper_pearson(int((members > threshold).sum()), len(members), confidence)
    return RateAt(fpr=fpr, tpr=tpr, fpr_low=float(low), fpr_high=float(high))


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """A proportion with its exact two-sided interval, which covers with a probability of at least `confidence`."""
    tail = (1 - confidence) / 2
    low, high = 1 - rate_below(trials - successes, trials, tail), rate_below(successes, trials, tail)
    return Estimate(successes / trials, low, high)


def best_threshold(members: Array, nonmembers: Array) -> float:
    """The threshold with the largest balanced accuracy, half-way between two scores. For calibration records only."""
    values = np.unique(np.concatenate([members, nonmembers]))
    hits = 1 - np.searchsorted(np.sort(members), values) / len(members)
    alarms = 1 - np.searchsorted(np.sort(nonmembers), values) / len(nonmembers)
    best = int(np.argmax(hits - alarms))
    return float(values[max(best - 1, 0)] / 2 + values[best] / 2)
