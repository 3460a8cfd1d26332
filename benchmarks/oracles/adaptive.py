"""A lower bound on ε of fixed-size batches, by gradients that are chosen in view of earlier releases.

Replace-one, σ relative to what one record contributes. All other records pull one way, and a record that pulls the
other way moves the sum by twice its bound. Before every step an adversary decides which of the two neighbouring data
sets holds such a record in this step: in the other one its counterpart pulls as everybody does. So each step is one of

    P = (1-q)N(0, σ²) + qN(2, σ²) against Q = N(0, σ²),   or the same with P and Q exchanged.

Let V_k(l) be the largest E[(1 - e^(ε - l - L_1 - ··· - L_k))₊] under P over all ways to choose among the two, each in
view of the privacy losses L before it. Then V_0(l) = (1 - e^(ε - l))₊, V_(k+1)(l) = max over the two of E[V_k(l + L)],
and V_T(0) is a δ that the mechanism cannot stay below at ε. V grows with l. So rounding every L down to a grid, and
taking V below the grid for 0 and above it for its value at the end, gives a lower bound on V.

An accountant that composes one of the two pairs with itself stays below this bound: `python -m
benchmarks.oracles.adaptive` prints both.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.special import ndtr

Array = NDArray[np.float64]
_ROUNDING = 1e-14  # more than a convolution of numbers from 0 to 1 adds to any of them


@dataclass(frozen=True)
class _Law:
    """Masses under P of the loss at the multiples `first`, `first` + 1, … of the step of the grid."""

    first: int
    masses: Array


def _laws(rate: float, noise: float, h: float) -> tuple[_Law, _Law]:
    """Both pairs, every loss rounded down."""
    shift, tail = 2 / noise, 9.0
    top = math.log1p(rate * math.expm1(shift * (tail + shift) - shift**2 / 2))
    grid = np.arange(math.floor(math.log1p(-rate) / h), math.ceil(top / h) + 1)
    # the x at which the loss ln(1 - q + q e^(shift x - shift²/2)) is a multiple of h; below its infimum there is none
    inside = np.maximum(np.expm1(grid * h) / rate + 1, 0.0)
    with np.errstate(divide="ignore"):
        x = (np.log(inside) + shift**2 / 2) / shift
    plain, moved = np.diff(ndtr(x)), np.diff(ndtr(x - shift))
    return _Law(int(grid[0]), (1 - rate) * plain + rate * moved), _Law(-int(grid[-1]), plain[::-1])


def delta(rate: float, noise: float, steps: int, eps: float, *, h: float, adaptive: bool) -> float:
    """V_T(0), a lower bound on δ at ε; with the first pair alone where not `adaptive`."""
    laws = _laws(rate, noise, h)[: 2 if adaptive else 1]
    half = math.ceil((2 * eps + 8) / h)
    value = np.maximum(-np.expm1(eps - h * np.arange(-half, half + 1)), 0.0)
    for _ in range(steps):
        value = np.max([_expected(value, law) for law in laws], axis=0)
    return float(value[half])


def _expected(value: Array, law: _Law) -> Array:
    """E[V(l + L)] at each l of the grid."""
    last = law.first + len(law.masses) - 1
    below, above = max(0, -law.first), max(0, last)
    padded = np.concatenate([np.zeros(below), value, np.full(above, value[-1])])
    found: Array = fftconvolve(padded, law.masses[::-1], mode="valid")
    first = below + law.first  # where the window of the lowest l begins
    return np.maximum(found[first : first + len(value)] - _ROUNDING, 0.0)


def epsilon(rate: float, noise: float, steps: int, at: float, *, h: float, adaptive: bool) -> float:
    """An ε at which V_T(0) is above δ, to 0.02 %."""
    low, high = 0.0, 64.0
    while high - low > 2e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta(rate, noise, steps, middle, h=h, adaptive=adaptive) > at else (low, middle)
    return low


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--noise-multiplier", type=float, default=1.5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--grid", type=float, default=2e-4)
    given = parser.parse_args()
    for adaptive, words in ((False, "one pair in all steps"), (True, "chosen step by step")):
        found = epsilon(given.rate, given.noise_multiplier, given.steps, given.delta, h=given.grid, adaptive=adaptive)
        print(f"{words}: ε ≥ {found:.4f}")


if __name__ == "__main__":
    main()
