"""Integers on the wire: symmetric integer noise, and sums modulo 2^k as secure aggregation makes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from assay.errors import ConfigError
from assay.randomness.streams import Stream

Whole = NDArray[np.int64]

_BITS = {8: np.uint8, 16: np.uint16, 32: np.uint32}


def discrete_gaussian(std: float, size: int, stream: Stream) -> Whole:
    """Independent draws with P(x) ∝ exp(-x²/2σ²) on the whole numbers, to within 2⁻⁵³.

    The distribution is that of Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", 2020
    (arXiv:2004.00010).
    """
    return _draw(_gaussian_tail(std), size, stream)


def centred_binomial(trials: int, size: int, stream: Stream) -> Whole:
    """Independent draws of Bin(N, ½) - N/2, N even, to within 2⁻⁵³."""
    return _draw(_binomial_tail(trials), size, stream)


def bits_for(largest: float) -> int:
    """The fewest of 8, 16 and 32 bits whose residues tell apart whole numbers from -largest to largest."""
    for bits in _BITS:
        if largest < 2 ** (bits - 1):
            return bits
    raise ConfigError("per_round", largest, "fewer clients or less noise: their sum must fit into 32 bits")


def packed(values: Whole, bits: int) -> NDArray[np.unsignedinteger]:
    """The residues modulo 2^bits."""
    residues: NDArray[np.unsignedinteger] = (values & (2**bits - 1)).astype(_BITS[bits])
    return residues


def summed(parts: Sequence[NDArray[np.unsignedinteger]], bits: int) -> Whole:
    """The sum modulo 2^bits, read as a number from -2^(bits-1) to 2^(bits-1) - 1."""
    modulus = 2**bits
    total = np.zeros(len(parts[0]), dtype=np.int64)
    for part in parts:
        total = (total + part.astype(np.int64)) % modulus
    return np.where(total >= modulus // 2, total - modulus, total)


@functools.lru_cache(maxsize=8)
def _gaussian_tail(std: float) -> NDArray[np.float64]:
    """P(|x| ≥ m) for m = 1, 2, ...; summed from the far end, so that small probabilities keep their digits."""
    size = np.arange(0, math.ceil(12 * std) + 2, dtype=np.float64)
    weight = np.exp(-0.5 * (size / std) ** 2)
    weight[1:] *= 2
    tail = np.cumsum(weight[::-1])[::-1]
    return np.asarray(tail[1:] / tail[0])


@functools.lru_cache(maxsize=8)
def _binomial_tail(trials: int) -> NDArray[np.float64]:
    size = np.arange(1, min(trials // 2, math.ceil(6 * math.sqrt(trials)) + 1) + 1)
    return np.asarray(2 * binom.sf(trials // 2 + size - 1, trials, 0.5))


def _draw(tail: NDArray[np.float64], size: int, stream: Stream) -> Whole:
    # P(|x| ≥ m) = P(u ≤ tail[m]) for u uniform in (0, 1]: the magnitude is the number of tails that u does not exceed
    uniform = 1 - stream.uniform(size).numpy()
    magnitude = np.searchsorted(-tail, -uniform, side="right").astype(np.int64)
    sign = np.where(stream.uniform(size).numpy() < 0.5, -1, 1)
    return magnitude * sign
