"""Lower bounds from scores that are independent of each other: one run with gradient canaries, or many runs.

Gradient canaries are single coordinates of their own, the noise of every coordinate is drawn by itself, and every
record is sampled by itself. So the scores of different canaries are independent, given their coins. `one_run` does not
use that, and pays for it. These bounds do, and say so.

- `right_lower` counts guesses. Among all f-DP mechanisms independent ones allow the most right guesses (Xiang, Wang,
  Xiao, Tian and Wang, "Tight Privacy Audit in One Run", 2025, arXiv:2509.08704). Here the canaries are independent, so
  nothing of that theorem is needed.
- `shift_lower` adds up scores instead of turning each into a guess, as in Agrawal, Wei, Singh, Magdon-Ismail and Zikas,
  "Let's Ask Gauss: Improved One-Run Privacy Auditing", 2026 (arXiv:2606.12733).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent
from numpy.typing import NDArray
from scipy import special

from assay.accounting.epsilon import UnaccountableError, delta_for
from assay.audit.bounds import check_significance, rate_below
from assay.audit.plans import composed
from assay.methods.plan import Plan

Scores = NDArray[np.float64]
_CLOSE = 1e-6  # how closely a shift is placed, from below
_WIDEST = 5.0  # noise from e^-5 to e^5 times the plan's is looked at
_STRIDE = 0.1
_STEP = 2e-3  # how closely its logarithm is placed, from above
_QUANTILES = np.arange(-8.0, 8.01, 0.02)  # where a sample variance's distribution is cut, as normal quantiles


def right_lower(included: Scores, excluded: Scores, *, significance: float, threshold: float = 0.0) -> float:
    """The share of right guesses that the test at `threshold` exceeds, with confidence 1 - significance.

    "Included" is guessed above the threshold, which was fixed beforehand, and "excluded" below; a tie is wrong. Each
    canary was included by a fair coin, and scores of different canaries are independent. So the number of right guesses
    is a sum of independent trials. Each succeeds with a probability of at most p = (1 + TV)/2, TV being the total
    variation distance between a run with a record and one without it. Hence it is no larger than Bin(m, p) in
    distribution, and the Clopper-Pearson bound holds for p.
    """
    check_significance(significance)
    total = len(included) + len(excluded)
    right = int((included > threshold).sum()) + int((excluded < threshold).sum())
    return 1 - rate_below(total - right, total, significance)


def shift_lower(included: Scores, excluded: Scores, *, significance: float) -> float:
    """A lower bound on the shift of the mean over the standard deviation, for independent normal scores.

    Scores are N(m₁, v₁) where the canary is included and N(m₀, v₀) where it is not. With confidence 1 - significance
    (m₁ - m₀)/√max(v₀, v₁) is no less. A mechanism of μ-GDP has at least that μ: the test at any t has
    Φ⁻¹(1 - FPR) - Φ⁻¹(FNR) = (t - m₀)/√v₀ + (m₁ - t)/√v₁, which is no less for m₀ ≤ t ≤ m₁.

    Proof. Let v be the larger variance, k its side with n_k scores, D the difference of means, s the larger of the two
    sample deviations, and μ = (m₁ - m₀)/√v. Then D/s > T implies D > T s_k. D and s_k are independent, D is normal with
    variance at most v (1/n₀ + 1/n₁), and n_k - 1 times s_k²/v is chi-squared. Where T s_k ≥ √v μ the probability of
    D > T s_k grows with the variance of D, so its largest value bounds it. Where T s_k < √v μ it is at most 1. Both
    parts are added up over slices of the distribution of s_k, each taken at its lower end. So the sum is an upper bound
    on the probability of what was seen, for either k. It grows with μ.
    """
    check_significance(significance)
    sizes = len(included), len(excluded)
    spread = max(float(np.std(side, ddof=1)) if len(side) > 1 else 0.0 for side in (included, excluded))
    apart = float(included.mean() - excluded.mean())
    if min(sizes) < 2 or spread == 0 or apart <= 0:
        return 0.0
    seen, error = apart / spread, math.sqrt(1 / sizes[0] + 1 / sizes[1])
    slices = [_deviations(size - 1) for size in sizes]

    def probability(mu: float) -> float:
        sums = []
        for edges, masses in slices:
            tails = np.where(seen * edges < mu, 1.0, special.ndtr((mu - seen * edges) / error))
            sums.append(float(tails @ masses))
        return max(sums)

    if probability(0.0) > significance:
        return 0.0
    low, high = 0.0, seen
    while high - low > _CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) <= significance else (low, middle)
    return low


def _deviations(freedom: int) -> tuple[Scores, Scores]:
    """Slices of the distribution of a sample deviation over the true one: their lower ends and their masses."""
    share = special.ndtr(_QUANTILES)
    edges = np.sqrt(2 * special.gammaincinv(freedom / 2, share) / freedom)
    masses = np.diff(share, prepend=0.0, append=1.0)
    return np.concatenate([[0.0], edges]), masses


def own_family(plan: Plan, steps: int | None = None) -> Callable[[float], float] | None:
    """From a share of right guesses to the least ε of the run that allows it, if only the size of its noise is unknown.

    The steps are assumed to be those of the plan: its sampling, Gaussian noise, and `steps` of them. With s times the
    noise a guess is right with a probability of at most (1 + TV(s))/2. Where that is below what was seen, the noise is
    less than s times the plan's. So ε is at least that of the plan with s times the noise.

    Args:
        plan: The plan.
        steps: How many of its steps were taken; None for all.

    Returns:
        The function; None where the plan's steps have no known total variation.
    """
    taken = plan.steps if steps is None else steps
    plain = replace(plan, exact=False, epsilon_limit=None, epsilon_claimed=None)
    if plan.noise_schedule.correlated:
        return None  # what a turn shows is spread over later steps, which may not have been taken
    if plan.noise_multiplier <= 0 or not isinstance(plain.step_event, GaussianDpEvent):
        return None

    def scaled(log_scale: float) -> Plan:
        return replace(plain, noise_multiplier=plan.noise_multiplier * math.exp(log_scale))

    def right(log_scale: float) -> float:
        return (1 + delta_for(scaled(log_scale).steps_event(taken), 0.0, plan.adjacency)) / 2

    try:
        most = right(_WIDEST)
    except UnaccountableError:
        return None

    def epsilon(share: float) -> float:
        if share <= most:
            return 0.0
        refuted = 0.0  # outwards from the plan's own noise: very little noise takes long to account for
        while right(refuted) >= share:
            refuted += _STRIDE
        while refuted > -_WIDEST and right(refuted - _STRIDE) < share:
            refuted -= _STRIDE
        if refuted > -_WIDEST:
            low = refuted - _STRIDE
            while refuted - low > _STEP:
                middle = (low + refuted) / 2
                low, refuted = (low, middle) if right(middle) < share else (middle, refuted)
        chosen = scaled(refuted)
        event = chosen.step_event
        assert isinstance(event, GaussianDpEvent)
        return composed(chosen, 1 / event.noise_multiplier, taken)

    return epsilon
