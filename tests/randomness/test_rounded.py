"""Rounded normal numbers: their distribution is the exact one, also where float64 cannot decide."""

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats

from assay.errors import ConfigError
from assay.randomness.rounded import LARGEST_SCALE, LEAST_SCALE, Words, rounded_normal
from assay.randomness.streams import Blocks, OsSeeded, Secure, Seeded

FALSE_ALARM = 1e-6


def probabilities(edges, scale):
    """Of the whole numbers between consecutive edges, which are halves; without cancellation in the tails."""
    edges = np.asarray(edges) / scale
    lower, upper = edges[:-1], edges[1:]
    return np.where(lower > 0, special.ndtr(-lower) - special.ndtr(-upper), special.ndtr(upper) - special.ndtr(lower))


@pytest.mark.parametrize("scale", [64.0, 97.3, 127.9])
def test_every_whole_number_has_its_own_probability(scale):
    """Chi-square, all numbers within 4 standard deviations one by one and the rest together."""
    n = 1_000_000
    drawn = rounded_normal(n, scale, Seeded(int(scale)).stream("test", 0)).numpy()
    most = int(4 * scale)
    edges = np.concatenate([[-np.inf], np.arange(-most, most + 2) - 0.5, [np.inf]])
    counts, _ = np.histogram(drawn, edges)
    assert stats.chisquare(counts, n * probabilities(edges, scale)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("scale", [1.1 * 2**20, 3.0 * 2**33, LARGEST_SCALE])
def test_large_scales_by_coarse_bins_and_by_low_bits(scale):
    n = 400_000
    drawn = rounded_normal(n, scale, OsSeeded().stream("test", 0)).numpy()
    edges = np.concatenate([[-np.inf], np.rint(np.linspace(-4, 4, 801) * scale) - 0.5, [np.inf]])
    counts, _ = np.histogram(drawn, edges)
    # three scales and two tests each, of fresh numbers
    assert stats.chisquare(counts, n * probabilities(edges, scale)).pvalue > FALSE_ALARM / 6
    assert stats.chisquare(np.bincount(drawn & 255, minlength=256)).pvalue > FALSE_ALARM / 6


class Script:
    """Words that were written down."""

    def __init__(self, *words: int) -> None:
        self._words = list(words)

    def words(self, n: int) -> torch.Tensor:
        taken, self._words = self._words[:n], self._words[n:]
        assert len(taken) == n
        return torch.tensor([w - 2**64 if w >= 2**63 else w for w in taken], dtype=torch.int64)


ONES = 2**64 - 1


@pytest.mark.parametrize("scale", [64.0, 1.37 * 2**20])
@pytest.mark.parametrize("ones", [65, 200])
def test_the_far_tail_is_reached_exactly(scale, ones):
    """U = 1 - 2^-ones, y = 0, V = 1 - 2⁻⁴⁸: nothing that float64 or 64 bits could decide.

    The number is then the beginning of the stair that U falls on, found here by sums of 400 digits.
    """
    width = 2 ** (int(np.floor(np.log2(scale / 64))))
    more = [((1 << 320) - (1 << (320 - ones + 64)) >> 64 * (4 - i)) & ONES for i in range(5)]
    zeros = [0] * 12
    drawn = rounded_normal(1, scale, Script(ONES, 0, ONES, *more, *zeros))
    with mpmath.workdps(400):
        heights = [
            mpmath.exp(-((mpmath.mpf(j * width) / mpmath.mpf(scale)) ** 2) / 2)
            for j in range(int(np.ceil(40 * scale / width)))
        ]
        target, total, stair = (1 - mpmath.mpf(2) ** -ones) * mpmath.fsum(heights), mpmath.mpf(0), 0
        while total + heights[stair] <= target:
            total += heights[stair]
            stair += 1
    assert int(drawn) == stair * width
    assert stair * width > 9 * scale


def test_a_sign_is_one_bit_and_zero_is_reached_from_both_sides():
    assert int(rounded_normal(1, 64.0, Script(0, 0))) == 0
    assert int(rounded_normal(1, 64.0, Script(0, 2**63))) == 0
    # the upper half of the first stair, which is one unit wide, rounds away from zero
    assert int(rounded_normal(1, 64.0, Script(0, 2**62))) == 1
    assert int(rounded_normal(1, 64.0, Script(0, 2**63 + 2**62))) == -1


@pytest.mark.parametrize("randomness", [Seeded(1), OsSeeded(), Secure()])
def test_all_streams_give_bits(randomness):
    """Each of 64 bits of 100,000 words is set in half of them; binomial, over all bits."""
    streams = [randomness.stream("bits", 0), Blocks(randomness, "bits").at(1)]
    for stream in streams:
        assert isinstance(stream, Words)
        words = stream.words(100_000)
        assert words.dtype == torch.int64
        for bit in range(64):
            count = int(((words >> bit) & 1).sum())
            assert stats.binomtest(count, len(words)).pvalue > FALSE_ALARM / (64 * 6)


def test_the_same_seed_gives_the_same_numbers_and_no_number_is_given_twice():
    once, again = (Blocks(Seeded(3), "noise") for _ in range(2))
    assert torch.equal(rounded_normal(500, 100.0, once.at(4)), rounded_normal(500, 100.0, again.at(4)))
    assert not torch.equal(rounded_normal(500, 1e6, once.at(5)), rounded_normal(500, 1e6, once.at(6)))


@pytest.mark.parametrize("scale", [0.0, 63.9, 2 * LARGEST_SCALE, float("nan"), float("inf")])
def test_scales_out_of_range_are_refused(scale):
    assert LEAST_SCALE == 64
    with pytest.raises(ConfigError, match="scale"):
        rounded_normal(1, scale, Seeded(0).stream("x", 0))
