"""A chain that does what another does and keeps what passes through it, so that audits can look into a step.

step = PrivateStep(model, plan)
step.chain = watched = observed(step.chain)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from dp_accounting.dp_event import DpEvent
from torch import Tensor

from assay.mechanisms.types import Bounded, Grads, Private
from assay.methods.chain import Chain, Form
from assay.randomness.streams import Stream

C = TypeVar("C", bound=Chain)


@dataclass(frozen=True)
class Release:
    """What one release was of: the sum before the noise (sensitive), the bound declared with it, and its event."""

    total: Mapping[str, Tensor]
    l2: float
    event: DpEvent


@dataclass(frozen=True, kw_only=True)
class Observed(Chain):
    """Keeps every release and every denominator."""

    inner: Chain
    releases: list[Release] = field(default_factory=list)
    denominators: list[float] = field(default_factory=list)

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """Like the observed chain, with the noise of this step: under a falling schedule each step has another."""
        total = {name: value.detach().clone() for name, value in grads.total.items()}
        private = replace(self.inner, noise=self.noise).release(grads, stream)
        self.releases.append(Release(total, grads.l2, private.event))
        return private

    def clipped_sum(self, *args: object, **kwargs: object) -> tuple[dict[str, Tensor], Tensor]:
        """Like the observed chain."""
        return self.inner.clipped_sum(*args, **kwargs)  # type: ignore[arg-type]

    def finish(self, released: Private, expected_size: float, forms: Mapping[str, Form] | None = None) -> Grads:
        """Like the observed chain."""
        self.denominators.append(expected_size)
        return self.inner.finish(released, expected_size, forms)


def observed(chain: Chain) -> Observed:
    """The chain, with its releases kept."""
    return turned_into(Observed, chain, inner=chain)


def turned_into(kind: type[C], chain: Chain, **more: Any) -> C:
    """The chain's fields in an object of another class."""
    return kind(**{f.name: getattr(chain, f.name) for f in fields(Chain)}, **more)
