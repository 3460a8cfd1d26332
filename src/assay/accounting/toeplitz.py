"""Banded strategies that are optimised for the length of a run.

A strategy c_0 … c_(b-1) gives the noise w of the steps by Σ_j c_j w_(t-j) = z_t, z being independent. The optimizer
sums up what it gets: after step i its parameters hold Σ_k a_(i-k) w_k, where a_k = 1 + β + … + β^k for momentum β. That
noise has variance Σ_(k≤i) B_k² for a(x) = B(x) c(x). `error` is its mean over the steps of the run, with c scaled to
norm 1.

Nothing here concerns ε: it rests on the number of bands and on the norm alone (`assay.mechanisms.banded`). A poor
optimum costs accuracy, never privacy.

Reference: R. McKenna: "Scaling up the Banded Matrix Factorization Mechanism for Differentially Private ML", 2024,
arXiv:2405.15913; jax_privacy's `optimize_banded_toeplitz` minimises the same error, without momentum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.signal import fftconvolve, lfilter

Array = NDArray[np.float64]
_STEPS = 250


def error(strategy: Sequence[float], length: int, momentum: float = 0.0) -> float:
    """The mean variance of the optimizer's sum over the steps of a run, for a strategy scaled to norm 1.

    Independent noise of 4 steps has 1, 2, 3 and 4 times the variance of a step:

    >>> error([1.0], 4)
    2.5
    """
    return _error(np.asarray(strategy, dtype=np.float64), _workload(length, momentum))[0]


def optimised(start: Sequence[float], length: int, momentum: float = 0.0) -> tuple[float, ...]:
    """A strategy of as many bands as `start` whose error is no larger; not scaled.

    Args:
        start: Where the search begins.
        length: The number of steps of the run.
        momentum: β.
    """
    first, workload = np.asarray(start, dtype=np.float64), _workload(length, momentum)
    found = minimize(
        lambda c: _error(c, workload), first / first[0], jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}
    ).x
    usable = bool(np.isfinite(found).all() and found[0] > 0 and _error(found, workload)[0] < _error(first, workload)[0])
    return tuple((found if usable else first).tolist())


def _workload(length: int, momentum: float) -> Array:
    """a_0 … a_(n-1)."""
    return np.cumsum(momentum ** np.arange(length, dtype=np.float64))


def _error(strategy: Array, workload: Array) -> tuple[float, Array]:
    """‖c‖² Σ_k (1 - k/n) B_k², and its gradient."""
    n, bands = len(workload), len(strategy)
    weight = 1 - np.arange(n) / n
    with np.errstate(all="ignore"):
        decoded = lfilter([1.0], strategy, workload)
        total, norm = float(weight @ decoded**2), float(strategy @ strategy)
        # dB = -x^j B/c: the derivative by c_j
        again = lfilter([1.0], strategy, decoded)
        moved = fftconvolve(weight * decoded, again[::-1])[n - 1 : n - 1 + bands]
    if not (np.isfinite(total) and np.isfinite(moved).all()):
        return 1e300, np.zeros(bands)
    slope = np.zeros(bands)
    slope[: len(moved)] = -2 * norm * moved
    return norm * total, slope + 2 * total * strategy
