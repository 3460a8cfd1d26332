"""The audit of a method that draws again until a noisy test accepts, by the updates that were accepted.

The pair of data sets differs in one record x. All gradients are 0, except that of x, which has norm C. Let u be the
coordinate of the noisy sum in that direction, in units of C. A test accepts with a probability between `low` and
`high`, depending on the losses at the new model. Losses may be any functions of the model: here they fall where u is
above a threshold and rise elsewhere. With the rates q of batches, an accepted u has the density

    without x:  φ(u/σ)/σ · a(u)                                 over its integral,
    with x:     [(1 - q)φ(u/σ) + qφ((u - 1)/σ)]/σ · a(u)        over its integral,

where a is `high` above the threshold and `low` below. Acceptance makes it more likely that x was in the batch.
Amplification by the rate q does not survive that. Losses may differ from update to update, as in theorems of
composition. Counts of u in bins are post-processing. So ε of the binned densities, composed with all rounding
downwards, is at most that of the accepted updates.

Counts decide σ, `low` and `high`. The step's μ is a lower bound, and 1/μ takes the place of σ: more noise on u is
post-processing of an accepted u, with losses that are less decided. `low` is an upper bound on how often the method's
own test accepts what rises, and `high` a lower bound on how often it accepts what falls. Losses that change less are
accepted with any probability in between, so these losses exist.

A run has a number of trials. It accepts T updates but with the probability that a binomial count stays below T, so the
first T show what they show at a δ that is smaller by that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from dp_accounting.pld import privacy_loss_distribution as losses
from scipy import special, stats

from assay.audit.bounds import rate_below
from assay.methods.plan import Plan
from assay.methods.selecting import Selection
from assay.randomness.streams import Randomness, Within

Density = npt.NDArray[np.float64]

TESTS = 20_000
"""How many are counted, half of them of losses that rise."""
_THRESHOLDS = np.arange(0.5, 3.25, 0.25)  # of u, in standard deviations of the noise
_COARSE, _FINE = 1e-4, 2e-5  # intervals of the privacy loss
_MISSED = 0.1  # of δ: the probability of fewer accepted updates than are composed
_EMPTY = 1e-9  # a test without any record says nothing of losses; tests that are rarely empty are audited


def epsilon_of_accepted(
    plan: Plan, mu: float, randomness: Randomness, *, significance: float, steps: int | None = None
) -> float:
    """A lower bound on the ε of the updates that a plan's test accepts; it holds with confidence 1 - `significance`.

    Args:
        plan: A plan whose method accepts a limited number of updates.
        mu: A lower bound on the μ of one step.
        randomness: Where random numbers come from.
        significance: How often one of the two acceptance rates may be wrong.
        steps: How many trials there were; None for those of the plan.

    Returns:
        The largest that some losses show.
    """
    test = plan.selection
    assert test is not None
    assert test.most is not None
    trials, most = plan.steps if steps is None else steps, test.most
    if not 0 < mu < math.inf or (1 - test.sampler.rate) ** plan.records > _EMPTY:
        return 0.0
    low = rate_below(_kept(test, 1.0, randomness), TESTS // 2, significance / 2)
    high = 1 - rate_below(TESTS // 2 - _kept(test, -1.0, randomness), TESTS // 2, significance / 2)
    if high <= low:
        return 0.0
    rates = plan.sampler.rate, test.sampler.rate

    def shown(threshold: float, interval: float) -> float:
        sides = accepted(1 / mu, rates, (low, high), (threshold, threshold))
        updates = _most_accepted(trials, most, min(sides[0][0], sides[1][0]), plan.delta)
        pair = sides[0][1], sides[1][1]
        return at_least(*pair, updates, (1 + _MISSED) * plan.delta, interval) if updates else 0.0

    best = max(_THRESHOLDS, key=lambda threshold: shown(float(threshold), _COARSE))
    return shown(float(best), _FINE)


def accepted(
    sigma: float, rates: Sequence[float], ends: tuple[float, float], thresholds: tuple[float, float]
) -> tuple[tuple[float, Density], tuple[float, Density]]:
    """How often a trial is accepted, and the density of an accepted u in bins: with x and without.

    Args:
        sigma: The standard deviation of u.
        rates: Of batches, and of the records of a test.
        ends: How often a test accepts losses that rise, and losses that fall.
        thresholds: Of u, in σ, above which a test without x is in favour, and a test with it.
    """
    edges = np.linspace(-6 * sigma, 6 * sigma + 1, 1001)
    plain, moved = (_binned(edges, mean, sigma) for mean in (0.0, 1.0))
    # A threshold is rounded to an edge: bins are on one side of it. Bin i ends at edges[i], the last is open.
    first, second = (np.where(edges > limit * sigma, ends[1], ends[0]) for limit in thresholds)
    rate, of_tests = rates
    present = ((1 - rate) * plain + rate * moved) * ((1 - of_tests) * first + of_tests * second)
    absent = plain * first
    return tuple((float(side.sum()), side / side.sum()) for side in (present, absent))  # type: ignore[return-value]


def at_least(present: Density, absent: Density, updates: int, delta: float, interval: float = _FINE) -> float:
    """A lower bound on ε for adding or removing x, after this many accepted updates.

    Args:
        present: The density of an accepted u with x.
        absent: That without x.
        updates: How many.
        delta: δ.
        interval: The steps in which privacy losses are counted; smaller ones are slower and closer.
    """
    found = []
    for upper, lower in ((present, absent), (absent, present)):
        masses = [dict(enumerate(np.log(bins))) for bins in (lower, upper)]
        loss = losses.from_two_probability_mass_functions(
            *masses, pessimistic_estimate=False, value_discretization_interval=interval
        )
        found.append(float(loss.self_compose(updates).get_epsilon_for_delta(delta)))
    return max(0.0, *found)


def _binned(edges: Density, mean: float, sigma: float) -> Density:
    """The probability of each bin: below the first edge, between edges; the last bin takes what is above."""
    below = special.ndtr((edges - mean) / sigma)
    bins: Density = np.diff(below, prepend=0.0)
    bins[-1] += 1 - below[-1]
    return bins


def _kept(test: Selection, change: float, randomness: Randomness) -> int:
    """How many of the tests accept, if the loss of every record changes by C_v or more."""
    before, after = torch.zeros(1), torch.full((1,), 2 * change * test.bound)
    apart = Within(randomness, f"tests of losses that {'rise' if change > 0 else 'fall'}")
    return sum(test.keeps(test.release(test.measure(before, after), i, apart)) for i in range(TESTS // 2))


def _most_accepted(trials: int, most: int, rate: float, delta: float) -> int:
    """The most updates of which fewer are accepted with a probability of at most a tenth of δ."""
    least = int(stats.binom.ppf(_MISSED * delta, trials, rate))
    return min(most, least)
