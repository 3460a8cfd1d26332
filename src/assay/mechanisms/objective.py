"""Gradients that get no noise: those of records that were released before, or of a loss with noisy coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dp_accounting.dp_event import DpEvent, NonPrivateDpEvent, NoOpDpEvent

from assay._util.lazy import torch
from assay.mechanisms.types import Bounded, Grads, Private

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Stream


@dataclass(frozen=True, kw_only=True)
class AlreadyReleased:
    """Adds nothing and costs nothing: for records whose features and labels a stage has released.

    This holds only after such a stage. `PrivateStep` refuses a plan with a stage that its ledger was not charged for.
    """

    @property
    def white(self) -> bool:
        """There is no noise."""
        return False

    def release(self, grads: Bounded, stream: Stream) -> Private:  # noqa: ARG002
        """The sum as it is."""
        event: DpEvent = NoOpDpEvent()
        return Private(grads.total, event, 0.0)


@dataclass(frozen=True, kw_only=True)
class NoisyCoefficients:
    """The gradient of a batch's quadratic loss with Laplace noise of `scale` on its coefficients (AFRRS, Eq. 21).

    Noise n¹ and n² on the coefficients φ¹ and φ² adds n¹ + (n² + n²ᵀ)W to the gradient of the last weight W. All other
    gradients get no noise, so no ε holds. With `once` the first draw serves for all steps: then noise cancels between
    steps as well. The draw is part of the state, because nothing here is private.
    """

    scale: float
    once: bool = False
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    _drawn: list[Tensor] = field(default_factory=list, repr=False, compare=False)

    @property
    def white(self) -> bool:
        """No: only the last weight gets noise."""
        return False

    def on(self, parameters: Mapping[str, Tensor]) -> NoisyCoefficients:
        """The mechanism for a model with these parameters, whose current values it reads."""
        return replace(self, parameters=parameters)

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """The gradient of the noisy loss. Not private."""
        total: Grads = grads.total
        if self.parameters and total:
            name = list(self.parameters)[-1]
            weight = self.parameters[name].detach().double().flatten(1)
            first, second = self._noise(weight, stream)
            noise = first + torch.einsum("cpq,cq->cp", second + second.mT, weight)
            total = {**total, name: total[name] + (self.scale * noise).to(total[name]).view_as(total[name])}
        return Private(total, NonPrivateDpEvent(), 0.0)

    def _noise(self, weight: Tensor, stream: Stream) -> list[Tensor]:
        """n¹ and n² in units of the scale."""
        if self._drawn:
            return self._drawn
        shapes = (weight.shape, (*weight.shape, weight.shape[1]))
        found = [stream.laplace(shape, dtype=torch.float64, device=weight.device) for shape in shapes]
        if self.once:
            self._drawn.extend(found)
        return found

    def state(self) -> dict[str, Any]:
        """The draw that serves for all steps, if there is one."""
        return {"drawn": [noise.tolist() for noise in self._drawn]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue with that draw."""
        self._drawn[:] = [torch.tensor(noise, dtype=torch.float64) for noise in state["drawn"]]
