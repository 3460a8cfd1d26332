"""Columns of a schema from noisy counts. All of it is post-processing: it sees released numbers and no row.

**The release.** Every column that is to be estimated is counted on the public grid of `cells`. A row is a unit vector
per column, and the rows of one person together have weight 1. So one record, or one person with all of their rows,
moves the vector of all d columns by at most √d in Euclidean norm (the triangle inequality, column by column).
`ROUNDS` Gaussian releases are made one after the other; each has noise of standard deviation z·√(ROUNDS·d) in every
cell, d being the number of columns that it counts. Each is a Gaussian mechanism of multiplier z·√ROUNDS, whatever the
one before it showed. Together they cost one Gaussian release of multiplier z (`assay.accounting.events.joint`; Dong,
Roth and Su, "Gaussian Differential Privacy", 2022, arXiv:1905.02383, Corollary 2).

*Round 1* releases the counts of all cells, and so what a column holds and between which bounds. *Round 2* counts the
levels of those columns that hold texts of a few words.

**Levels that nobody listed.** The cells of round 2 are all texts of at most 64 bytes, a finite set that no row decides.
All of them get noise, and those above a threshold are released. Nearly all cells are empty. Such a cell passes the
threshold t(s)·σ of its text s with probability Q(t(s)), which is chosen to be `_FALSE` / N(s), N(s) being the number of
texts as long as s in its alphabet. So the number of empty cells of a length that pass is Binomial(N, _FALSE / N), and
which they are is uniform. This is drawn directly, as Poisson(_FALSE): the two laws differ by at most _FALSE / N in
total variation (Le Cam 1960), which is below the rounding of floating-point noise. That is how Cormode, Procopiuc,
Srivastava and Tran, "Differentially Private Publication of Sparse Data", 2012, arXiv:1103.0825, publish sparse tables.
The release is therefore a plain Gaussian mechanism on a public domain.

No δ is spent on it, unlike in stable histograms (Korolova, Kenthapadi, Mishra and Ntoulas, "Releasing Search Queries
and Clicks Privately", 2009; Wilkins, Kifer, Zhang and Karrer, "Exact Privacy Analysis of the Gaussian Sparse Histogram
Mechanism", 2024, arXiv:2202.01100). Those need a lower threshold. But a release with such a δ has no Rényi divergence,
and the filter behind a budget (`assay.accounting.filters`) could not count it.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri_exp

from assay.data.tables import cells
from assay.data.tables.columns import Category, Column, Date, Flag, Number, Skip, Text

Floats = npt.NDArray[np.float64]

ROUNDS = 2
STANDS_OUT = 5.0
"""How many standard deviations of the noise a count must have: about 3 in 10 million counts of nothing do."""
_WIDTHS = (1, 2, 4, 8, 16, 32)  # neighbouring cells that are looked at together
_TAIL = 0.005  # of the weight, cut off on either side
_FALSE = 1e-6  # how many texts of one length and alphabet pass the threshold without a row
_ALPHABETS = {"printable": (tuple(range(32, 127)), math.log(95)), "bytes": (tuple(range(256)), math.log(256))}

NUMBER, CATEGORY, DATE = "number", "category", "date"


def found_in(counts: Floats, noise: float, wanted: str | None = None) -> Column | None:
    """What a column holds, by its noisy counts.

    Args:
        counts: Of all cells, with noise.
        noise: Its standard deviation.
        wanted: The type, where it is declared: number, category or date; None where it is to be found as well.

    Returns:
        The column, `skip` where nothing stands out; None for one whose levels the second round must show.
    """
    numbers, years = counts[: len(cells.NUMBERS)], cells.years_of(counts)
    span, when = _span(numbers, noise), _span(years, noise)
    weights = {
        NUMBER: 0.0 if span is None else float(numbers[span.start : span.stop].sum()),
        DATE: 0.0 if when is None else float(years[when.start : when.stop].sum()),
        CATEGORY: _alone(counts[cells.FEW_WORDS], noise),
        "text": _alone(counts[cells.MANY_WORDS], noise),
    }
    kind = wanted or max(weights, key=lambda one: weights[one])
    if kind == CATEGORY and (wanted or weights[kind] > 0):
        return None
    if weights[kind] <= 0:
        return Skip()
    if kind == DATE:
        assert when is not None
        first, last = cells.YEARS[when.start], cells.YEARS[when.stop - 1]
        return Date(first=datetime.date(first, 1, 1), last=datetime.date(last, 12, 31))
    if kind == "text":
        return Text()
    assert span is not None
    return _bounded(numbers, span, noise, flags=wanted is None)


def _alone(count: float, noise: float) -> float:
    return float(count) if count >= STANDS_OUT * noise else 0.0


def _span(counts: Floats, noise: float) -> range | None:
    """From the first to the last of these cells that stands out of the noise, alone or with its neighbours."""
    alone = counts >= STANDS_OUT * noise
    starts: list[int] = []
    stops: list[int] = []
    for width in _WIDTHS:
        sums = np.convolve(counts, np.ones(width), "valid")
        # a window that only shows a neighbour which stands out by itself would begin too early
        windows = alone if width == 1 else (np.convolve(alone, np.ones(width), "valid") == 0)
        there = np.flatnonzero(windows & (sums >= STANDS_OUT * noise * math.sqrt(width)))
        if len(there):
            starts.append(int(there[0]))
            stops.append(int(there[-1]) + width)
    return range(min(starts), max(stops)) if starts else None


def _bounded(numbers: Floats, span: range, noise: float, *, flags: bool) -> Column:
    """A number between the noisy quantiles of `_TAIL` and 1 - `_TAIL`; yes or no where nothing but 0 and 1 is there."""
    shown = [i for i in span if numbers[i] >= STANDS_OUT * noise]
    if flags and set(shown) == {cells.ZERO, cells.ONE} and span == range(cells.ZERO, cells.ONE + 1):
        return Flag()
    kept = numbers[span.start : span.stop]
    cut = _TAIL * float(kept.sum())
    first = _reached(kept, cut)
    last = len(kept) - 1 - _reached(kept[::-1], cut)
    low, high = cells.NUMBERS[span.start + min(first, last)][0], cells.NUMBERS[span.start + max(first, last)][1]
    return Number(low=low, high=high if high > low else low + 1)


def _reached(counts: Floats, weight: float) -> int:
    """Where the running sum of counts reaches this weight."""
    return int(np.argmax(np.cumsum(counts) >= weight))


@dataclass(frozen=True)
class Levels:
    """Decides which texts of a column are released, from their noisy counts.

    Attributes:
        noise: The standard deviation of the noise.
        uniform: Draws this many numbers from [0, 1) from the run's randomness.
    """

    noise: float
    uniform: Callable[[int], Floats] = field(repr=False)

    def released(self, noisy: Mapping[str, float]) -> tuple[str, ...]:
        """The texts above their thresholds, in alphabetical order, with those that pass by noise alone.

        Args:
            noisy: The noisy count of every text that a row has. Not public: what is returned is.
        """
        passed = {text for text, count in noisy.items() if count >= threshold(text) * self.noise}
        return tuple(sorted(passed | set(self._false())))

    def _false(self) -> Iterator[str]:
        """Texts without a row whose noise alone passes. There are `_FALSE` of each length and alphabet on average."""
        lengths = range(1, cells.LONGEST_LEVEL + 1)
        coins = iter(self.uniform(len(lengths) * len(_ALPHABETS)))
        for symbols, _ in _ALPHABETS.values():
            for length in lengths:
                for _ in range(_poisson(float(next(coins)), _FALSE)):
                    drawn = (self.uniform(length) * len(symbols)).astype(int)
                    yield bytes(symbols[i] for i in drawn).decode("utf-8", "backslashreplace")


def threshold(text: str) -> float:
    """How many standard deviations of noise the count of this text must have: it grows with the number of such texts.

    Example:
        >>> round(threshold("yes"), 1), round(threshold("Married-civ-spouse"), 1)
        (7.0, 13.6)
    """
    written = text.encode()
    _, digits = _ALPHABETS["printable" if all(32 <= byte < 127 for byte in written) else "bytes"]
    return float(-ndtri_exp(math.log(_FALSE) - len(written) * digits))


def _poisson(coin: float, mean: float) -> int:
    """A Poisson number from a uniform one, by inversion."""
    count, mass = 0, math.exp(-mean)
    below = mass
    while coin >= below and mass > 0:
        count += 1
        mass *= mean / count
        below += mass
    return count


def category(levels: tuple[str, ...]) -> Column:
    """A category of these levels; a column of which none is known is left out."""
    return Category(levels=levels) if levels else Skip()
