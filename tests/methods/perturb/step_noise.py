"""The objective of AFRRS with noise on the coefficients of every step, as in the paper (Eq. 19-22).

The product adds this noise to the gradient (`assay.mechanisms.objective.NoisyCoefficients`). Here it is added to the
coefficients themselves, so that tests can compare the two and show what Lemma 3 and Theorem 3 do and do not cover.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from dp_accounting.dp_event import DpEvent, LaplaceDpEvent, NonPrivateDpEvent
from torch import Tensor

from assay.errors import check_above_zero
from assay.methods.perturb.objective import LAMBDA2, label_coefficients, objective_sensitivity, quadratic_loss
from assay.randomness.streams import Stream


def largest_contribution(classes: int, hidden: int) -> float:
    """The most that one record adds to the coefficients, in l1 norm: ½m|h| + ⅛m|h|² = Δ_F/2, where all of h is 1."""
    return objective_sensitivity(classes, hidden) / 2


def unit_interval(hidden: Tensor) -> Tensor:
    """The last hidden layer within [0, 1]; not-a-number counts as 0."""
    return hidden.nan_to_num(nan=0.0).clamp(0.0, 1.0)


def coefficients(hidden: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sensitive: φ¹ [m, |h|] and φ² [m, |h|, |h|] of a batch, with h clamped to [0, 1]."""
    hidden = unit_interval(hidden.detach().double())
    first = label_coefficients(labels, classes).to(hidden.device).T @ hidden
    second = LAMBDA2 * hidden.T @ hidden
    return first, second.expand(classes, *second.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyObjective:
    """Released: the coefficients of a batch's loss and their cost before amplification by sampling."""

    first: Tensor
    second: Tensor
    event: DpEvent

    def loss(self, weight: Tensor) -> Tensor:
        """The noisy quadratic as a function of the last layer's weight [m, |h|], without its constant."""
        return _quadratic(self.first.to(weight), self.second.to(weight), weight)


@dataclass(frozen=True, kw_only=True)
class StepNoise:
    """Laplace noise of scale `scale` on every coefficient of a batch's sum, drawn in every step."""

    scale: float

    def __post_init__(self) -> None:
        check_above_zero("scale", self.scale)

    @classmethod
    def published(cls, *, classes: int, hidden: int, epsilon: float) -> Self:
        """Eq. 21-22 at ε3 = `epsilon`."""
        check_above_zero("epsilon3", epsilon)
        return cls(scale=objective_sensitivity(classes, hidden) / epsilon)

    def event(self, classes: int, hidden: int, *, trains_below: bool) -> DpEvent:
        """What one step costs on its batch; `trains_below` if layers below the last take gradients from it too."""
        if trains_below:
            return NonPrivateDpEvent()
        return LaplaceDpEvent(self.scale / largest_contribution(classes, hidden))

    def release(self, hidden: Tensor, labels: Tensor, classes: int, stream: Stream) -> NoisyObjective:
        """The noisy coefficients of a batch: all that training the last layer needs."""
        first, second = coefficients(hidden, labels, classes)
        noise = self._drawn(first.shape, hidden.device, stream)
        return NoisyObjective(
            first=first + noise[0],
            second=second + noise[1],
            event=self.event(classes, hidden.shape[1], trains_below=False),
        )

    def published_loss(self, hidden: Tensor, labels: Tensor, weight: Tensor, stream: Stream) -> Tensor:
        """F̄_L as the paper trains with it, with gradients into the layers below: not private."""
        within = unit_interval(hidden)
        scores = within @ weight.T
        plain = quadratic_loss(scores, label_coefficients(labels, len(weight)).to(hidden.device)).sum()
        noise = self._drawn(weight.shape, hidden.device, stream)
        return plain + _quadratic(noise[0].to(weight), noise[1].to(weight), weight)

    def _drawn(self, shape: torch.Size, device: torch.device, stream: Stream) -> tuple[Tensor, Tensor]:
        """Noise for φ¹ of this shape and for its φ²."""
        first = stream.laplace(shape, dtype=torch.float64, device=device)
        second = stream.laplace((*shape, shape[1]), dtype=torch.float64, device=device)
        return first * self.scale, second * self.scale


def _quadratic(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    return (first * weight).sum() + torch.einsum("cp,cpq,cq->", weight, second, weight)
