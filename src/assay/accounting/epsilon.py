"""The ε that a run really spends, by privacy loss distributions, with Rényi divergences as a second opinion.

Every function takes a dp_accounting event. Its noise multipliers are relative to the most that *one* record can
contribute (C). Where neighbours replace a record, the sum moves by up to 2C, and these functions account for that.

All results are upper bounds. An event without a known bound is refused with the reason, never skipped.

References, cited by author and year:
- Abadi et al.: "Deep Learning with Differential Privacy", ACM CCS 2016, arXiv:1607.00133.
- Balle and Wang: "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal
  Denoising", ICML 2018, arXiv:1805.06530.
- Bun and Steinke: "Concentrated Differential Privacy: Simplifications, Extensions, and Lower Bounds", TCC 2016,
  arXiv:1605.02065.
- Canonne, Kamath and Steinke: "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, arXiv:2004.00010.
- Dong, Roth and Su: "Gaussian Differential Privacy", Journal of the Royal Statistical Society B, 2022,
  arXiv:1905.02383.
- Mironov: "Rényi Differential Privacy", IEEE CSF 2017, arXiv:1702.07476.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import numpy as np
from dp_accounting import NeighboringRelation, rdp
from dp_accounting.dp_event import DpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian
from numpy.typing import NDArray

from assay.accounting.composition import EpsilonAt, refined, terms_of
from assay.accounting.events import Adjacency, UnaccountableError
from assay.accounting.losses import Gaussian, Term, Terms
from assay.errors import ConfigError

__all__ = [
    "Adjacency",
    "Bound",
    "UnaccountableError",
    "bound",
    "delta_for",
    "divergences",
    "epsilon",
    "epsilon_after",
    "epsilon_curve",
    "gaussian_epsilon",
    "gdp_mu",
    "moments_epsilon",
    "rdp_epsilon",
]


class Bound(StrEnum):
    """How an ε was computed, which says how close it is to the exact one. It is an upper bound in any case."""

    EXACT = "exact"
    """A closed form."""
    PLD = "PLD"
    """Privacy loss distributions, within 1 % of the exact ε."""
    LOOSE_PLD = "loose PLD"
    """Privacy loss distributions, where a step is only bounded, or grid or rounding do not allow 1 %."""
    RENYI = "Rényi"
    """Rényi divergences."""
    SUM = "sum"
    """The sum of the ε of all releases at δ = 0."""
    NONE = "none"
    """There is no finite ε: something is released without noise, or all of the above are infinite."""


# Rounding in the Fourier transforms that compose T steps: we measured a total error of the masses of at most 4e-16 T
# (for T up to 200,000). We subtract five times that from δ, so that rounding cannot lower ε.
ROUNDING = 2e-15
_ROUNDING_SHARE = 0.01  # of δ: if more is subtracted, ε may be more than 1 % too large
_CUT = 1e-4  # share of δ given up to losses beyond the grid
_CUT_OF_DELTA = 1e-12  # the same, where δ is the answer
_SEARCHED = 1e-12  # how closely dp_accounting's root finder places the ε of a Gaussian
_RDP_ROUNDING = 1e-12  # dp_accounting ends its series for fractional orders e^-30 short of their sum


def epsilon(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    """The verified ε of the event at δ: never below the true one, and usually within 1 % of it (`bound` says which).

    Gaussians without sampling are exact (Balle and Wang 2018). Everything else is composed from privacy loss
    distributions on a grid that is refined until the result settles (`composition.refined`). Floating point or memory
    do not always allow that (δ below 1e-14 per step, ε far below 1e-4). The result is then the least of three upper
    bounds: by privacy loss, by Rényi divergence and by plain addition.

    Args:
        event: what is released.
        delta: δ, from 0 to below 1.
        adjacency: which data sets are neighbours.

    Returns:
        ε; `math.inf` where something is released without noise, and 0 where δ alone covers the whole event.

    Raises:
        ConfigError: δ is out of range.
        UnaccountableError: no bound is known for the event under this adjacency.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> round(epsilon(GaussianDpEvent(4.0), 1e-5, Adjacency.ADD_OR_REMOVE_ONE), 4)
    0.9263
    """
    return epsilon_curve(event, [delta], adjacency)[0][1]


def bound(event: DpEvent, delta: float, adjacency: Adjacency) -> Bound:
    """Which bound `epsilon` returns for these arguments."""
    check_delta(delta)
    return _epsilons(terms_of(event, adjacency), (delta,), (1,))[0][0][1]


def epsilon_curve(event: DpEvent, deltas: Sequence[float], adjacency: Adjacency) -> list[tuple[float, float]]:
    """(δ, ε) for each δ, as of `epsilon`, from a single privacy loss distribution."""
    for delta in deltas:
        check_delta(delta)
    terms = terms_of(event, adjacency)
    if not deltas:
        return []
    return [(delta, eps) for delta, (eps, _) in zip(deltas, _epsilons(terms, tuple(deltas), (1,))[0], strict=True)]


def epsilon_after(step: DpEvent, delta: float, adjacency: Adjacency, counts: Sequence[int]) -> list[float]:
    """The verified ε after each number of steps, as of `epsilon`, but much faster than one by one."""
    check_delta(delta)
    terms = terms_of(step, adjacency)
    spent = dict.fromkeys(counts, 0.0)
    for count in spent:
        if count < 0:
            raise ConfigError("counts", count, "whole numbers ≥ 0")
    taken = tuple(sorted(count for count in spent if count))
    if taken:
        bounds = [row[0][0] for row in _epsilons(terms, (delta,), taken)]
        # More steps cost no less, so a bound for more steps holds for fewer too: the curve cannot dip.
        spent |= zip(taken, np.minimum.accumulate(bounds[::-1])[::-1].tolist(), strict=True)
    return [spent[count] for count in counts]


def delta_for(event: DpEvent, epsilon: float, adjacency: Adjacency) -> float:
    """A δ at which the event is (ε, δ)-private: never below the least such δ.

    Raises:
        ConfigError: ε is out of range.
        UnaccountableError: the event has no bound, or only its Rényi divergences are known.
    """
    if not 0 <= epsilon < math.inf:
        raise ConfigError("epsilon", epsilon, "a finite number ≥ 0")
    terms = terms_of(event, adjacency)
    if terms is None:
        return 1.0
    if sum(term.pure * count for term, count in terms) <= epsilon:
        return 0.0
    if not all(term.profiled for term, _ in terms):
        raise UnaccountableError("δ for a given ε is not computed for releases known by their Rényi divergences only")
    if len(terms) == 1 and terms[0][1] == 1:
        at, only = np.array([epsilon], dtype=np.float64), terms[0][0]
        return float(max(only.forward(at)[0], only.backward(at)[0]))
    answers, _ = refined(
        terms,
        [1],
        _CUT_OF_DELTA,
        lambda losses, steps: [float(losses.get_delta_for_epsilon(epsilon)) + ROUNDING * steps],
    )
    return min(float(answers[0, 0]), 1.0)


def rdp_epsilon(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    """The ε by Rényi divergences (Mironov 2017; Canonne, Kamath and Steinke 2020), a second opinion on `epsilon`.

    It is an upper bound too, and usually looser. It is `math.inf` where no Rényi bound is known here: for Poisson
    sampling of Laplace noise, and for Poisson sampling where neighbours replace a record.
    """
    check_delta(delta)
    terms = terms_of(event, adjacency)
    return math.inf if terms is None else _rdp_epsilon(terms, delta)


def moments_epsilon(event: DpEvent, delta: float, adjacency: Adjacency, *, whole_orders: bool = False) -> float:
    """The ε of the moments accountant, as papers up to 2020 used it, for what such a paper claims.

    It is the minimum over α of the divergence plus log(1/δ)/(α - 1) (Abadi et al. 2016, Theorem 2; Mironov 2017,
    Proposition 3): the divergences of `rdp_epsilon`, converted more loosely.

    Args:
        event: what is released.
        delta: δ.
        adjacency: which data sets are neighbours.
        whole_orders: take the minimum over whole orders alone, from 2 to 256. Abadi et al. bound the moments of whole
            λ = α - 1 by a binomial expansion, so an accountant built on it has no others.

    Returns:
        ε; `math.inf` where no bound is known.
    """
    check_delta(delta)
    if delta == 0:
        return math.inf
    if whole_orders:
        orders = np.arange(2.0, 257.0)
        found = divergences(event, tuple(range(2, 257)), adjacency)
    else:
        terms = terms_of(event, adjacency)
        if terms is None:
            return math.inf
        orders, found = _divergences(terms)
    return float(np.min(found - math.log(delta) / (orders - 1)))


def divergences(event: DpEvent, orders: tuple[int, ...], adjacency: Adjacency) -> NDArray[np.float64]:
    """Upper bounds on the Rényi divergences of the event, in both directions (Mironov 2017).

    A release of which only the largest loss ε is known is ε²/2-concentrated (Bun and Steinke 2016, Proposition 1.4):
    its divergence of order α is at most the lesser of ε and αε²/2.

    Args:
        event: what is released.
        orders: whole numbers of at least 2.
        adjacency: which data sets are neighbours.

    Returns:
        One number for each order; `math.inf` where no bound is known, and where something is released without noise.

    Raises:
        ConfigError: an order is below 2.
        UnaccountableError: the event has no bound under this adjacency.
    """
    if not orders or min(orders) < 2:
        raise ConfigError("orders", orders, "whole numbers of at least 2")
    terms = terms_of(event, adjacency)
    if terms is None:
        return np.full(len(orders), math.inf)
    total = np.zeros(len(orders))
    for term, count in terms:
        total += count * _divergences_of(term, orders)
    return total


@functools.lru_cache(maxsize=1024)
def _divergences_of(term: Term, orders: tuple[int, ...]) -> NDArray[np.float64]:
    """The divergences of one release, raised by as much as rounding may have lowered them."""
    wanted = np.array(orders, dtype=np.float64)
    pure = np.minimum(term.pure, wanted * term.pure**2 / 2)
    own = term.divergences(orders)
    if own is not None:
        return np.minimum(own, pure)
    event = term.renyi()
    if event is None:
        return pure
    # Repeat-and-select converts between orders: more orders improve its bound, and none makes it wrong.
    every = sorted({*orders, *range(2, 64)})
    relation = NeighboringRelation.REPLACE_ONE if term.replaces else NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = rdp.RdpAccountant(orders=every, neighboring_relation=relation)
    try:
        with quietly():
            accountant.compose(event)
    except (ValueError, ArithmeticError):  # beyond what its formulas can take: no bound from there
        return pure
    found: NDArray[np.float64] = accountant.rdp[np.searchsorted(every, orders)]
    return np.minimum(np.maximum(found, 0.0) + _RDP_ROUNDING / (wanted - 1), pure)


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The exact ε of one Gaussian release, rounded up in the twelfth digit (Balle and Wang 2018)."""
    check_delta(delta)
    if not multiplier >= 0:
        raise ConfigError("multiplier", multiplier, "a number ≥ 0")
    exact = float(get_epsilon_gaussian(multiplier, delta))
    return exact + _SEARCHED * (1 + exact) if exact else 0.0


def gdp_mu(epsilon: float, delta: float) -> float:
    """The μ for which μ-Gaussian differential privacy has this ε at this δ (Dong, Roth and Su 2022).

    It restates one point (ε, δ): the run is not μ-GDP at every δ.
    """
    check_delta(delta)
    if not epsilon >= 0:
        raise ConfigError("epsilon", epsilon, "a number ≥ 0")
    if epsilon == math.inf:
        return math.inf
    return 1 / float(get_sigma_gaussian(epsilon, delta)) if delta else 0.0


def check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise ConfigError("delta", delta, "a number from 0 to below 1, usually below one over the number of records")


_Found = tuple[float, Bound]


@functools.lru_cache(maxsize=1024)
def _epsilons(terms: Terms | None, deltas: tuple[float, ...], times: tuple[int, ...]) -> tuple[tuple[_Found, ...], ...]:
    """ε at each δ (columns) of the terms repeated each of `times` (rows), and which bound it is."""
    if not terms:
        return (((0.0, Bound.EXACT) if terms == () else (math.inf, Bound.NONE),) * len(deltas),) * len(times)
    only = terms[0][0]
    if len(terms) == 1 and isinstance(only, Gaussian):
        return tuple(
            tuple(_least({Bound.EXACT: gaussian_epsilon(only.multiplier * n**-0.5, d)}) for d in deltas) for n in times
        )
    totals = [tuple((term, count * n) for term, count in terms) for n in times]
    if not all(term.profiled for term, _ in terms):
        return tuple(
            tuple(_least({Bound.RENYI: _rdp_epsilon(total, d - ROUNDING * _steps(total))}) for d in deltas)
            for total in totals
        )
    composed, settled = refined(
        terms,
        times,
        _CUT * min(delta or 1.0 for delta in deltas),
        EpsilonAt(deltas, ROUNDING),
    )
    composed = np.broadcast_to(composed, (len(times), len(deltas)))
    tight = settled and all(term.tight for term, _ in terms)
    second_opinion = not settled or bool(np.isinf(composed).any()) or any(term.less_by_renyi for term, _ in terms)

    def found(total: Terms, delta: float, eps: float) -> _Found:
        precise = tight and ROUNDING * _steps(total) <= _ROUNDING_SHARE * delta
        return _least(
            {
                Bound.PLD if precise else Bound.LOOSE_PLD: eps,
                Bound.RENYI: _rdp_epsilon(total, delta, sharper=True) if second_opinion else math.inf,
                Bound.SUM: sum(term.pure * count for term, count in total),
            }
        )

    return tuple(
        tuple(found(total, delta, eps) for delta, eps in zip(deltas, row, strict=True))
        for total, row in zip(totals, composed.tolist(), strict=True)
    )


def _least(bounds: Mapping[Bound, float]) -> _Found:
    """The least of these bounds; the first of equal ones."""
    kind = min(bounds, key=bounds.__getitem__)
    return bounds[kind], kind if bounds[kind] < math.inf else Bound.NONE


def _steps(terms: Terms) -> int:
    return sum(count for _, count in terms)


def _rdp_epsilon(terms: Terms, delta: float, *, sharper: bool = False) -> float:
    return float(rdp.compute_epsilon(*_divergences(terms, sharper), delta)[0]) if delta > 0 else math.inf


@functools.lru_cache(maxsize=256)
def _divergences(terms: Terms, sharper: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rényi orders and the divergences at them, `Term.sharper` ones if wanted; ∞ where there is no bound."""
    # One accountant for each relation, because dp_accounting allows some events under one only. Multipliers of terms
    # are already relative to the actual shift, which its Rényi accountant assumes under either.
    added = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    replaced = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    own = np.zeros_like(added.orders)
    for term, count in terms:
        found = term.sharper(tuple(added.orders)) if sharper else None
        found = term.divergences(tuple(added.orders)) if found is None else found
        if found is not None:
            own += count * found
            continue
        event = term.renyi()
        if event is None:
            return added.orders, np.full_like(added.orders, math.inf)
        accountant = replaced if term.replaces else added
        try:
            with quietly():
                accountant.compose(event, count)
        except (ValueError, ArithmeticError):  # beyond what its formulas can take: no bound from there
            return added.orders, np.full_like(added.orders, math.inf)
    orders = added.orders
    # dp_accounting would read a divergence that rounding made negative as ε = 0, so we raise all of them.
    rounding = _RDP_ROUNDING * sum(count for _, count in terms) / (orders - 1)
    return orders, np.maximum(added.rdp + replaced.rdp, 0.0) + own + rounding


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence dp_accounting's warnings about Rényi orders that it leaves out, which only raises ε."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
