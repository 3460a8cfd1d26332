"""Bayesian correction of a released gradient, coordinate by coordinate.

Algorithm 3 of Nasr, Shokri and Houmansadr: "Generalizable Deep Learning with Differential Privacy: Using Gradient
Compression and De-noising" (related: arXiv:2007.11524).

A coordinate y of the released average is x plus normal noise of standard deviation s. There are three hypotheses about
x: down (x < -ν), stop (|x| ≤ ν), up (x > ν). The likelihood of each is the noise's density integrated over its
interval: Φ(-(y+ν)/s), Φ((ν-y)/s) - Φ(-(ν+y)/s), Φ((y-ν)/s). Their probabilities are these times their priors,
normalised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

from assay._util.lazy import torch
from assay.errors import ConfigError
from assay.mechanisms.types import Grads

if TYPE_CHECKING:
    from torch import Tensor

Priors = tuple[float, float, float]
"""Probabilities of down, stop and up."""

_EQUAL: Priors = (1 / 3, 1 / 3, 1 / 3)
_LEAST_GIVEN = 1e-9  # keeps products of a prior and a likelihood within the range of float32
_LEAST_LEARNT = 1e-4  # a hypothesis that was rare can become likely again
_RATE = 0.5  # plain expectation-maximisation has 1, but one release of a small model says little about proportions
_NEGLIGIBLE = 1e-18  # relative to ν; such noise moves a threshold by less than rounding does
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


@dataclass(kw_only=True)
class Bayes:
    """Replaces every coordinate by -ν, 0 or +ν, or by a value between them. It sees released values only.

    Learning priors fits y = ν·k + noise with k ∈ {-1, 0, 1} by expectation-maximisation: one moving-average step per
    release, after that release was corrected. The interval likelihoods above cannot serve for it. Two of them belong
    to unbounded intervals, so they are not densities of y, and under heavy noise `stop` would vanish whatever the
    data. If gradients do take those three values, the proportions converge to the true ones, slowly where s is far
    above ν.

    Attributes:
        nu: ν, on the scale of the averaged gradient.
        emitted: the value that stands for ν in the output; ν itself if None.
        emit: "map" gives the value of the most probable hypothesis, and 0 where none is more probable than both
            others (Algorithm 3 to the letter). "mean" gives ν·(P(up) - P(down)), the posterior mean.
        priors: "equal", three numbers down/stop/up such as "0.2/0.6/0.2", or "learnt" from earlier releases.

    Raises:
        ConfigError: a setting is none of these.
    """

    nu: float = 0.01
    emitted: float | None = None
    emit: str = "map"
    priors: str = "equal"

    name: ClassVar[str] = "bayes"
    needs_white: ClassVar[bool] = True
    keeps_white: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.nu < math.inf:
            raise ConfigError("bayes nu", self.nu, "a finite number above 0")
        if self.emitted is not None and not 0 < self.emitted < math.inf:
            raise ConfigError("bayes emitted", self.emitted, "a finite number above 0")
        if self.emit not in ("map", "mean"):
            raise ConfigError("bayes emit", self.emit, "map or mean")
        self._priors = _EQUAL if self.priors in ("equal", "learnt") else _given(self.priors)

    def __call__(self, grads: Grads, noise_std: float) -> Grads:
        """The corrected gradients. Learnt priors are then updated from the uncorrected ones."""
        noiseless = noise_std <= _NEGLIGIBLE * self.nu
        if self.emit == "map" or noiseless:
            below, above = thresholds(self.nu, noise_std, self._priors)
            corrected = {name: _decided(v, self._size, below, above) for name, v in grads.items()}
        else:
            corrected = {name: _mean(v, self.nu, noise_std, self._priors, self._size) for name, v in grads.items()}
        if self.priors == "learnt" and not noiseless:  # without noise the priors do not matter
            self._learn(grads, noise_std)
        return corrected

    @property
    def _size(self) -> float:
        return self.nu if self.emitted is None else self.emitted

    def _learn(self, grads: Grads, noise_std: float) -> None:
        """π ← π + rate · (mean responsibilities under π - π), with a floor for each prior."""
        count = sum(v.numel() for v in grads.values())
        sums = [_responsibilities(_wide(v), self.nu, noise_std, self._priors) for v in grads.values()]
        down, up = (math.fsum(float(pair[i]) for pair in sums) / max(count, 1) for i in (0, 1))
        if count == 0 or not math.isfinite(down + up):
            return
        seen = (down, 1 - down - up, up)
        moved = [max(p + _RATE * (r - p), _LEAST_LEARNT) for p, r in zip(self._priors, seen, strict=True)]
        total = math.fsum(moved)
        self._priors = (moved[0] / total, moved[1] / total, moved[2] / total)

    def state(self) -> dict[str, Any]:
        """The current priors: down, stop, up."""
        return {"priors": list(self._priors)}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the priors."""
        down, stop, up = (float(p) for p in state["priors"])
        self._priors = (down, stop, up)


@lru_cache(maxsize=64)
def thresholds(nu: float, noise_std: float, priors: Priors) -> tuple[float, float]:
    """(t₁, t₂) such that Algorithm 3 emits -ν exactly where y < t₁, +ν exactly where y > t₂, and 0 elsewhere.

    The ratio of the probabilities of any two hypotheses is monotone in y, because normal noise has monotone likelihood
    ratios. So "up beats down" and "up beats stop" each hold above one point, and likewise for "down" below one. If
    `stop` never wins, t₁ = t₂. Without noise y itself decides: t = ±ν.
    """
    down, stop, up = priors
    if noise_std <= _NEGLIGIBLE * nu:
        return -nu, nu
    a = nu / noise_std
    even = noise_std * _up_equals_down(a, math.log(up / down))
    below = -(nu + noise_std * _side_equals_stop(a, down / stop))
    above = nu + noise_std * _side_equals_stop(a, up / stop)
    return min(even, below), max(even, above)


def _up_equals_down(a: float, log_ratio: float) -> float:
    """The u = y/s at which log(π_up Φ(u-a)) = log(π_down Φ(-u-a)).

    Φ(x) = e^(-x²/2) erfcx(-x/√2)/2 turns the difference of two huge logarithms into 2au plus a small one.
    """
    if log_ratio == 0:
        return 0.0

    def lead(u: float) -> float:
        ratio = float(np.log(erfcx((a - u) / math.sqrt(2))) - np.log(erfcx((a + u) / math.sqrt(2))))
        return 2 * a * u + ratio + log_ratio

    return _root(lead)


def _side_equals_stop(a: float, ratio: float) -> float:
    """The z = (y-ν)/s at which π_up Φ(z) = π_stop (Φ(z+2a) - Φ(z)); `ratio` is π_up/π_stop.

    Equivalently log Φ(z+2a) - log Φ(z) = log(1 + ratio), whose left side falls from ∞ to 0. For a narrow interval we
    integrate (log Φ)' over it, which loses no digits to cancellation.
    """
    target = math.log(math.log1p(ratio))

    def lead(z: float) -> float:
        if a < 0.5:
            slope = math.sqrt(2 / math.pi) / erfcx(-(z + a * (1 + _NODES)) / math.sqrt(2))
            rise = a * float(_WEIGHTS @ slope)
        else:
            rise = float(log_ndtr(z + 2 * a) - log_ndtr(z))
        return target - math.log(max(rise, 5e-324))

    return _root(lead)


def _root(rising: Callable[[float], float]) -> float:
    """The zero of a rising function, wherever on the line it lies."""
    sign = 1.0 if rising(0.0) < 0 else -1.0
    near, far = 0.0, sign
    while sign * rising(far) < 0:
        near, far = far, 2 * far
    return float(brentq(rising, near, far, xtol=1e-300, rtol=4 * np.finfo(float).eps, maxiter=1000))


def _given(text: str) -> Priors:
    """`0.2/0.6/0.2` as numbers."""
    accepted = (
        f"equal, learnt, or down/stop/up as in 0.2/0.6/0.2: three numbers, each at least {_LEAST_GIVEN}, that sum to 1"
    )
    try:
        down, stop, up = (float(number) for number in text.split("/"))
    except ValueError:
        raise ConfigError("bayes priors", text, accepted) from None
    if not (min(down, stop, up) >= _LEAST_GIVEN and abs(down + stop + up - 1) < 1e-6):
        raise ConfigError("bayes priors", text, accepted)
    return down, stop, up


def _wide(y: Tensor) -> Tensor:
    """Half-precision numbers in single precision, others as they are."""
    return y if y.dtype in (torch.float32, torch.float64) else y.float()


def _decided(y: Tensor, size: float, below: float, above: float) -> Tensor:
    """-size where y < below, size where y > above, 0 elsewhere."""
    wide = _wide(y)
    # Comparisons that write numbers directly are several times faster than selecting by booleans.
    up = torch.gt(wide, _rounded(above, wide.dtype, -math.inf), out=torch.empty_like(wide))
    down = torch.lt(wide, _rounded(below, wide.dtype, math.inf), out=torch.empty_like(wide))
    return up.sub_(down).mul_(size).to(y.dtype)


def _rounded(value: float, dtype: torch.dtype, towards: float) -> float:
    """The nearest number of `dtype` on that side: a comparison with it decides as one with `value` does."""
    if dtype == torch.float64:
        return value
    near = np.float32(value)
    if float(near) != value and (float(near) > value) == (towards < value):
        near = np.nextafter(near, np.float32(towards))
    return float(near)


def _mean(y: Tensor, nu: float, noise_std: float, priors: Priors, size: float) -> Tensor:
    """size·(P(up) - P(down)), with the likelihoods as 2Φ(x) = erfc(-x/√2)."""
    scale = 1 / (math.sqrt(2) * noise_std)
    u, a = _wide(y) * scale, nu * scale
    up = torch.erfc(a - u)
    down = torch.erfc(a + u)
    # 2Φ((ν-|y|)/s) - 2Φ(-(ν+|y|)/s): this form never subtracts numbers close to 1 from 1.
    stop = u.abs_().sub_(a).erfc_().sub_(torch.minimum(up, down))
    up, down = up.mul_(priors[2]), down.mul_(priors[0])
    total = stop.mul_(priors[1]).add_(up).add_(down)
    mean: Tensor = up.sub_(down).div_(total).mul_(size)
    return mean.to(y.dtype)


def _responsibilities(y: Tensor, nu: float, noise_std: float, priors: Priors) -> tuple[Tensor, Tensor]:
    """Σ over coordinates of P(-ν | y) and P(+ν | y), if y is -ν, 0 or +ν plus noise."""
    u, a = y * (1 / noise_std), nu / noise_std
    down, up = (
        torch.exp((u * slope).add_(math.log(p / priors[1]) - 0.5 * a**2).clamp_(max=80.0))  # e^80 is finite in float32
        for slope, p in ((-a, priors[0]), (a, priors[2]))
    )
    total = (down + up).add_(1.0)
    return down.div_(total).sum(), up.div_(total).sum()


DENOISER = Bayes
