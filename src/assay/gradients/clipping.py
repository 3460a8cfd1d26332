"""Clipping rules: how much of each record's gradient enters the sum, decided from norms alone.

Every rule keeps the promise of `assay.mechanisms.types.ClipRule`: the scaled gradient of one record has l2 norm at most `l2`. A
scaled norm can pass the bound by a few units in the last place of the arithmetic; the factors are lowered by that much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.errors import ConfigError, check_above_zero
from assay.gradients.arithmetic import constant

_LEAST = 1e-15  # an adaptive bound stays between this and its inverse, far from 0 and ∞ in float32
_ROUNDING_UNITS = 16  # of the arithmetic's epsilon: more than a quotient and a product lose together


_SHRINK = {dtype: 1.0 - _ROUNDING_UNITS * torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}


_TINY = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}


def _exact(weights: Tensor) -> Tensor:
    """Zero instead of a weight too small to be held with full precision, or no number (0/0 for a vanishing bound)."""
    return torch.threshold_(weights, _TINY[weights.dtype], 0.0)


_LARGEST_BOUND = 1e30  # its noise is a float32 number still

# The spacing of numbers below the smallest normal one, times the largest number, is 2^-22 of 1 in float32 and less in
# float64: for bounds from here on a weight that lost its last digits there moves a record by less than the factors are lowered.
_NO_SMALL_WEIGHTS = 0.25


def _at_most(bound: float, norms: Tensor) -> Tensor:
    """bound / max(norm, bound), a hair below 1 where nothing is clipped."""
    shrunk = constant(bound * _SHRINK[norms.dtype], norms.dtype, norms.device)
    weights = torch.div(shrunk, norms.clamp(bound))
    return weights if bound >= _NO_SMALL_WEIGHTS else _exact(weights)


def _check_bound(bound: float) -> None:
    check_above_zero("clip", bound)
    if bound > _LARGEST_BOUND:
        raise ConfigError("clip", bound, f"a number above 0 and at most {_LARGEST_BOUND:g}")


@dataclass(frozen=True, kw_only=True)
class Flat:
    """g · min(1, C/‖g‖) over all parameters together (Abadi et al. 2016)."""

    bound: float = 1.0

    def __post_init__(self) -> None:
        _check_bound(self.bound)

    @property
    def l2(self) -> float:
        """C."""
        return self.bound

    def groups(self, layers: list[str]) -> list[int]:
        """One group."""
        return [0] * len(layers)

    def weights(self, norms: Tensor) -> Tensor:
        """min(1, C/‖g‖)."""
        return _at_most(self.bound, norms)

    def __str__(self) -> str:
        return f"flat:{self.bound!r}"


@dataclass(frozen=True, kw_only=True)
class PerLayer:
    """Each of L layers clipped at C/√L, so that the whole is bounded by C = √(Σ C_l²)."""

    bound: float = 1.0

    def __post_init__(self) -> None:
        _check_bound(self.bound)

    @property
    def l2(self) -> float:
        """C, over all layers together."""
        return self.bound

    def groups(self, layers: list[str]) -> list[int]:
        """A group a layer."""
        return list(range(len(layers)))

    def weights(self, norms: Tensor) -> Tensor:
        """min(1, C_l/‖g_l‖) for each layer."""
        return _at_most(self.bound / math.sqrt(norms.shape[1]), norms)

    def __str__(self) -> str:
        return f"per-layer:{self.bound!r}"


@dataclass(frozen=True, kw_only=True)
class Automatic:
    """C · g/(‖g‖ + γ): every record is normalised, no threshold to choose (Bu et al. 2022, automatic clipping)."""

    bound: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        _check_bound(self.bound)
        check_above_zero("clip gamma", self.gamma)

    @property
    def l2(self) -> float:
        """C."""
        return self.bound

    def groups(self, layers: list[str]) -> list[int]:
        """One group."""
        return [0] * len(layers)

    def weights(self, norms: Tensor) -> Tensor:
        """C/(‖g‖ + γ)."""
        return _exact((norms + self.gamma).reciprocal_().mul_(self.bound * _SHRINK[norms.dtype]))

    def __str__(self) -> str:
        return f"auto:{self.bound!r}:gamma={self.gamma!r}"


@dataclass(kw_only=True)
class AdaptiveQuantile:
    """A bound that follows a quantile of the norms (Andrew et al. 2021, "Differentially private learning with adaptive
    clipping").

    Each step also releases how many records lay below the bound: Σ (1[‖g‖ ≤ C] - ½), which one record moves by ½. That
    count is a side query of the step (`assay.mechanisms.types.SideQuery`): it is noised, and takes `share` of the step's privacy.
    The bound moves by C ← C · exp(-rate · (fraction - quantile)), a function of released values only.
    """

    bound: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.01

    def __post_init__(self) -> None:
        _check_bound(self.bound)
        check_above_zero("clip rate", self.rate)
        for name in ("quantile", "share"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ConfigError(f"clip {name}", value, "a number between 0 and 1, both excluded")
        self._start = self.bound

    @property
    def l2(self) -> float:
        """The bound in force."""
        return self.bound

    @property
    def sensitivity(self) -> float:
        """What one record moves the count by."""
        return 0.5

    def groups(self, layers: list[str]) -> list[int]:
        """One group."""
        return [0] * len(layers)

    def weights(self, norms: Tensor) -> Tensor:
        """min(1, C/‖g‖) at the bound in force."""
        return _at_most(self.bound, norms)

    def measure(self, losses: Tensor, norms: Tensor) -> Tensor:  # noqa: ARG002
        """Σ (1[‖g‖ ≤ C] - ½)."""
        return ((norms[:, 0] <= self.bound).float() - 0.5).sum()  # exact: halves, far below 2²³

    def receive(self, noisy: float, expected_size: float) -> None:
        """Move the bound by the released count; one step moves it by at most a factor e^rate."""
        fraction = min(1.0, max(0.0, noisy / expected_size + 0.5))
        moved = self.bound * math.exp(-self.rate * (fraction - self.quantile))
        self.bound = min(max(moved, _LEAST), 1 / _LEAST)

    def state(self) -> dict[str, Any]:
        """The bound in force."""
        return {"bound": self.bound}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up the bound."""
        _check_bound(state["bound"])
        self.bound = float(state["bound"])

    def __str__(self) -> str:
        return f"adaptive:{self._start!r}:quantile={self.quantile!r}:rate={self.rate!r}:share={self.share!r}"


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """Nothing is clipped: the gradients are said to be within G, and nobody makes sure. No finite ε follows from that.

    For published algorithms that take a Lipschitz constant for granted; noise is relative to G.
    """

    bound: float = 1.0

    def __post_init__(self) -> None:
        _check_bound(self.bound)

    @property
    def l2(self) -> float:
        """∞: no bound holds."""
        return math.inf

    def groups(self, layers: list[str]) -> list[int]:
        """One group."""
        return [0] * len(layers)

    def weights(self, norms: Tensor) -> Tensor:
        """1 for every record."""
        return torch.ones_like(norms)

    def __str__(self) -> str:
        return f"assumed:{self.bound!r}"


Rule = Flat | PerLayer | Automatic | AdaptiveQuantile | Assumed
_KINDS: dict[str, type[Rule]] = {
    "flat": Flat,
    "per-layer": PerLayer,
    "auto": Automatic,
    "adaptive": AdaptiveQuantile,
    "assumed": Assumed,
}


def parse(text: str) -> Rule:
    """`flat:1.0`, `per-layer:1.0`, `auto:1.0:gamma=0.01`, `adaptive:0.5:quantile=0.5`; a bare number is flat clipping."""
    accepted = "a number, or KIND:BOUND[:name=value...] with KIND one of " + ", ".join(_KINDS)
    head, *rest = text.split(":")
    try:
        if head not in _KINDS:
            if rest:
                raise ConfigError("clip", text, accepted)
            return Flat(bound=float(head))
        values = {"bound": float(rest[0])} if rest and "=" not in rest[0] else {}
        for part in rest[len(values) :]:
            name, _, value = part.partition("=")
            if name in values:
                raise ConfigError("clip", text, f"{name} given once")
            values[name] = float(value)
        return _KINDS[head](**values)
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError("clip", text, accepted) from error
