"""A Rényi filter: how much several runs on the same records spend together, although each was chosen after the last.

**Setting.** Somebody makes one release after another on the same records: steps of one run, of several runs at once, of
runs whose settings depend on earlier results. Release t may depend on everything released before it, and so may the
decision to stop. What is known of release t before it is made is ρₜ(α), a bound on its Rényi divergence of order α
between neighbouring data sets, in both directions. Write S(α) for the sum of ρₜ(α) over all releases made.

**Rule.** A few orders α and weights w(α) > 0 that add up to 1 are fixed before the first release. With a ceiling (ε,
δ), a release is made only if afterwards, for every x in (0, 1],

    1 - x  ≤  δ · Σ_α w(α) · exp((α - 1)(ε - S(α))) · x^-(α - 1).                                                (1)

**Theorem.** Everything released is (ε, δ)-differentially private, whenever and for whatever reason the releases end.

**Proof.** Let P and Q be the laws of all that is released from two neighbouring data sets, Lₜ the privacy loss
log dP/dQ of the first t releases, ℓₜ that of release t given those before it. Given the past,
E_P[exp((α - 1) ℓₜ)] = exp((α - 1) D_α) ≤ exp((α - 1) ρₜ(α)), and ρₜ(α) depends on the past alone. So
Mₜ(α) = exp((α - 1)(Lₜ - Sₜ(α))) is a supermartingale under P that begins with 1. So is Φₜ = Σ_α w(α) Mₜ(α), which is
never negative; hence E_P[Φ_T] ≤ 1 at every stopping time T. For every set E of outcomes
P(E) - e^ε Q(E) ≤ E_P[(1 - exp(ε - L_T))₊]. Where L_T ≤ ε the bracket is 0. Elsewhere put x = exp(ε - L_T) in (0, 1):
by (1) the bracket 1 - x is at most δ Σ_α w(α) exp((α - 1)(L_T - S_T(α))) = δ Φ_T. The expectation is therefore at most
δ E_P[Φ_T] ≤ δ. The other direction is the same with P and Q exchanged. ∎

For a single order, (1) is the conversion of Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential
Privacy", 2020, arXiv:2004.00010, and the theorem is the Rényi filter of Feldman and Zrnic, "Individual Privacy
Accounting via a Rényi Filter", 2021, arXiv:2008.11193; see also Lécuyer, "Practical Privacy Filters and Odometers with
Rényi Differential Privacy", 2021, arXiv:2103.01379. Taking the best order afterwards would not be covered by either:
which order is best may depend on what was released. The weights pay for that choice.

**What has been spent so far.** In the proof ε may be a function of the outcome, as long as (1) holds for it: then
E_P[(1 - exp(ε - L_T))₊] ≤ δ, that is P(E) ≤ e^e Q(E) + δ for every set E of outcomes whose ε is at most e. So the least
ε that satisfies (1) for the S of what was released is a valid statement about it, without any ceiling
(`RenyiFilter.epsilon`; Rogers, Roth, Ullman and Vadhan, "Privacy Odometers and Filters", 2016, arXiv:1605.08294, call
such a number an odometer).

**Giving back.** A run may be given up after part of its releases: S counts what was released, and the decision to stop
is one of those that the theorem allows. It must be made by what was released, and not by a look at the records.

Runs may go on at the same time: each single release is chosen after all those that were made before it, by whichever
run. The theorem speaks of releases that are bounded one by one. Noise that several steps have in common (`banded`) is
not covered: such a run is one release that other runs would see from within, and is refused. Amplification by random
allocation (`shuffle`) is known of whole epochs, and is not counted here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, SelfComposedDpEvent
from numpy.typing import NDArray
from scipy.special import logsumexp

from assay.accounting import events
from assay.accounting.accountants.allocated import RandomAllocationDpEvent
from assay.accounting.adjacency import Adjacency
from assay.accounting.epsilon import divergences
from assay.errors import ConfigError, check_above_zero

Costs = NDArray[np.float64]
"""Rényi divergences, one for each order of a filter."""

_LARGEST_ORDER = 4096
# Orders at 2^(k/2) times the one that is best for Gaussian noise, and how their weights fall with |k|.
_SPREAD, _DECAY = range(-4, 3), 0.3
_PLACES = np.concatenate([[0.0], np.geomspace(1e-6, 60.0, 1500)])  # -log x, in between by monotonicity
_LEFT = np.log(-np.expm1(-np.append(_PLACES[1:], math.inf)))  # log(1 - x) at the far end of each interval
_ROUNDING = 1e-9
_CLOSE = 1e-6


@dataclass(frozen=True)
class RenyiFilter:
    """Orders and weights, fixed before the first release. The module has the theorem and its proof.

    Attributes:
        orders: Whole numbers of at least 2, ascending.
        weights: One for each order, above 0, together 1.
    """

    orders: tuple[int, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        orders, weights = self.orders, self.weights
        if not orders or any(type(order) is not int for order in orders):
            raise ConfigError("orders", orders, "whole numbers of at least 2, ascending")
        if orders[0] < 2 or list(orders) != sorted(set(orders)):
            raise ConfigError("orders", orders, "whole numbers of at least 2, ascending")
        if len(weights) != len(orders) or min(weights) <= 0 or math.fsum(weights) > 1 + 1e-9:
            raise ConfigError("weights", weights, f"{len(orders)} numbers above 0, together at most 1")

    @classmethod
    def for_ceiling(cls, epsilon: float, delta: float) -> RenyiFilter:
        """The filter for a ceiling: most weight on the order that is best for Gaussian noise, some on those around it.

        Args:
            epsilon: The ceiling.
            delta: Its δ, above 0.

        Example:
            >>> RenyiFilter.for_ceiling(3, 1e-5).orders
            (3, 4, 6, 8, 11, 15)
        """
        check_above_zero("epsilon", epsilon)
        if not 0 < delta < 1:
            raise ConfigError("delta", delta, "a number above 0 and below 1")
        alpha = np.arange(2, _LARGEST_ORDER + 1)
        room = epsilon - np.log1p(-1 / alpha) + (math.log(delta) + np.log(alpha)) / (alpha - 1)
        best = int(alpha[np.argmax(room / alpha)])
        shares: dict[int, float] = {}
        for k in _SPREAD:
            order = min(max(2, round(1 + (best - 1) * 2 ** (k / 2))), _LARGEST_ORDER)
            shares[order] = shares.get(order, 0.0) + _DECAY ** abs(k)
        whole = math.fsum(shares.values())
        return cls(tuple(sorted(shares)), tuple(shares[order] / whole for order in sorted(shares)))

    def costs(self, event: DpEvent, adjacency: Adjacency) -> Costs:
        """The Rényi divergences of an event at the orders; ∞ where there is no bound."""
        return divergences(_step_by_step(event), self.orders, adjacency)

    def allows(self, costs: Sequence[float] | Costs, epsilon: float, delta: float) -> bool:
        """Whether releases of these costs, added up, satisfy (1) for (ε, δ).

        Between two places x the left side of (1) is at most that at the lower one, and the right side at least that at
        the upper one. So a True is a proof, and not an approximation.
        """
        spent = np.asarray(costs, dtype=np.float64)
        finite = np.isfinite(spent)
        if delta <= 0 or not finite.any() or np.isnan(spent).any():
            return False
        alpha, weight = self._numbers
        room = (alpha[finite] - 1) * (epsilon - spent[finite]) + weight[finite]
        right = logsumexp(room[:, None] + (alpha[finite] - 1)[:, None] * _PLACES, axis=0) + math.log(delta)
        return bool(np.all(right >= _LEFT + _ROUNDING))

    def epsilon(self, costs: Sequence[float] | Costs, delta: float) -> float:
        """The ε of what was released, rounded up in the sixth digit; ∞ where no order has a bound."""
        spent = np.asarray(costs, dtype=np.float64)
        if not spent.any():
            return 0.0
        low, high = 0.0, 1.0
        while not self.allows(spent, high, delta):
            low, high = high, 2 * high
            if high > 1e6:
                return math.inf
        while high - low > _CLOSE * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.allows(spent, middle, delta) else (middle, high)
        return high

    @cached_property
    def _numbers(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array(self.orders, dtype=np.float64), np.log(self.weights)


def _step_by_step(event: DpEvent) -> DpEvent:
    """The event without amplification by random allocation, which is known of whole epochs only.

    Other runs may see an epoch from within. Even to those who know every allocation, a record is in one release of an
    epoch.
    """
    parts = [
        SelfComposedDpEvent(leaf.event if isinstance(leaf, RandomAllocationDpEvent) else leaf, count)
        for leaf, count in events.flatten(event)
    ]
    return ComposedDpEvent(parts)


_SHARES = {2: 1, 3: 2, 4: 3, 6: 4, 8: 4, 11: 4, 16: 4, 23: 4, 32: 3, 48: 2, 64: 2, 128: 1, 256: 1, 512: 1}
ANY = RenyiFilter(tuple(_SHARES), tuple(share / sum(_SHARES.values()) for share in _SHARES.values()))
"""For runs without a common ceiling. Orders must be constant: choosing them for given runs would void the theorem."""
