"""Buffered linear Toeplitz strategies (BLT): noise that all later steps take back, with a few buffers of memory.

The coefficients are c_0 = s and c_i = s Σ_j ω_j θ_j^(i-1), so the noise w of the steps, Σ_j c_j w_(t-j) = z_t for
independent z, is computed with one buffer for each θ_j (`assay.mechanisms.buffered`).

**Claim.** Let c_0 ≥ c_1 ≥ ... ≥ 0, and let a record take part only in steps that are at least b apart. Then m steps
move C g by at most the norm of y, where y_r = Σ_(i ≥ 0, ib ≤ r) c_(r - ib) for r < m.

**Proof.** Let the record take part in steps p_1 < ... < p_k, with contributions g_i of norm at most 1. With C_p for the
columns of C, the square of what it moves is Σ_ij ⟨C_(p_i), C_(p_j)⟩⟨g_i, g_j⟩. No coefficient is below 0, so this is at
most Σ_ij ⟨C_(p_i), C_(p_j)⟩. For i ≤ j the product of columns is Σ_(r < m - p_j) c_r c_(r + p_j - p_i). Steps are at
least b apart: p_j ≥ (j-1)b and p_j - p_i ≥ (j-i)b. Coefficients do not rise, so the sum is largest where both are
equalities. Those are the columns 0, b, 2b, ..., whose sum is y. ∎ (It is Theorem 2 of N. Kalinin, C. Lampert: "Banded
Square Root Matrix Factorization for Differentially Private Model Training", 2024, arXiv:2405.13763, and used for BLT by
H. B. McMahan, Z. Xu, Y. Zhang: "A Hassle-free Algorithm for Private Learning in Practice", 2024, arXiv:2408.08868.)

The scale s is the largest at which the square of that norm is at most ⌈m/b⌉ for every m up to the length of the run.
So after any number of steps the run has cost no more than one Gaussian release for each batch that a record may have
been in, whatever the gradients were chosen in view of (S. Denisov, H. B. McMahan, J. Rush, A. Smith, A. Thakurta:
"Improved Differential Privacy for SGD via Optimal Private Linear Operators on Adaptive Streams", NeurIPS 2022,
arXiv:2202.08312, Theorem 2.1). Beyond that length nothing is proven, and the mechanism stops.

Which θ and ω are best does not concern ε. They minimise the error of `assay.accounting.toeplitz` times the norm above,
as in K. Dvijotham, H. B. McMahan, K. Pillutla, T. Steinke, A. Thakurta: "Efficient and Near-Optimal Noise Generation
for Streaming Differential Privacy", FOCS 2024, arXiv:2404.16706.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

Array = NDArray[np.float64]
_STEPS = 200
_ROUNDING = 1e-9  # more than rounding can take from a norm


@dataclass(frozen=True)
class Buffers:
    """A strategy and the runs for which its norm is proven.

    Attributes:
        decay: θ, each from 0 to below 1.
        weight: ω, none below 0, at most 1 in all: so coefficients do not rise.
        scale: s.
        separation: b.
        length: The number of steps.
    """

    decay: tuple[float, ...]
    weight: tuple[float, ...]
    scale: float
    separation: int
    length: int

    def __post_init__(self) -> None:
        falls = all(0 <= d < 1 for d in self.decay) and all(w >= 0 for w in self.weight) and sum(self.weight) <= 1
        if not (falls and len(self.decay) == len(self.weight) and self.scale > 0):
            raise AssertionError(f"coefficients of this strategy rise, or fall below 0: {self}")
        if _excess(self.coefficients(), self.separation) > 1:
            raise AssertionError(f"a strategy that moves by more than is charged: {self}")

    def coefficients(self) -> Array:
        """c_0 ... c_(length - 1)."""
        return self.scale * _coefficients(np.array(self.decay), np.array(self.weight), self.length)

    def error(self, momentum: float = 0.0) -> float:
        """The mean variance of what the optimizer sums up, for a strategy that moves by at most 1 in the whole run.

        It compares with `assay.accounting.toeplitz.error`, whose strategies have norm 1.
        """
        coefficients = self.coefficients()
        return _mean_variance(coefficients, momentum) * float(_moved(coefficients, self.separation)[-1])


def optimised(buffers: int, length: int, separation: int, momentum: float = 0.0) -> Buffers:
    """The strategy with this many buffers whose error is least, as far as the search finds it.

    Args:
        buffers: How many.
        length: The steps of the run.
        separation: How many steps lie at least between two batches of a record, counting the first.
        momentum: The optimizer's.
    """

    def error(params: Array) -> float:
        coefficients = _coefficients(*_strategy(params), length)
        with np.errstate(all="ignore"):
            value = _mean_variance(coefficients, momentum) * _moved(coefficients, separation)[-1]
        return math.log(value) if 0 < value < math.inf else 1e3

    found = min(
        (
            minimize(error, _start(buffers, reach), method="L-BFGS-B", options={"maxiter": _STEPS})
            for reach in {min(length, separation), length}
        ),
        key=lambda one: float(one.fun),
    )
    decay, weight = _strategy(found.x)
    weight = np.maximum(weight, 0.0) * (1 - _ROUNDING)
    scale = (1 - _ROUNDING) / math.sqrt(_excess(_coefficients(decay, weight, length), separation))
    return Buffers(tuple(decay.tolist()), tuple(weight.tolist()), scale, separation, length)


def _start(buffers: int, reach: int) -> Array:
    """Roots and poles by turns, at equal ratios of their distance from 1: from 1/reach up."""
    places = 1 - np.geomspace(0.5 / reach, 0.9, 2 * buffers)
    ratios = places / np.append(1.0, places[:-1])
    logits: Array = np.log(ratios / (1 - ratios))
    return logits


def _strategy(params: Array) -> tuple[Array, Array]:
    """θ and ω of c(x) = Π (1 - φ_j x)/(1 - θ_j x) for 1 > θ_1 > φ_1 > θ_2 > ... > 0.

    Between poles and roots that alternate every ω is above 0. Their sum is Σ θ_j - φ_j, which is below θ_1.
    """
    falling = np.minimum(np.cumprod(expit(params)), 1 - 1e-12)
    decay, roots = falling[0::2], falling[1::2]
    apart = decay[:, None] - decay + np.eye(len(decay))
    with np.errstate(all="ignore"):
        weight = np.prod(decay[:, None] - roots, axis=1) / np.prod(apart, axis=1)
    return decay, np.nan_to_num(weight, nan=0.0, posinf=0.0, neginf=0.0)


def _coefficients(decay: Array, weight: Array, length: int) -> Array:
    """1 and Σ_j ω_j θ_j^(i-1)."""
    powers = np.exp(np.outer(np.arange(length - 1), np.log(np.maximum(decay, 1e-300))))
    return np.append(1.0, powers @ weight)


def _moved(coefficients: Array, separation: int) -> Array:
    """The square of the norm of y after each number of steps."""
    whole = math.ceil(len(coefficients) / separation)
    rows = np.append(coefficients, np.zeros(whole * separation - len(coefficients))).reshape(whole, separation)
    return np.cumsum(np.cumsum(rows, axis=0).ravel()[: len(coefficients)] ** 2)


def _excess(coefficients: Array, separation: int) -> float:
    """The largest square of the norm over what is charged, over all numbers of steps."""
    charged = 1 + np.arange(len(coefficients)) // separation
    return float(np.max(_moved(coefficients, separation) / charged))


def _mean_variance(coefficients: Array, momentum: float) -> float:
    """The mean over steps i of Σ_(k ≤ i) B_k², for the workload a(x) = B(x) c(x)."""
    length = len(coefficients)
    workload = np.cumsum(momentum ** np.arange(length, dtype=np.float64))
    decoded = _divided(workload, coefficients)
    return float((1 - np.arange(length) / length) @ decoded**2)


def _divided(dividend: Array, divisor: Array) -> Array:
    """The quotient of two power series."""
    inverse = _inverse(divisor)
    size = 2 * len(divisor)
    quotient: Array = np.fft.irfft(np.fft.rfft(dividend, size) * np.fft.rfft(inverse, size), size)[: len(dividend)]
    return quotient


def _inverse(series: Array) -> Array:
    """1 over a power series, by Newton's iteration."""
    inverse = np.array([1 / series[0]])
    while len(inverse) < len(series):
        n = min(2 * len(inverse), len(series))
        size = 4 * n
        left = np.fft.irfft(np.fft.rfft(series[:n], size) * np.fft.rfft(inverse, size), size)[:n]
        left = -left
        left[0] += 2
        inverse = np.fft.irfft(np.fft.rfft(left, size) * np.fft.rfft(inverse, size), size)[:n]
    return inverse
