"""Calibration: the least noise, or the most steps or records, that a privacy budget allows.

The functions know nothing about accounting: they take the cost as a function of what is sought. Each call of it
computes a verified ε and takes tens of milliseconds, so they call it rarely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from assay.errors import ConfigError

LEAST_NOISE, MOST_NOISE = 1e-2, 1e6
_GROWTH = 4
_SAME = 1 + 1e-12


def smallest_noise(cost: Callable[[float], float], target: float, *, tolerance: float = 0.001) -> float:
    """A noise multiplier σ with cost(σ) in [(1 - tolerance) target, target].

    Where the cost jumps over this interval (δ suddenly covers everything), it is the least σ within the target.

    Args:
        cost: an ε that falls as σ grows; it may be infinite or zero at the ends.
        target: the largest ε.
        tolerance: how far below the target ε may be.

    Raises:
        ConfigError: the target is not a finite number above 0, or no σ from 0.01 to 10^6 reaches it.
    """
    _check(target)
    over = under = _Tried(1.0, cost(1.0))
    while over.cost <= target:
        if over.at <= LEAST_NOISE:
            raise ConfigError(
                "epsilon", target, f"at most {over.cost:.4g}, which a noise multiplier of {over.at:g} costs"
            )
        at = max(over.at / _GROWTH, LEAST_NOISE)
        over, under = _Tried(at, cost(at)), over
    while under.cost > target:
        if under.at >= MOST_NOISE:
            raise ConfigError(
                "epsilon", target, f"at least {under.cost:.4g}, which a noise multiplier of {under.at:g} costs"
            )
        at = min(under.at * _GROWTH, MOST_NOISE)
        over, under = under, _Tried(at, cost(at))
    least = (1 - tolerance) * target
    return _narrowed(
        cost,
        target,
        over,
        under,
        aim=(1 - tolerance / 2) * target,
        choose=lambda _over, _under, guess: guess,
        done=lambda over, under: under.cost >= least or under.at <= over.at * _SAME,
    )


def most_steps(cost: Callable[[int], float], target: float, *, limit: int = 10**8) -> int:
    """The largest whole number n ≤ limit with cost(n) ≤ target; 0 if there is none.

    Args:
        cost: an ε that grows with n, such as the number of steps or the size of a batch.
        target: the largest ε.
        limit: the largest n.

    Raises:
        ConfigError: the target is not a finite number above 0.

    >>> most_steps(lambda n: 0.5 * n, 3.2)
    6
    """
    _check(target)
    if limit < 1:
        return 0
    under, over = _Tried(0, 0.0), _Tried(1, cost(1))
    while over.cost <= target and over.at < limit:
        at = min(int(over.at) * _GROWTH, limit)
        under, over = over, _Tried(at, cost(at))
    if over.cost <= target:
        return int(over.at)
    if under.at == 0:
        return 0
    most = _narrowed(
        lambda n: cost(int(n)),
        target,
        over,
        under,
        aim=target,
        choose=lambda over, under, guess: min(max(round(guess), under.at + 1), over.at - 1),
        done=lambda over, under: over.at - under.at <= 1,
    )
    return int(most)


@dataclass(frozen=True, slots=True)
class _Tried:
    at: float
    cost: float

    def height(self, aim: float) -> float:
        """How far the logarithm of the cost lies above that of the aim."""
        return math.log(self.cost / aim) if 0 < self.cost < math.inf else math.copysign(math.inf, self.cost - aim)


def _narrowed(
    cost: Callable[[float], float],
    target: float,
    over: _Tried,
    under: _Tried,
    *,
    aim: float,
    choose: Callable[[_Tried, _Tried, float], float],
    done: Callable[[_Tried, _Tried], bool],
) -> float:
    """Move `over` (above the target) and `under` (within it) together until done; return `under.at`.

    The cost is close to a power of the argument, so the search works on the logarithms of both. The next argument is
    that of inverse quadratic interpolation through the last three points, or of the line through the two ends where
    the parabola leaves them. After a guess that did not halve the distance to the aim comes a bisection. So a cost that
    is not close to a power, or that jumps, takes at most about twice as many calls as bisection alone.
    """
    third: _Tried | None = None
    nearest = min(abs(over.height(aim)), abs(under.height(aim)))
    bisect = False
    while not done(over, under):
        share = 0.5 if bisect else _interpolated(over, under, third, aim)
        guess = math.exp(math.log(over.at) + share * math.log(under.at / over.at))
        tried = _Tried(at := choose(over, under, guess), cost(at))
        height = abs(tried.height(aim))
        bisect = not bisect and height > nearest / 2
        nearest = min(nearest, height)
        if tried.cost > target:
            over, third = tried, over
        else:
            under, third = tried, under
    return under.at


def _interpolated(over: _Tried, under: _Tried, third: _Tried | None, aim: float) -> float:
    """Where the cost meets the aim, as a share of the way from `over` to `under`; 0.5 where the points do not tell."""
    above, below = over.height(aim), under.height(aim)
    if not above > 0 > below or not math.isfinite(above - below):
        return 0.5
    line = above / (above - below)
    height = math.inf if third is None else third.height(aim)
    if third is None or not math.isfinite(height) or height in (above, below):
        return line
    at = math.log(third.at / over.at) / math.log(under.at / over.at)
    curve = at * above * below / ((height - above) * (height - below))
    curve += above * height / ((below - above) * (below - height))
    return curve if 0 < curve < 1 else line


def _check(target: float) -> None:
    if not 0 < target < math.inf:
        raise ConfigError("epsilon", target, "a finite number above 0")
