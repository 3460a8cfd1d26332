"""Whole numbers with exactly the distribution of a rounded normal number.

`rounded_normal` gives round(Z) for a real number Z with density exp(-z²/2s²)/(s√(2π)). The numbers are exact, up to
one cut that is stated below. No floating-point number stands for Z anywhere, so no rounding can leave traces (Mironov
2012, "On significance of the least significant bits for differential privacy", doi:10.1145/2382196.2382264; Jin et al.
2022, "Are we there yet? Timing and floating-point attacks on differential privacy systems", arXiv:2112.05307).

How. |Z| is drawn by rejection from a staircase. Stair j covers [jW, (j+1)W), W a power of two between s/128 and s/64,
and is a_j = exp(-(jW)²/2s²) high.

1. A stair is chosen with probability a_j/Σa, by comparing a uniform number U with the sums of the a_j.
2. A place t = jW + y is chosen uniformly on the stair: the bits of y are random bits. Its whole part and the first
   bit behind the point give round(t), and no arithmetic is involved.
3. It is accepted if another uniform number V is below exp(-y(y + 2jW)/2s²), the density at t over the height of the
   stair. Else all begins again.
4. A random bit is the sign.

This is rejection sampling of the half-normal density, since the staircase is nowhere below it. What remains is to
decide U < p and V < p for real numbers p. U, V and y are infinite strings of random bits of which only the first are
drawn. A decision is made when it is the same for all continuations of the strings and all values of p within a proven
bound on the error of its computation; else more bits are drawn, and p is computed more precisely:

- nearly always in float64, by additions, multiplications and divisions only, whose errors IEEE 754 bounds (no libm
  function is called): p is bounded by 1 - x ≤ exp(-x), and where that does not decide by partial sums of the
  alternating series of exp(-x);
- else with `decimal`, whose exponential is correctly rounded, at a precision that doubles until the decision is made.

The one cut: stairs end at 40 s. All that lies beyond has a probability below 2 exp(-800) < 2⁻¹¹⁵², which is the total
variation distance of one number from the distribution stated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from assay._util.lazy import torch
from assay.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

LEAST_SCALE, LARGEST_SCALE = 64.0, 2.0**45
"""The range of s: stairs are at least 1 wide, and sums with the noise stay far below 2⁵³."""

_STAIRS = 64  # per standard deviation, at least
_CUT = 40  # standard deviations
_AT_ONCE = 1 << 16  # numbers: what a core's cache holds
_BUCKET_BITS, _V_BITS, _Y_BITS = 16, 48, 63
_FIRST_BITS = 160  # precision at which stairs are compared first
_MARGIN = 2.0**-44  # more than ten float64 operations on numbers below 1 lose


@runtime_checkable
class Words(Protocol):
    """A stream that gives its random bits."""

    def words(self, n: int) -> Tensor:
        """n independent uniform words of 64 bits, int64 on the CPU."""
        ...


def rounded_normal(n: int, scale: float, stream: Words) -> Tensor:
    """n independent numbers round(Z), Z normal with standard deviation `scale`; int64 on the CPU.

    Args:
        n: How many.
        scale: The standard deviation, taken as the exact value of this float64 number.
        stream: Where the bits come from. Exactness is relative to its bits being independent and uniform.

    Returns:
        A tensor of n whole numbers, each within 40 standard deviations.

    Raises:
        ConfigError: The scale is outside `LEAST_SCALE` to `LARGEST_SCALE`.
    """
    if not LEAST_SCALE <= scale <= LARGEST_SCALE:
        raise ConfigError("scale", scale, f"a number from {LEAST_SCALE:g} to {LARGEST_SCALE:g}")
    stairs = _stairs(scale)
    out = np.empty(n, dtype=np.int64)
    for start in range(0, n, _AT_ONCE):
        part = out[start : start + _AT_ONCE]
        left = stairs.draw(part, stream)
        while len(left):
            again = np.empty(len(left), dtype=np.int64)
            rejected = stairs.draw(again, stream)
            part[left] = again
            left = left[rejected]
    return torch.from_numpy(out)


@functools.lru_cache(maxsize=16)
def _stairs(scale: float) -> _Stairs:
    return _Stairs(scale)


@dataclass
class _Draw:
    """A draw that float64 could not decide: the first bits of U, y/W and V, each as (value, number of bits)."""

    u: tuple[int, int]
    y: tuple[int, int]
    v: tuple[int, int]
    more: Iterator[int]

    def longer(self, known: tuple[int, int], least: int) -> tuple[int, int]:
        """The same number with at least this many bits."""
        value, bits = known
        while bits < least:
            value, bits = (value << 64) | next(self.more), bits + 64
        return value, bits


class _Stairs:
    """The staircase over a half-normal density, and how to draw from it."""

    def __init__(self, scale: float) -> None:
        self._shift = math.frexp(scale / _STAIRS)[1] - 1  # W = 2^shift, the largest power of two within scale/64
        self._half_square = Fraction(2**self._shift) ** 2 / (2 * Fraction(scale) ** 2)  # W²/2s²
        self._count = math.ceil(_CUT * scale / 2**self._shift)
        self._h = float(self._half_square)
        floors = self._floors()
        self._thresholds: NDArray[np.uint64] = np.array(floors, dtype=np.uint64)
        self._buckets = _buckets(floors)

    def draw(self, out: NDArray[np.int64], stream: Words) -> NDArray[np.intp]:
        """Fill `out`. Returns the places whose draw was rejected, which must be filled again."""
        n = len(out)
        first, second = (_unsigned(stream.words(n)) for _ in range(2))
        stair = self._buckets[first >> np.uint64(64 - _BUCKET_BITS)]
        y = second & np.uint64(2**_Y_BITS - 1)
        v = first & np.uint64(2**_V_BITS - 1)
        # the largest that y/W and V may be: what is accepted here is accepted whatever their further bits are
        x = self._exponent(stair, (y.astype(np.float64) + 1) * 2.0**-_Y_BITS)
        surely = (v.astype(np.float64) + 1) * 2.0**-_V_BITS + x <= 1 - _MARGIN
        places = np.flatnonzero(~surely | (stair < 0))
        accepted = np.ones(len(places), dtype=bool)
        if len(places):
            stair[places], accepted = self._settle(stair[places], first[places], y[places], v[places], stream)
        shift = np.int64(self._shift)
        whole = ((y >> np.uint64(_Y_BITS - 1 - self._shift)).astype(np.int64) + 1) >> np.int64(1)
        np.add(stair.astype(np.int64) << shift, whole, out=out)
        np.negative(out, out=out, where=second >> np.uint64(63) != 0)
        return places[~accepted]

    def _exponent(self, stair: NDArray[np.int32], part: NDArray[np.float64]) -> NDArray[np.float64]:
        """y(y + 2jW)/2s² for y = part · W, by products and sums. The relative error is 2⁻⁴⁹, the value at most 0.65."""
        exponent: NDArray[np.float64] = (part + 2.0 * stair) * part * self._h
        return exponent

    def _settle(
        self,
        stair: NDArray[np.int32],
        first: NDArray[np.uint64],
        y: NDArray[np.uint64],
        v: NDArray[np.uint64],
        stream: Words,
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Stair and acceptance of the few draws that the quick test leaves open."""
        stair, n = stair.copy(), len(stair)
        further = _unsigned(stream.words(n))
        open_u = stair < 0
        u = (first & np.uint64(2**64 - 2**_V_BITS)) | (further >> np.uint64(_BUCKET_BITS))
        found = np.searchsorted(self._thresholds, u, side="left")
        equal = self._thresholds[np.minimum(found, len(self._thresholds) - 1)] == u
        stair[open_u] = found[open_u]
        low = self._exponent(stair, y.astype(np.float64) * 2.0**-_Y_BITS)
        high = self._exponent(stair, (y.astype(np.float64) + 1) * 2.0**-_Y_BITS)
        # partial sums of exp(-x) for x ≤ 1: those that end with a minus are below it, the others above
        below = 1 - high + high**2 / 2 - high**3 / 6 + high**4 / 24 - high**5 / 120 - _MARGIN
        above = 1 - low + low**2 / 2 - low**3 / 6 + low**4 / 24 + _MARGIN
        accepted = (v.astype(np.float64) + 1) * 2.0**-_V_BITS <= below
        decided = accepted | (v.astype(np.float64) * 2.0**-_V_BITS >= above)
        for i in np.flatnonzero(~decided | (open_u & equal)).tolist():
            draw = _Draw(
                u=(int(u[i]), 64),
                y=(int(y[i]), _Y_BITS),
                v=(int(v[i]), _V_BITS),
                more=(int(w) for w in iter(lambda: _unsigned(stream.words(1))[0], None)),
            )
            if open_u[i]:
                stair[i] = self._stair_of(draw)
            accepted[i] = self._accepts(int(stair[i]), draw)
        return stair, accepted

    def _stair_of(self, draw: _Draw) -> int:
        """The stair of U, exactly."""
        precision = _FIRST_BITS
        while True:
            sums = self._sums(precision)
            error = 2 * len(sums)  # each term is too small by less than 2
            value, bits = draw.u
            # how many T_j are ≤ U: with the least U and the largest T_j that are possible, then the other way round
            least = _count(sums, error, Fraction(value, 1 << bits), sums[-1] - error)
            most = _count(sums, -error, Fraction(value + 1, 1 << bits), sums[-1] + error)
            if least == most:
                return min(least, len(sums) - 1)
            precision *= 2
            draw.u = draw.longer(draw.u, precision)

    def _accepts(self, stair: int, draw: _Draw) -> bool:
        """Whether V is below the density at y over the height of the stair, exactly."""
        precision = _FIRST_BITS
        while True:
            y, y_bits = draw.y
            low, high = (Fraction(end, 1 << y_bits) for end in (y, y + 1))
            least = _exponential(self._half_square * high * (high + 2 * stair), precision)
            most = _exponential(self._half_square * low * (low + 2 * stair), precision) + 2
            v, v_bits = draw.v
            if (v + 1) << precision <= least << v_bits:
                return True
            if v << precision >= most << v_bits:
                return False
            precision *= 2
            draw.y, draw.v = draw.longer(draw.y, precision), draw.longer(draw.v, precision)

    def _sums(self, precision: int) -> list[int]:
        """a_0 + … + a_j in units of 2^-precision, each term too small by less than 2."""
        sums, total = [], 0
        for j in range(self._count):
            total += _exponential(self._half_square * j * j, precision)
            sums.append(total)
        return sums

    def _floors(self) -> list[int]:
        """⌊2⁶⁴ T_j⌋ for all stairs but the last, T_j being the probability of stairs up to j."""
        sums = self._sums(_FIRST_BITS)
        error = 2 * len(sums)
        floors = [(s << 64) // (sums[-1] + error) for s in sums[:-1]]
        if floors != [((s + error) << 64) // sums[-1] if s + error < sums[-1] else 2**64 - 1 for s in sums[:-1]]:
            raise ArithmeticError("the sums of the stairs are not known to 64 bits")  # a chance of 2⁻⁷⁰
        return floors


def _count(sums: list[int], error: int, point: Fraction, total: int) -> int:
    """How many of the sums, off by `error`, over the total are at most `point`."""
    target = point * total - error
    low, high = 0, len(sums)
    while low < high:
        middle = (low + high) // 2
        if sums[middle] <= target:
            low = middle + 1
        else:
            high = middle
    return low


def _exponential(x: Fraction, precision: int) -> int:
    """⌊2^precision · exp(-x)⌋, or one less: `decimal` rounds the quotient and its exponential correctly."""
    if 10 * x >= 7 * precision:  # below 1: log 2 < 0.7
        return 0
    digits = precision * 31 // 100 + 30
    context = Context(prec=digits, Emin=-(10**6), Emax=10**6)
    power = context.exp(-context.divide(Decimal(x.numerator), Decimal(x.denominator)))
    scaled = context.multiply(power, Decimal(1 << precision))
    lowered = context.subtract(scaled, context.multiply(scaled, Decimal((0, (1,), 8 - digits))))
    return max(0, int(lowered.to_integral_value(rounding=ROUND_FLOOR)))


def _buckets(floors: list[int]) -> NDArray[np.int32]:
    """The stair of every U whose first bits are these; -1 where a sum lies between the least and the largest such U."""
    thresholds = np.array(floors, dtype=np.uint64)
    starts = np.arange(1 << _BUCKET_BITS, dtype=np.uint64) << np.uint64(64 - _BUCKET_BITS)
    ends = starts | np.uint64(2 ** (64 - _BUCKET_BITS) - 1)
    before, after = np.searchsorted(thresholds, starts, side="left"), np.searchsorted(thresholds, ends, side="right")
    return np.where(before == after, before, -1).astype(np.int32)


def _unsigned(words: Tensor) -> NDArray[np.uint64]:
    unsigned: NDArray[np.uint64] = words.numpy().view(np.uint64)
    return unsigned
