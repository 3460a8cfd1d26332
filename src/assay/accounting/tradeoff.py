"""The whole trade-off curve of a run: what an attacker can reach at each rate of false alarms, and one number for it.

An attacker guesses whether a record was used. Their *false positives* are the persons who were not in the data and are
said to be, their *true positives* those who were and are found. If P and Q are what is released with and without the
record, no test with false positive rate α has a true positive rate above

    T(α) = min over real ε of  e^ε α + δ(ε),    δ(ε) = sup_S P(S) - e^ε Q(S)                                     (1)

(Wasserman and Zhou, "A Statistical Framework for Differential Privacy", 2010, arXiv:0811.2501; Dong, Roth and Su,
"Gaussian Differential Privacy", 2022, arXiv:1905.02383). Every ε in (1) gives an upper bound, for any upper bound on δ.
So do the composed privacy loss distributions of `assay.accounting.composition`, whose profiles are never below the true
ones. Both directions are computed, and the larger rate counts: whoever tests for absence reaches no more either.

**μ.** A run is μ-GDP if telling its two worlds apart is no easier than telling N(0, 1) from N(μ, 1), at every α. Taken
literally, sampled runs reach that only with the μ of a run without sampling: far out, the rare case that every step
drew the record decides. So a small probability δ₀ is set aside, a hundredth of the run's δ:

    δ(ε) ≤ δ_μ(ε) + δ₀   for every ε, in both directions.                                                          (2)

μ is the least that satisfies (2) for the composed losses. They lie on a grid, so their trade-off curve is a polygon
with the corners (a_i, t_i) = (Q(loss > l_i), P(loss > l_i)). For ε ≥ 0 the profile is t_i - e^ε a_i at some corner with
l_i ≥ 0. If T_μ(a_i) + δ₀ ≥ t_i there, then δ_μ(ε) ≥ T_μ(a_i) - e^ε a_i ≥ δ(ε) - δ₀, which is (2); the other direction
covers ε < 0. Since T_μ(a) = Φ(Φ⁻¹(a) + μ), each corner asks for μ ≥ Φ⁻¹(t_i - δ₀) - Φ⁻¹(a_i).

**Its error.** How much μ alone overstates: the largest difference between the share of right guesses that μ allows and
the one that the run's curve allows, over all prior probabilities. With odds e^ε it is (δ_μ(ε) - δ(ε))/(1 + e^ε). This
is the Δ of Kaissis et al., "Beyond the Calibration Point", 2024, arXiv:2406.08918, and the regret of Gomez et al.,
"(ε, δ) Considered Harmful: Best Practices for Reporting Differential Privacy Guarantees", 2025, arXiv:2503.10945.

**Without losses.** Sometimes only Rényi divergences are known, or a grid would be too large. Each known point (ε, δ)
then bounds the true positives by e^ε α + δ and by 1 - e^-ε (1 - δ - α). The least of these counts, and there is no μ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from scipy.special import ndtr, ndtri

from assay.accounting.composition import ODDS, UP, TradeOffAt, refined, share_right, terms_of
from assay.accounting.epsilon import ROUNDING, Adjacency, check_delta, epsilon_curve
from assay.accounting.losses import Gaussian, Terms
from assay.errors import ConfigError

RATES = (0.001, 0.01, 0.1)
"""The rates of false positives that records and statements show."""

_SET_ASIDE = 0.01  # of the run's δ, for μ
_CUT = 0.1  # of what is set aside, given up to losses beyond the grid
_POINTS = tuple(10.0 ** (-k / 4) for k in range(1, 49))  # δ of the points where there are no losses


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """What attackers can reach at most. The module says how it is computed.

    Attributes:
        rates: (false positives, true positives), both from 0 to 1. The second is an upper bound.
        mu: The least μ for which the run is μ-GDP, apart from a probability of `apart`; ∞ where nothing protects the
            records, None where it is not known.
        apart: δ₀ of the module's (2).
        error: How much μ alone overstates the attacker's share of right guesses, at the most; None without μ.
    """

    rates: tuple[tuple[float, float], ...]
    mu: float | None
    apart: float
    error: float | None

    def to_json(self) -> dict[str, Any]:
        """As a record holds it."""
        return {
            "mu": "inf" if self.mu == math.inf else self.mu,
            "apart": self.apart,
            "error": self.error,
            "rates": [{"false_positives": false, "true_positives": true} for false, true in self.rates],
        }


def tradeoff(event: DpEvent, delta: float, adjacency: Adjacency, rates: Sequence[float] = RATES) -> TradeOff:
    """The trade-off curve of what was released, in numbers that people can use.

    Args:
        event: What is released: a plan's `event()`, or a ledger's.
        delta: The run's δ, of which a hundredth is set aside for μ.
        adjacency: Which data sets are neighbours.
        rates: Rates of false positives, from 0 to 1.

    Returns:
        The attacker's best rate of true positives at each of them, and μ with its error.

    Raises:
        ConfigError: δ or a rate is out of range.
        UnaccountableError: No bound is known for the event under this adjacency.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> found = tradeoff(GaussianDpEvent(2.0), 1e-5, Adjacency.ADD_OR_REMOVE_ONE, [0.01])
    >>> found.mu, round(found.rates[0][1], 4)
    (0.5, 0.0339)
    """
    check_delta(delta)
    for rate in rates:
        if not 0 <= rate <= 1:
            raise ConfigError("rates", rate, "rates of false positives from 0 to 1")
    return _found(event_terms := terms_of(event, adjacency), delta, tuple(rates)) or _by_points(
        event, event_terms, delta, adjacency, rates
    )


@functools.lru_cache(maxsize=256)
def _found(terms: Terms | None, delta: float, rates: tuple[float, ...]) -> TradeOff | None:
    """By closed forms or composed losses; None where there are none."""
    if terms is None:
        return TradeOff(rates=tuple((rate, 1.0) for rate in rates), mu=math.inf, apart=0.0, error=0.0)
    if not terms:
        return TradeOff(rates=tuple((rate, rate) for rate in rates), mu=0.0, apart=0.0, error=0.0)
    only = terms[0][0]
    if len(terms) == 1 and terms[0][1] == 1 and isinstance(only, Gaussian):
        mu = 1 / only.multiplier
        return TradeOff(rates=tuple((rate, _gaussian(rate, mu)) for rate in rates), mu=mu, apart=0.0, error=0.0)
    if not all(term.profiled for term, _ in terms):
        return None
    apart = _SET_ASIDE * delta
    answers, _ = refined(terms, [1], _CUT * apart or 1e-15, TradeOffAt(rates, apart, ROUNDING))
    if answers.shape[1] == 1:  # too large for any grid
        return None
    mu, found, right = answers[0, 0], answers[0, 1 : 1 + len(rates)], answers[0, 1 + len(rates) :]
    error = None
    if math.isfinite(mu):
        allowed = share_right(Gaussian(1 / mu).forward(ODDS) if mu else np.zeros_like(ODDS))
        error = max(0.0, float(np.max(allowed - right)))
    return TradeOff(
        rates=tuple(zip(rates, found.tolist(), strict=True)),
        mu=float(mu) if error is not None else None,
        apart=apart,
        error=error,
    )


def _by_points(
    event: DpEvent, terms: Terms | None, delta: float, adjacency: Adjacency, rates: Sequence[float]
) -> TradeOff:
    assert terms, "these have closed forms"
    points = epsilon_curve(event, sorted({delta, *_POINTS}), adjacency)
    return TradeOff(
        rates=tuple((rate, min(_at_point(rate, eps, at) for at, eps in points)) for rate in rates),
        mu=None,
        apart=_SET_ASIDE * delta,
        error=None,
    )


def _at_point(rate: float, eps: float, delta: float) -> float:
    """The most true positives that (ε, δ) allows, in either direction."""
    few = math.exp(eps) * rate + delta if eps < 700 else math.inf
    return min(1.0, UP * few, UP * (1 - math.exp(-eps) * (1 - delta - rate)))


def _gaussian(rate: float, mu: float) -> float:
    return min(1.0, UP * float(ndtr(ndtri(rate) + mu)))
