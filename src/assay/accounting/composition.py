"""Privacy losses composed on a grid that fits the run, and what is asked of the result: ε, or the trade-off curve.

Composition is dp_accounting's, on its pessimistic connect-the-dots discretisation (Doroshenko, Ghazi, Kamath, Kumar and
Manurangsi, "Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions", PoPETs 2022,
arXiv:2207.04380, Algorithm 1). The discretised pair dominates the true one, so every resulting ε is an upper bound
whatever the grid. The grid only decides how close it is.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting.dp_event import DpEvent
from dp_accounting.pld.pld_pmf import DensePLDPmf
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtri, ndtri_exp

from assay.accounting import events
from assay.accounting.events import Adjacency, Parts, accountant_of
from assay.accounting.losses import Array, Gaussian, Term, Terms

Curve = Callable[[Array], Array]
Query = Callable[[DensePLDPmf, int], Sequence[float]]  # asked of the losses of one direction after a number of steps

_COARSEST = 4_000  # points of the widest single step on the first grid
_LARGEST = 2**21  # points of a composed distribution; its Fourier transform takes some 100 MB
_MOST_STEPS = 10**7  # for more steps even the coarsest grid is too large
_WIDEST = 500.0  # interval h; the discretisation computes e^h
_FINER = 4  # how much finer each grid is than the one before
_AGREE = 1.006
UP = 1 + 1e-12  # closed forms are raised by as much as rounding may have lowered them
ODDS = np.linspace(0.0, 12.0, 121)  # ε at which the error of μ is measured; beyond, e^-ε leaves nothing of it
_EXACT = 600.0  # the largest ε that dp_accounting computes without loss: e^-745 is zero in floating point


def refined(terms: Terms, times: Sequence[int], tail: float, query: Query) -> tuple[Array, bool]:
    """Ask `query` about the terms repeated each of `times`, on finer and finer grids until the answers settle.

    When to stop: let e(h) be the answer on a grid of interval h, and s the standard deviation of the loss of one step.
    Connecting the dots keeps the profile of a step exact on the grid and splits each loss between its two neighbours.
    With h below s this adds a variance of the order of h², and e(h) - e(0) falls like h². With h far above s a step has
    the losses -h, 0, h and a variance of about h δ(0), and e(h) falls like h^½. So the order rises from ½ to 2 as the
    grid gets finer. For an order of at least ½ the error e(h) - e(0) is at most (e(4h) - e(h)) / (4^½ - 1), that is,
    what the last refinement by four still changed. Stopping when that is 0.6 % of e(h) leaves an error of at most
    0.6 %, and of 0.04 % at order 2, where it usually ends.

    Args:
        terms: the releases.
        times: how often the whole is repeated.
        tail: the probability that may be moved to an infinite loss by cutting the grid off.
        query: its answers must grow with the losses. Then they are upper bounds on every grid, and the smallest counts.

    Returns:
        One row of answers for each of `times`, and whether all of them settled.
    """
    total = sum(count for _, count in terms)
    if total * max(times) > _MOST_STEPS:
        return np.full((len(times), 1), math.inf), False
    step_tail = tail / (2 * total * max(times))
    h, variance = _first_interval(terms, step_tail)
    if 32 * math.sqrt(variance * max(times)) > h * _LARGEST:  # ±16 standard deviations
        return np.full((len(times), 1), math.inf), False
    best = previous = np.full((len(times), 1), math.inf)
    pending = list(range(len(times)))
    while True:
        size, values = answers_on_grid(terms, [times[i] for i in pending], h, step_tail, tail / 2, query)
        best = np.broadcast_to(best, (len(times), values.shape[1])).copy()
        best[pending] = np.minimum(best[pending], values)
        # On the first grid there is nothing to compare with: the previous answer is infinite.
        moving: NDArray[np.bool_] = np.any(previous > _AGREE * values, axis=1)
        pending = [i for i, still in zip(pending, moving, strict=True) if still]
        if not pending or size * _FINER > _LARGEST:
            return best, not pending
        previous, h = values[moving], h / _FINER


def epsilon_at(losses: DensePLDPmf, delta: float) -> float:
    """The least ε at which the profile of the losses is at most δ. Above 600 it is rounded up in the sixth digit."""
    with np.errstate(over="ignore"):
        eps = float(losses.get_epsilon_for_delta(delta))
    if eps <= _EXACT:
        return eps
    # dp_accounting sums e^-loss, of which little or nothing is left here. The profile itself is still exact.
    low, high = 0.0, _EXACT
    while losses.get_delta_for_epsilon(high) > delta:
        low, high = high, 2 * high
        if high > 1e12:
            return math.inf
    while high > low * (1 + 1e-6):
        middle = (low + high) / 2
        low, high = (middle, high) if losses.get_delta_for_epsilon(middle) > delta else (low, middle)
    return high


@dataclass(frozen=True)
class EpsilonAt:
    """The query (`refined`) for ε at each δ, of which `rounding` per step goes to the rounding of composition."""

    deltas: tuple[float, ...]
    rounding: float

    def __call__(self, losses: DensePLDPmf, steps: int) -> Sequence[float]:
        """ε at each δ, for the losses of this number of steps."""
        return [epsilon_at(losses, delta - self.rounding * steps) for delta in self.deltas]


def answers_on_grid(
    terms: Terms, times: Sequence[int], h: float, step_tail: float, tail: float, query: Query
) -> tuple[int, Array]:
    """The size of the largest composed distribution, and for each of `times` the worst answer of all directions."""
    total = sum(count for _, count in terms)
    size, worst = 0, []
    for direction in _directions(terms):
        steps = [(discretised(up, down, h, step_tail), count) for up, down, count in direction]
        rows = []
        for n in times:
            losses = _composed([(step, count * n) for step, count in steps], tail)
            size = max(size, losses.size)
            rows.append(query(losses, total * n))
        worst.append(rows)
    return size, np.max(np.array(worst, dtype=float), axis=0)


def _directions(terms: Terms) -> list[list[tuple[Curve, Curve, int]]]:
    """P against Q and, unless that is the same, Q against P. Neighbours differ in the same direction in all steps."""
    one_way: list[tuple[Curve, Curve, int]] = [(term.forward, term.backward, n) for term, n in terms]
    if all(type(term).forward is type(term).backward for term, _ in terms):
        return [one_way]
    return [one_way, [(down, up, n) for up, down, n in one_way]]


def _first_interval(terms: Terms, tail: float) -> tuple[float, float]:
    """The root mean square of the steps' standard deviations, or what the widest step allows, and their variance."""
    reaches = [_reach(curve, tail) for term, _ in terms for curve in (term.forward, term.backward)]
    coarsest = min(max(reaches) / _COARSEST, _WIDEST)
    variance = 0.0
    for term, count in terms:
        bottom, masses, _ = _masses(term.forward, term.backward, coarsest, tail)
        losses = np.arange(bottom, bottom + len(masses)) * coarsest
        variance += count * float(masses @ (losses - masses @ losses) ** 2)
    typical = math.sqrt(variance / sum(count for _, count in terms))
    return min(max(typical, coarsest), _WIDEST), variance


def _reach(curve: Curve, tail: float) -> float:
    """An ε, at most 8 % too large, at which the profile has fallen to `tail` above what is left of it at any ε."""
    eps = np.geomspace(1e-12, 1e9, 641)
    left = curve(eps[-1:])
    return float(eps[np.argmax(np.append(curve(eps[:-1]) <= tail + left, True))])


def _masses(up: Curve, down: Curve, h: float, tail: float) -> tuple[int, Array, float]:
    """Discretise one step: the index of the lowest loss, the masses from there on at multiples of h, and that at ∞.

    This is Algorithm 1 of Doroshenko et al. 2022 for the profile δ(ε) = (1 - e^ε)₊ + v(ε). The first summand is the
    profile of a release that says nothing, of mass 1 at loss 0. Working on v alone keeps the digits that 1 - e^ε would
    drown where sampling makes v tiny. Where rounding leaves a mass below zero, raising it only raises the profile.
    """
    below, above = (max(1, math.ceil(_reach(curve, tail) / h)) for curve in (down, up))
    eps = h * np.arange(below, 0, -1, dtype=np.float64)
    v = np.concatenate([np.exp(-eps) * down(eps), up(h * np.arange(above + 1, dtype=np.float64))])
    falls = np.diff(v)
    masses = np.empty_like(v)
    masses[0] = falls[0] / math.expm1(h) - v[0]
    masses[1:-1] = (falls[1:] - math.exp(h) * falls[:-1]) / math.expm1(h)
    masses[-1] = falls[-1] / math.expm1(-h)
    masses[below] += 1.0
    return -below, np.maximum(masses, 0.0), float(v[-1])


def discretised(up: Curve, down: Curve, h: float, tail: float) -> DensePLDPmf:
    """One step on a grid of interval h: its profile is exact on the grid, and never below the true one."""
    bottom, masses, infinite = _masses(up, down, h, tail)
    return DensePLDPmf(h, bottom, masses, infinite, pessimistic_estimate=True)


def _composed(steps: Sequence[tuple[DensePLDPmf, int]], tail: float) -> DensePLDPmf:
    """Compose each step with itself and then all with each other, cutting off at most `tail`."""
    tail /= 2 * len(steps)
    with np.errstate(over="ignore"):  # in moments of high order, which dp_accounting then leaves out
        whole = [step if count == 1 else step.self_compose(count, tail) for step, count in steps]
    return functools.reduce(lambda one, other: one.compose(other, tail), whole)


def share_right(profile: Array) -> Array:
    """The largest share of right guesses at the odds of `ODDS`."""
    odds = np.exp(ODDS)
    share: Array = (odds + profile) / (1 + odds)
    return share


@dataclass(frozen=True)
class TradeOffAt:
    """The query for μ, the true positives at each rate, and the shares of right guesses.

    All of them grow with the losses.
    """

    rates: tuple[float, ...]
    apart: float
    rounding: float

    def __call__(self, losses: DensePLDPmf, steps: int) -> Sequence[float]:
        """The answers for one direction of the composed losses."""
        grid = Polygon.of(losses, self.rounding * steps)
        return [grid.mu(self.apart), *map(grid.true_positives, self.rates), *share_right(grid.profile(ODDS))]


@dataclass(frozen=True, eq=False)
class Polygon:
    """The trade-off curve of losses on a grid: P(loss > l_i), and the sum of P(l_j) e^(l_i - l_j) over l_j > l_i."""

    losses: Array
    above: Array
    weighted: Array
    rounding: float

    @classmethod
    def of(cls, pmf: DensePLDPmf, rounding: float) -> Polygon:
        """A corner below the lowest loss, and one at every loss."""
        step, lowest = pmf._discretization, pmf._lower_loss
        masses = np.append(0.0, np.maximum(pmf._probs, 0.0))
        losses = step * np.arange(lowest - 1, lowest - 1 + len(masses))
        above = np.append(masses[:0:-1].cumsum()[::-1], 0.0) + pmf._infinity_mass
        shrink = math.exp(-step)
        weighted = lfilter([0.0, shrink], [1.0, -shrink], masses[::-1])[::-1]
        return cls(losses, np.minimum(above, 1.0), weighted, rounding)

    def profile(self, eps: Array) -> Array:
        """δ at these ε ≥ 0, with what rounding may have taken from it."""
        place = np.searchsorted(self.losses, eps, side="right") - 1
        inside = np.maximum(place, 0)
        # below the lowest loss the corner of the lowest one holds too
        grown = np.exp(np.minimum(eps - self.losses[inside], 700.0)) * self.weighted[inside]
        delta: Array = np.minimum(np.maximum(self.above[inside] - grown, 0.0) + self.rounding, 1.0)
        return delta

    def true_positives(self, rate: float) -> float:
        """(1), whose minimum is at a corner."""
        at_corners = np.exp(np.minimum(self.losses, 700.0)) * rate + self.above - self.weighted
        return min(1.0, max(rate, float(at_corners.min()) + self.rounding))

    def mu(self, apart: float) -> float:
        """The least μ of (2); infinite where more is beyond the grid than is set aside."""
        corners = self.losses >= 0 if self.losses[0] < 0 else np.full(len(self.losses), True)
        found = self.above[corners] + self.rounding - apart
        asks = found > 0
        if not asks.any():
            return 0.0
        with np.errstate(divide="ignore"):
            log_false = np.log(self.weighted[corners][asks]) - self.losses[corners][asks]
        needed = ndtri(np.minimum(found[asks], 1.0)) - ndtri_exp(np.minimum(log_false, 0.0))
        return max(0.0, float(np.max(needed)) * UP)


def terms_of(event: DpEvent, adjacency: Adjacency) -> Terms | None:
    """Turn an event into terms, equal ones counted together; None if something in it has no privacy."""
    events.check(event)
    return combined(_parts(event, Adjacency(adjacency)))


def combined(parts: Iterable[tuple[Term | None, int]]) -> Terms | None:
    """The terms, equal ones counted together; None if something in them has no privacy."""
    counts: Counter[Term] = Counter()
    precision = 0.0  # Σ σ⁻² of the Gaussians without sampling: together they are one Gaussian, exactly
    for term, count in parts:
        if term is None:
            return None
        if isinstance(term, Gaussian):
            precision += count * term.multiplier**-2
        else:
            counts[term] += count
    if precision:
        counts[Gaussian(precision**-0.5)] += 1
    return tuple(counts.items())


def _parts(event: DpEvent, adjacency: Adjacency) -> Parts:
    """The terms of an event and how often each happens; None stands for a release without privacy."""
    for leaf, times in events.flatten(event):
        parts = accountant_of(leaf).terms(leaf, adjacency, lambda inner: _parts(inner, adjacency))
        yield from ((term, times * count) for term, count in parts)
