"""What binomial noise costs: the theorem of cpSGD, and divergences computed from the distribution itself.

The mechanism adds Bin(N, ½) - N/2 to each coordinate of a whole-number vector, independently. The presence of one
client moves that vector by v with ‖v‖_∞ ≤ L and ‖v‖₂ ≤ D.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[np.float64]

_DEVIATIONS = 12  # region kept: |x - N/2| ≤ 12 standard deviations of N
_ORDERS = 1 + np.geomspace(5e-3, 1e7, 160)  # Rényi orders beyond 1


def theorem_epsilon(trials: int, dimension: int, delta: float, l1: float, l2: float, linf: float) -> float:
    """ε at δ of one release by theorem 1 of Agarwal et al., "cpSGD", 2018 (arXiv:1805.10559), p = ½ and unit scale.

    If N/4 ≥ max(23 log(10d/δ), 2Δ_∞), then with b = 1/3, c = √2 · 7/4 (rounded to 5/2 there) and d_p = 2/3

        ε = Δ₂ √(2 log(1.25/δ)) / √(N/4) + (Δ₂ c √log(10/δ) + Δ₁ b) / (N/4 (1 - δ/10))
            + (⅔ Δ_∞ log(1.25/δ) + Δ_∞ d_p log(20d/δ) log(10/δ)) / (N/4).

    Args:
        trials: N.
        dimension: d, the number of coordinates.
        delta: δ.
        l1: Δ₁.
        l2: Δ₂.
        linf: Δ_∞.

    Returns:
        ε, or `math.inf` where the condition fails: the theorem says nothing then.
    """
    variance = trials / 4
    if variance < max(23 * math.log(10 * dimension / delta), 2 * linf):
        return math.inf
    ten = math.log(10 / delta)
    first = l2 * math.sqrt(2 * math.log(1.25 / delta)) / math.sqrt(variance)
    second = (l2 * 2.5 * math.sqrt(ten) + l1 / 3) / (variance * (1 - delta / 10))
    third = linf * (2 / 3) * (math.log(1.25 / delta) + math.log(20 * dimension / delta) * ten) / variance
    return first + second + third


@functools.lru_cache(maxsize=256)
def rho(trials: int, largest: int, l2: float) -> float:
    """A ρ for which the mechanism is ρ-zero-concentrated private, computed from the binomial distribution.

    Coordinates are independent, so the divergence of order α for a shift v is
    Σ_i r_α(|v_i|) ≤ D² max_{1≤t≤L} r_α(t)/t², with r_α(t) the divergence of one coordinate shifted by t. ρ is the
    supremum of that over α > 1, divided by α. (In many dimensions no shift is known to be the worst for the privacy
    loss. So the privacy loss distribution of one shift would not be a bound; this is.)

    Shifted binomials end at different places. We therefore keep only outcomes within 12 standard deviations of N/2 in
    each coordinate. By Hoeffding's inequality the rest has probability below 4e-31 in each coordinate, even when
    shifted (L is at most half a deviation). The accountant takes 2e-15 off δ for each release, which is far more.

    The supremum is over all real α: (α - 1) r_α is convex in α, so it lies below the chords between the orders at which
    it is computed. Beyond the last order, r_α is at most the largest log ratio.

    Args:
        trials: N.
        largest: L.
        l2: D.

    Returns:
        ρ, or `math.inf` where N is too small for the argument above.
    """
    deviation = math.sqrt(trials) / 2
    if trials < 4 * _DEVIATIONS**2 or largest > deviation / 2:
        return math.inf
    return l2**2 * max(_per_square(trials, shift) for shift in range(1, largest + 1))


@functools.lru_cache(maxsize=4096)
def _per_square(trials: int, shift: int) -> float:
    """sup over α of r_α(t)/(α t²), both directions."""
    return max(_supremum(*losses) for losses in _losses(trials, shift)) / shift**2


def _losses(trials: int, shift: int) -> list[tuple[Array, Array]]:
    """(log probabilities, log ratios) of a restricted pair that has no smaller divergences, in both directions.

    Neighbouring outcomes form blocks. Within a block, the log ratio is replaced by its least and its largest value with
    the same mean. By convexity that increases E e^{c·ratio} for every c. The number of blocks does not depend on N.
    """
    reach = min(int(_DEVIATIONS * math.sqrt(trials) / 2), trials // 2 - shift)
    at = trials // 2 + np.arange(-reach - shift, reach + 1, dtype=np.float64)
    # log p(x)/p(x-1) = log (N-x+1)/x; sums of these from the centre keep more digits than factorials
    steps = np.log1p((trials - 2 * at + 1) / at)
    logs = np.cumsum(steps)
    here, there = logs[shift:], logs[:-shift]  # p(x) and p(x - t) over the outcomes that are kept
    ratio = np.sum([steps[shift - i : len(steps) - i] for i in range(shift)], axis=0)
    here, there = here - logsumexp(here), there - logsumexp(there)
    offset = float(np.mean((here - there) - ratio))  # of the two normalisations
    blocks = np.arange(0, len(ratio), max(1, int(math.sqrt(trials) / 40)))
    return [
        _spread(np.exp(here), ratio + offset, blocks),
        _spread(np.exp(there), -ratio - offset, blocks),
    ]


def _spread(mass: Array, ratio: Array, blocks: NDArray[np.int64]) -> tuple[Array, Array]:
    total = np.add.reduceat(mass, blocks)
    low, high = np.minimum.reduceat(ratio, blocks), np.maximum.reduceat(ratio, blocks)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.clip(np.nan_to_num(np.add.reduceat(mass * ratio, blocks) / total), low, high)
        upper = np.where(high > low, (mean - low) / (high - low), 1.0)
        weights = np.log(np.concatenate([total * (1 - upper), total * upper]))
    return weights, np.concatenate([low, high])


def _supremum(log_probability: Array, ratio: Array) -> float:
    """sup over α > 1 of D_α/α, where (α - 1) D_α = log E_P e^{(α-1) ratio}."""
    grown: Array = np.append(0.0, logsumexp(log_probability + np.outer(_ORDERS - 1, ratio), axis=1))
    grown = np.maximum(grown, 0.0) * (1 + 1e-9) + 4e-15  # rounding
    grown[0] = 0.0
    orders = np.array([1.0, *_ORDERS])
    best = float(ratio.max()) / float(orders[-1])
    # on the first interval the chord from (1, 0) gives D_α ≤ D at its end
    best = max(best, float(grown[1] / (orders[1] - 1)))
    left, right = orders[1:-1], orders[2:]
    slope = (grown[2:] - grown[1:-1]) / (right - left)
    # chord(α)/(α(α-1)) is largest at an end or where slope α(α-1) = chord(α) (2α-1)
    level = grown[1:-1] - slope * left  # chord(α) = level + slope α
    # slope α² + 2 level α - level = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(np.maximum(level**2 + slope * level, 0.0))
        inside = [np.clip(np.nan_to_num((-level + sign * root) / slope), left, right) for sign in (-1, 1)]
    for at in (left, right, *inside):
        best = max(best, float(np.max((level + slope * at) / (at * (at - 1)))))
    return best
