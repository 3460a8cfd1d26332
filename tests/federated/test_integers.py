"""Integer noise has the distribution it says, and sums modulo 2^k are sums. False-alarm rates at most 1e-6 a test."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2

from assay.errors import ConfigError
from assay.federated.integers import bits_for, centred_binomial, discrete_gaussian, packed, summed
from assay.randomness.streams import Seeded

N = 200_000


def check(draws, values, probabilities):
    """χ² of the counts of these values, everything else in one cell."""
    counts = np.array([np.sum(draws == v) for v in values], dtype=float)
    expected = N * np.array(probabilities)
    rest = N - expected.sum()
    statistic = np.sum((counts - expected) ** 2 / expected) + (N - counts.sum() - rest) ** 2 / max(rest, 1e-9)
    assert statistic < chi2.ppf(1 - 1e-6, len(values))


@pytest.mark.parametrize("std", [0.7, 3.0, 20.0])
def test_discrete_gaussian(std):
    draws = discrete_gaussian(std, N, Seeded(1).stream("test", 0))
    support = np.arange(-math.ceil(40 * std), math.ceil(40 * std) + 1)
    weights = np.exp(-0.5 * (support / std) ** 2)
    weights /= weights.sum()
    kept = weights * N > 20
    check(draws, support[kept], weights[kept])


@pytest.mark.parametrize("trials", [2, 10, 1000])
def test_centred_binomial(trials):
    draws = centred_binomial(trials, N, Seeded(2).stream("test", 0))
    support = np.arange(-trials // 2, trials // 2 + 1)
    weights = binom.pmf(support + trials // 2, trials, 0.5)
    kept = weights * N > 20
    check(draws, support[kept], weights[kept])
    assert abs(draws).max() <= trials // 2


def test_the_variance_of_large_noise():
    draws = discrete_gaussian(5000.0, N, Seeded(3).stream("test", 0))
    assert abs(draws.std() / 5000 - 1) < 5 / math.sqrt(2 * N)
    assert abs(draws.mean()) < 5 * 5000 / math.sqrt(N)


@given(st.lists(st.lists(st.integers(-3000, 3000), min_size=4, max_size=4), min_size=1, max_size=10))
def test_sums_come_back(rows):
    whole = np.array(rows, dtype=np.int64)
    for bits in (16, 32):
        assert np.array_equal(summed([packed(row, bits) for row in whole], bits), whole.sum(0))


def test_sums_wrap_around_as_residues_do():
    parts = [packed(np.array([100]), 8)] * 2
    assert summed(parts, 8).tolist() == [200 - 256]


def test_bits():
    assert [bits_for(x) for x in (10, 127.9, 128, 40_000, 2**30)] == [8, 8, 16, 32, 32]
    with pytest.raises(ConfigError):
        bits_for(2**31)
