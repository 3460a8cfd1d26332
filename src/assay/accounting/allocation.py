"""Random allocation: every record is in exactly one of t releases, drawn uniformly and independently of the others.

This is what the sampler `shuffle` does in an epoch of t batches (balls and bins). Release i is a sum over the records
of batch i, to which each contributes at most C, plus noise σC. It may depend on all releases before it.

**Claim.** Where a record x is added or removed, an epoch is dominated in both directions by the pair

    P = (1/t) Σ_i N(e_i, σ²I_t)  against  Q = N(0, σ²I_t),

and epochs by the products of such pairs (L. Chua, B. Ghazi, C. Harrison, E. Leeman, P. Kamath, R. Kumar, P. Manurangsi,
A. Sinha, C. Zhang: "Balls-and-Bins Sampling for DP-SGD", AISTATS 2025, arXiv:2412.16802; V. Feldman, M. Shenfeld:
"Privacy Amplification by Random Allocation", 2025, arXiv:2502.08202).

**Proof.** Let C = 1.

1. Reveal the batches of all other records. They are drawn independently of x and alike with and without it, and
   profiles are jointly convex, so revealing them can only raise the profile.
2. Let z_i be release i minus its mean without x, given the releases before. With x in batch i alone, the mean of
   release i moves by a vector g_i of norm at most 1 that depends on the releases before it, and no other mean moves. So
   the likelihood ratio of "with x" to "without" is R' = (Y'_1 + ... + Y'_t)/t with Y'_i = exp(⟨g_i, z_i⟩/σ² -
   |g_i|²/2σ²). Without x, the z_i are independent N(0, σ²I).
3. Both profiles are expectations without x of convex functions of the likelihood ratio R:

       δ_PQ(ε) = E[(R - e^ε)₊],    δ_QP(ε) = E[(1 - e^ε R)₊].

4. Given the releases before i, Y'_i is a log-normal number of mean 1 whose exponent has standard deviation |g_i|/σ.
   Such numbers grow in convex order with |g_i|: they are a Brownian exponential martingale, stopped later. So for i =
   t, t-1, ..., 1, replacing Y'_i by Y_i, that of |g_i| = 1, raises E[φ(R')] for every convex φ. Y_i no longer depends
   on what was before, so φ averaged over it is again a convex function of what is left. In the end R = (Y_1 + ... +
   Y_t)/t with independent Y_i, which is dP/dQ under Q.
5. In a further epoch records draw their batches independently of all earlier ones, so the claim holds for it whatever
   was released before. Pairs that dominate each part, all in the same direction, compose (Y. Zhu, J. Dong, Y. Wang:
   "Optimal Accounting of Differential Privacy via Characteristic Function", AISTATS 2022, arXiv:2106.08567).
6. An epoch that ends early, or the rest of one that a resumed run draws again, is a function of a whole epoch, which is
   what the sampler charges. ∎

**How the profiles are bounded here.** Every Y_i is replaced by one that takes multiples of a step h only, each
interval's mass being split between its two ends so that its mean stays. That makes Y_i larger in convex order. Convex
order is kept by sums of independent numbers, so both profiles can only grow, and the pair that comes out dominates the
true one whatever h is. The step decides how close it is. The profile of (Q, P) asks for R ≤ e^-ε only, and a grid that
ends at R = 1 is finer near 0, where that profile needs it: numbers Y_i ≥ 0 of a small sum are small.

Four things are added to both profiles, so that none of them can lower ε: the mass of Y_i beyond the grid, a Chernoff
bound on the mass of the sum beyond it, the rounding of the Fourier transform that adds up the Y_i, and that of all
other sums (`_LOST`).

**Why ε is below the upper bounds of PLD_accounting 2.0**, by 0.1 to 2 %: both bound the same pair from above. On its
geometric grids that package moves mass upwards (stochastic domination, as its README says), which raises the mean of R
with every sum. Splitting keeps the mean, so the error falls with the square of h. In the runs that the package answered
in time (`benchmarks.oracles`), ε here lies between its lower and upper bounds, which close in on it as its grid gets
finer (`benchmarks.oracles.grids`). Integrals over all outcomes of epochs of 2 and 3 batches agree, and so do
simulations of the pair at δ = 1e-5 (`tests/accounting/test_allocation.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import gammaln, logsumexp, ndtr, ndtri

from assay.accounting.losses import Array, Term

LEAST_NOISE = 0.35  # below, the law of Y is too wide for any grid; amplification is next to nothing there
_TAILS = (1e-14, 1e-12, 1e-11, 1e-10)  # mass given up beyond the grid, least first
_POINTS = (2**17, 2**19, 2**21)
_SPREAD = 2e-4  # of the variance of Y: what the grid may add to it before a finer one is taken
_TIGHT = 2e-3  # the same, up to which ε is within 1 % of the exact one
_BARE = 1e-12  # mass of Q at R = 0 up to which the grid is fine enough there
_TILT = 24.0  # what is wrapped around is weighed by e^-24
_HIGHEST = 64  # Rényi order
_ROUNDING = 4  # times the largest mass below zero that the transform leaves: how far any mass may be off
_LOST = 1e-13  # three times what rounding was seen to take from the mass of P or Q, in sums of up to 2^21 numbers


@dataclass(frozen=True, slots=True)
class Allocation(Term):
    """Gaussian noise on each of `batches` sums, of which a record is in one."""

    batches: int
    multiplier: float
    pure = math.inf

    @property
    def tight(self) -> bool:  # type: ignore[override]  # depends on the noise
        """Whether the grid adds next to nothing."""
        high, low = _law(self.batches, self.multiplier), _low_law(self.batches, self.multiplier)
        return max(high.spread, low.spread) <= _TIGHT and low.bare <= _BARE

    def forward(self, eps: Array) -> Array:
        """E[(R - e^ε)₊]."""
        return _law(self.batches, self.multiplier).above(np.exp(np.minimum(eps, 700.0)))

    def backward(self, eps: Array) -> Array:
        """E[(1 - e^ε R)₊]."""
        return _low_law(self.batches, self.multiplier).below(np.exp(np.minimum(eps, 700.0)))

    def divergences(self, orders: Sequence[float]) -> Array:
        """Rényi divergences, the larger of the two directions; that of the next whole order where one is not whole.

        A second opinion that shares nothing with the profiles: moments of R of whole orders in closed form, and
        negative moments as integrals of the Laplace transform of Y.
        """
        known = _divergences(self.batches, self.multiplier)
        whole = [max(2, math.ceil(order)) for order in orders]
        return np.array([known[n] if n <= _HIGHEST else math.inf for n in whole])


@dataclass(frozen=True, slots=True, eq=False)
class _Law:
    """The law of R under Q on a grid of multiples of `step`, and what is added to its profile.

    `mass` and `ratio` are cumulative sums of the masses, and of the masses times R: from above for `above`, from below
    for `below`.
    """

    step: float
    beyond: float
    spread: float
    mass: Array
    ratio: Array

    def above(self, level: Array) -> Array:
        """E[(R - level)₊], and what is beyond the grid."""
        first = self._after(level)
        inside: Array = np.minimum(self.ratio[first] - level * self.mass[first], 1.0).clip(0.0)
        return inside + self.beyond

    def below(self, factor: Array) -> Array:
        """E[(1 - factor R)₊], and what is beyond the grid."""
        first = self._after(1 / factor)
        inside: Array = np.minimum(self.mass[first] - factor * self.ratio[first], 1.0).clip(0.0)
        return inside + self.beyond

    @property
    def bare(self) -> float:
        """The mass at 0, where the loss of (Q, P) is infinite, of a law for `below`."""
        return float(self.mass[1])

    def _after(self, level: Array) -> NDArray[np.int64]:
        """The first point above the level."""
        last = len(self.mass) - 1
        return np.minimum(np.floor(np.minimum(level, last * self.step) / self.step).astype(np.int64) + 1, last)


@functools.lru_cache(maxsize=64)
def _law(batches: int, multiplier: float) -> _Law:
    """For `above`: the first of the grids, with the least mass given up, that is fine enough; else the finest."""
    for tail in _TAILS:
        for points in _POINTS:
            step, length = _grid(batches, multiplier, tail, points)
            if _spread(step, multiplier) <= _SPREAD:
                return _summed(batches, multiplier, step, points, length)
    step, length = _grid(batches, multiplier, _TAILS[-1], _POINTS[-1])
    return _summed(batches, multiplier, step, _POINTS[-1], length)


@functools.lru_cache(maxsize=64)
def _low_law(batches: int, multiplier: float) -> _Law:
    """For `below`: the first of the grids that is fine enough near 0; else the finest.

    Sums above t have no part in it, so neither has any Y above t: leaving them out is exact. What the transform wraps
    around only adds to the profile. It is next to nothing, because Y is weighed by e^(-λY) first, and its sum back.
    """
    wide = 10 * math.sqrt(batches * math.expm1(multiplier**-2))
    reach = batches + min(max(wide, batches / 8), 3.0 * batches)
    for points in _POINTS:
        step = reach / points
        inside = math.floor(batches / step) + 2  # the points up to t, and one beyond it
        single, _ = _single(multiplier, step, inside)
        fine = _spread(step, multiplier) <= _SPREAD and batches * math.log(max(single[0], 1e-300)) <= math.log(_BARE)
        if fine or points == _POINTS[-1]:
            break
    masses, rounding = _power(single, batches, points, tilt=_TILT / points)
    masses = masses[:inside]
    ratios = (step / batches) * np.arange(inside)
    return _Law(
        step=step / batches,
        beyond=rounding * inside + _LOST,
        spread=_spread(step, multiplier),
        mass=np.append(0.0, masses.cumsum()),
        ratio=np.append(0.0, (masses * ratios).cumsum()),
    )


def _spread(step: float, multiplier: float) -> float:
    """What the grid adds to the variance of Y, as a share of it."""
    return step**2 / 6 / math.expm1(multiplier**-2)


def _grid(batches: int, multiplier: float, tail: float, points: int) -> tuple[float, int]:
    """The step of a grid of `points` points that holds the sum of all Y, and how many of them a single Y takes."""
    shift = 1 / multiplier
    far = max(shift - float(ndtri(tail)), -float(ndtri(tail / batches)))
    largest = math.exp(shift * far - shift**2 / 2)
    reach = largest + batches + 10 * math.sqrt(batches * math.expm1(shift**2))
    step = reach / points
    return step, min(math.ceil(largest / step), points - 1)


def _summed(batches: int, multiplier: float, step: float, points: int, length: int) -> _Law:
    shift = 1 / multiplier
    single, last = _single(multiplier, step, length)
    masses, rounding = _power(single, batches, points)
    ratios = (step / batches) * np.arange(points)
    beyond = (
        float(ndtr(shift - last))
        + batches * float(ndtr(-last))
        + _chernoff(single, step * np.arange(length + 1.0), batches, step * points)
        + rounding * float(np.maximum(ratios, 1.0).sum())
        + _LOST
    )
    return _Law(
        step=step / batches,
        beyond=beyond,
        spread=_spread(step, multiplier),
        mass=np.append(masses[::-1].cumsum()[::-1], 0.0),
        ratio=np.append((masses * ratios)[::-1].cumsum()[::-1], 0.0),
    )


def _single(multiplier: float, step: float, length: int) -> tuple[Array, float]:
    """Masses of Y at the multiples 0, ..., length of the step, and the normal number at which Y reaches the last.

    Each interval's mass is split between its ends so that its mean stays. What is beyond the last is left out.
    """
    shift = 1 / multiplier
    edges = step * np.arange(length + 1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        normal = (np.log(edges) + shift**2 / 2) / shift
    inside, weighted = _between(normal), _between(normal - shift)  # of Q; of Q times Y, which is N(shift, 1)
    up = np.clip((weighted - edges[:-1] * inside) / step, 0.0, inside)
    masses = np.append(inside - up, 0.0)
    masses[1:] += up
    return masses, float(normal[-1])


def _power(single: Array, batches: int, points: int, tilt: float = 0.0) -> tuple[Array, float]:
    """The law of the sum of `batches` independent Y, and how far any mass of it may be off.

    In long double where the machine has one: the rounding of many masses, each weighed by its ratio, adds up. With a
    tilt, masses are weighed by e^(-tilt) to the power of their place in between, so that less is wrapped around.
    """
    places = np.arange(points, dtype=np.longdouble)
    wide = np.asarray(single, dtype=np.longdouble) * np.exp(-tilt * places[: len(single)])
    masses = fft.irfft(fft.rfft(wide, points) ** batches, points)
    rounding = _ROUNDING * max(0.0, -float(masses.min()))
    masses *= np.exp(tilt * places)
    return np.maximum(masses, 0.0).astype(np.float64), rounding * math.exp(tilt * len(single))


def _between(edges: Array) -> Array:
    """The mass of N(0, 1) between neighbours, with all its digits in both tails."""
    low, high = edges[:-1], edges[1:]
    between: Array = np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    return between


def _chernoff(single: Array, values: Array, batches: int, reach: float) -> float:
    """A bound on E[R; Y_1 + ... + Y_t ≥ reach], and with it on the mass that the transform wraps around.

    E[S; S ≥ a]/t ≤ e^(-λa) E[S e^(λS)]/t = e^(-λa) M'(λ) M(λ)^(t-1) for every λ > 0, M the moments of one Y.
    """
    positive = single > 0
    log_mass, values = np.log(single[positive]), values[positive]
    best = math.inf
    for scale in np.geomspace(1.0, 1e6, 40):
        rate = float(scale) / reach
        log_moment = float(logsumexp(log_mass + rate * values))
        log_slope = float(logsumexp(log_mass[1:] + np.log(values[1:]) + rate * values[1:]))
        found = -rate * reach + log_slope + (batches - 1) * log_moment
        if found > best:  # convex in the rate: it only rises from here
            break
        best = found
    return math.exp(min(best, 0.0))


@functools.lru_cache(maxsize=64)
def _divergences(batches: int, multiplier: float) -> Array:
    """The larger of D(P‖Q) and D(Q‖P) at every whole order up to the highest, raised in the ninth digit."""
    orders = np.arange(2, _HIGHEST + 1)
    forward = _log_moments(batches, multiplier)[2:]
    backward = _log_negative_moments(batches, multiplier)
    larger = np.maximum(np.maximum(forward, backward) / (orders - 1), 0.0)
    return np.append([math.inf, math.inf], larger * (1 + 1e-9) + 1e-12)


def _log_moments(batches: int, multiplier: float) -> Array:
    """log E[R^n]: n!/tⁿ times the coefficient of zⁿ in (Σ_k E[Y^k] z^k/k!)^t, with E[Y^k] = exp(k(k-1)/2σ²)."""
    n = np.arange(_HIGHEST + 1, dtype=np.float64)
    series = n * (n - 1) / (2 * multiplier**2) - gammaln(n + 1)
    power, left = np.append(0.0, np.full(_HIGHEST, -math.inf)), batches
    while left:
        if left & 1:
            power = _product(power, series)
        left >>= 1
        series = _product(series, series) if left else series
    moments: Array = power + gammaln(n + 1) - n * math.log(batches)
    return moments


def _product(one: Array, other: Array) -> Array:
    """The product of two power series, by the logarithms of their coefficients."""
    return np.array([float(logsumexp(one[: i + 1] + other[i::-1])) for i in range(len(one))])


def _log_negative_moments(batches: int, multiplier: float) -> Array:
    """log E[R^(-p)] = log of t^p/Γ(p) ∫ λ^(p-1) L(λ)^t dλ for p = 1, 2, ..., L the Laplace transform of Y.

    Both integrals are over all numbers after a change of variable, of smooth functions that vanish at both ends: there
    the trapezoidal rule is exact to rounding.
    """
    shift, powers = 1 / multiplier, np.arange(1, _HIGHEST)
    x = np.arange(-13.0 - shift * _HIGHEST, 13.0, 0.05)
    log_density = -(x**2) / 2 + math.log(0.05 / math.sqrt(2 * math.pi))
    log_y = shift * x - shift**2 / 2
    furthest = 12.0 + shift**2 * _HIGHEST + 8 * shift
    log_rates = np.arange(-math.log(batches) - 45.0, math.log(_HIGHEST) + furthest, 0.02)
    log_transform = np.concatenate(
        [
            logsumexp(log_density - np.exp(np.minimum(part[:, None] + log_y, 700.0)), axis=1)
            for part in np.array_split(log_rates, 16)
        ]
    )
    whole = np.array([float(logsumexp(p * log_rates + batches * log_transform)) for p in powers]) + math.log(0.02)
    moments: Array = whole + powers * math.log(batches) - gammaln(powers)
    return moments
