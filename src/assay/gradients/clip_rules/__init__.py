"""Clipping rules: how much of each record's gradient enters the sum, decided from norms alone. Each rule has a file.

Every rule keeps the promise of `ClipRule`: the scaled gradient of one record has l2 norm at most
`l2`. Rounding could raise a scaled norm above the bound by a few units in the last place, so the factors are lowered by
that much (`assay.gradients.arithmetic.at_most`).

The registry finds every file here that defines `RULE`; `assay._util.registry` says how to add one from outside.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from numbers import Real
from typing import TYPE_CHECKING, ClassVar

from assay._util import spec
from assay._util.registry import Registry
from assay.errors import ConfigError, check_above_zero
from assay.mechanisms.types import SideQuery

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_BOUND, _LARGEST_BOUND = 1e-15, 1e30  # squares of norms near it, and its noise, are float32 numbers still


def check_bound(bound: float) -> None:
    """Refuse a bound so small that norms would underflow, or so large that its noise would overflow.

    Raises:
        ConfigError: The bound is out of its range.
    """
    check_above_zero("clip", bound)
    if not _LEAST_BOUND <= bound <= _LARGEST_BOUND:
        raise ConfigError("clip", bound, f"a number of at least {_LEAST_BOUND:g} and at most {_LARGEST_BOUND:g}")


class ClipRule(ABC):
    """Bounds what one record contributes. It sees norms only, so that fast clipping can serve every rule.

    Guarantee: for all non-negative finite `norms`, multiplying record i's gradient in each group l by
    `weights(norms)[i, l]` gives a vector whose l2 norm over all groups is at most `l2`.

    A rule is a dataclass whose fields are its settings, `bound` first. It is chosen by its `name`.
    """

    name: ClassVar[str]
    bound: float

    def __post_init__(self) -> None:
        check_bound(self.bound)

    @property
    @abstractmethod
    def l2(self) -> float:
        """The bound that holds for what `weights` returned last."""

    @abstractmethod
    def weights(self, norms: Tensor) -> Tensor:
        """Factors for norms [B, L], of the same shape, each in [0, ∞)."""

    def groups(self, layers: list[str]) -> list[int]:
        """The clipping group of each layer: all zeros for flat clipping, 0..L-1 for per-layer clipping."""
        return [0] * len(layers)

    @property
    def queries(self) -> tuple[SideQuery, ...]:
        """What the rule releases beside the gradient in every step, such as the count for an adaptive bound."""
        return ()

    @property
    def assumed(self) -> float | None:
        """The bound that the rule takes for granted without clipping; None for a rule that clips."""
        return None

    def settings(self) -> dict[str, float]:
        """The settings that it began with, `bound` first."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def __str__(self) -> str:
        """All its settings, in the form in which records keep them: `auto:1.0:gamma=0.01`."""
        (_, bound), *others = self.settings().items()
        return ":".join([self.name, repr(bound), *(f"{key}={value!r}" for key, value in others)])


RULES: Registry[type[ClipRule]] = Registry(
    "clip",
    of=ClipRule,
    classes=True,
    wanted="a class of clipping rules, derived from assay.gradients.clip_rules.ClipRule",
    package=__name__,
    attribute="RULE",
)


parse: Callable[[str], ClipRule] = functools.partial(spec.parse, "clip", kinds=RULES, bare="flat")
"""The rule of a text such as `flat:1.0` or `auto:1.0,gamma=0.01`; a bare number is flat clipping."""


def rule_of(given: object) -> ClipRule:
    """The rule that somebody gave: a rule itself, its text, or a number, the bound of flat clipping.

    Raises:
        ConfigError: It is none of these, there is no such rule, or a setting is out of its range.

    >>> str(rule_of(1.0)), str(rule_of("per-layer:2"))
    ('flat:1.0', 'per-layer:2.0')
    """
    if isinstance(given, ClipRule):
        return given
    if isinstance(given, str):
        return parse(given)
    if isinstance(given, Real) and not isinstance(given, bool):
        return parse(str(float(given)))
    raise ConfigError("clip", given, "a clipping rule such as Flat(0.5), its text such as auto:0.5, or a number")
