"""What scores of canaries suggest about ε: an estimate with a bootstrap interval.

It is no bound. The interval says how much the estimate varies with the canaries (Efron, "Bootstrap methods: another
look at the jackknife", 1979, doi:10.1214/aos/1176344552). It holds for many independent scores, not for a given number
of them, and it does not cover what a better attack would show. So no verdict uses it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from assay.audit.bounds import check_delta, check_significance, epsilon_of_mu
from assay.audit.scores import Assume, Scores, check_assume, read_scores
from assay.errors import ConfigError

_LEAST = 50  # errors of a test before its rates are compared: the ratio of rarer ones is mostly chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimated ε, and how much it varies.

    Attributes:
        epsilon: The estimate.
        low: The lower end of the bootstrap interval.
        high: The upper end.
        confidence: What the interval was made for.
    """

    epsilon: float
    low: float
    high: float
    confidence: float


def estimate(
    included: ArrayLike,
    excluded: ArrayLike,
    *,
    delta: float,
    assume: Assume = "nothing",
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Estimate:
    """What the scores of included and excluded canaries suggest ε to be, for this attack. It is no bound.

    Args:
        included: A score for each included canary; higher means more likely included.
        excluded: A score for each excluded canary.
        delta: δ.
        assume: `"nothing"` takes the largest ratio of true and false alarms (or of silences) over all thresholds with
            50 errors or more. So it never says more than about ln(m/50) for m canaries of a side. `"gaussian"` takes
            the μ of Gaussian differential privacy whose area under the curve of true and false alarms is that of the
            scores.
        confidence: What the interval is made for.
        resamples: How often canaries are drawn again.
        seed: Decides which are drawn.

    Returns:
        The estimate and its interval.

    Raises:
        ConfigError: An argument is not accepted.

    >>> random = np.random.default_rng(0)
    >>> found = estimate(random.normal(2, 1, 4000), random.normal(0, 1, 4000), delta=1e-5, assume="gaussian")
    >>> found.low < epsilon_of_mu(2.0, 1e-5) < found.high
    True
    """
    check_delta(delta)
    check_significance(1 - confidence)
    check_assume(assume)
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 100:
        raise ConfigError("resamples", resamples, "a whole number, 100 or above")
    ins, outs = read_scores("included", included), read_scores("excluded", excluded)
    of = functools.partial(_by_counts, delta) if assume == "nothing" else _mu
    random = np.random.default_rng(seed)
    again = [of(random.choice(ins, len(ins)), random.choice(outs, len(outs))) for _ in range(resamples)]
    tail = (1 - confidence) / 2
    found = [of(ins, outs), *map(float, np.quantile(again, [tail, 1 - tail], method="nearest"))]
    middle, low, high = found if assume == "nothing" else [epsilon_of_mu(mu, delta) for mu in found]
    return Estimate(epsilon=middle, low=low, high=high, confidence=confidence)


def _by_counts(delta: float, ins: Scores, outs: Scores) -> float:
    """The largest ln((TPR - δ)/FPR) and ln((TNR - δ)/FNR), over thresholds with enough false alarms, or misses."""
    return max(0.0, _log_ratio(ins, outs, delta), _log_ratio(-outs, -ins, delta))


def _log_ratio(ins: Scores, outs: Scores, delta: float) -> float:
    falling = np.sort(-outs)
    edges = falling[_LEAST - 1 :]
    alarms = np.searchsorted(falling, edges, side="right")  # excluded scores at or above each edge
    found = np.searchsorted(np.sort(-ins), edges, side="right")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(found / len(ins) - delta) - np.log(alarms / len(outs))
    return float(np.nanmax(ratios, initial=-math.inf))


def _mu(ins: Scores, outs: Scores) -> float:
    """√2 Φ⁻¹ of the area under the curve: that of N(0, 1) and N(μ, 1) is Φ(μ/√2)."""
    outs = np.sort(outs)
    below = np.searchsorted(outs, ins, side="left") + np.searchsorted(outs, ins, side="right")
    area = float(below.mean()) / (2 * len(outs))
    return max(0.0, math.sqrt(2) * float(special.ndtri(area)))
