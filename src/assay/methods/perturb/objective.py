"""The cross-entropy as a quadratic with noisy coefficients (afrrs.txt, Eq. 19-22; the functional mechanism).

For output unit c with score s_c = h W_cᵀ, h the last hidden layer in [0, 1], f(s) = y log(1 + e^-s) + (1 - y) log(1 + e^s) is
expanded at 0 to λ⁰ + λ¹s + λ²s² with λ⁰ = log 2, λ¹ = ½ - y, λ² = ⅛. Summed over a batch that is a quadratic in W with
coefficients φ¹ = Σ λ¹h and φ² = Σ λ²hhᵀ; φ⁰ has no gradient and is never released. Two ways to protect them:

`StepNoise`: one Laplace number of scale Δ_F/ε3 on each coefficient of a batch's sum, anew in every step ((1/|L|) Lap on each of
|L| records, read as one draw a batch: so Theorem 3 is true of one step). Each step is a release of its own, on its sample:
T subsampled Laplace releases, not the one that the paper counts. And that holds for the *coefficients*, which are all that
the last layer's gradient needs. The gradient of the layers below is λ¹W + 2λ²(hWᵀ)W for each record's h: it has the labels in
it and none of the noise. Trained through, as the paper does, there is no ε: see `BELOW_IS_NOT_PRIVATE`.

`LabelNoise`: Laplace noise on λ¹ = ½ - y, once a record, and kept. Labels are paid for once; with noisy inputs
(`assay.methods.perturb.inputs`) all training is post-processing, in every layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from dp_accounting.dp_event import DpEvent, LaplaceDpEvent, NonPrivateDpEvent

from assay._util.lazy import torch
from assay.accounting.epsilon import Adjacency
from assay.errors import UnsupportedModelError, check_above_zero
from assay.methods.perturb.inputs import local_event

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.randomness.streams import Stream

LAMBDA0, LAMBDA2 = math.log(2), 1 / 8

BELOW_IS_NOT_PRIVATE = (
    "the noise on the coefficients of the objective has no part in the gradients of the layers below the last, which hold the "
    "labels as they are: no finite ε holds for the labels as published"
)


def label_coefficients(labels: Tensor, classes: int) -> Tensor:
    """λ¹ = ½ - y for each record and output unit, [B, m] in float64."""
    return 0.5 - torch.nn.functional.one_hot(labels, classes).double()


def quadratic_loss(scores: Tensor, first: Tensor) -> Tensor:
    """Eq. 20: Σ_c λ⁰ + λ¹s + λ²s², one value a record, from scores [B, m] and their λ¹ [B, m] (noisy ones or not)."""
    return (LAMBDA0 + first.to(scores) * scores + LAMBDA2 * scores.square()).sum(1)


def objective_sensitivity(classes: int, hidden: int) -> float:
    """Lemma 3: Δ_F = m(|h| + ¼|h|²), for a record that is exchanged for another."""
    return classes * (hidden + hidden**2 / 4)


def largest_contribution(classes: int, hidden: int) -> float:
    """The most that one record adds to the coefficients, in l1 norm: ½m|h| + ⅛m|h|² = Δ_F/2, reached where all of h is 1."""
    return objective_sensitivity(classes, hidden) / 2


def unit_interval(hidden: Tensor) -> Tensor:
    """The last hidden layer within [0, 1]; not-a-number counts as 0."""
    return hidden.nan_to_num(nan=0.0).clamp(0.0, 1.0)


def coefficients(hidden: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sensitive: φ¹ [m, |h|] and φ² [m, |h|, |h|] of a batch, with h held within [0, 1]."""
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
        """What one step costs on its batch; `trains_below` if layers below the last take gradients from it, too."""
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
        """F̄_L as the paper trains with it, gradients into the layers below included; not private (`BELOW_IS_NOT_PRIVATE`)."""
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


@dataclass(frozen=True, kw_only=True)
class LabelNoise:
    """Laplace noise of scale `scale` on ½ - y of every output unit, drawn once a record.

    Another label moves two of the coefficients by 1 each: ε = 2/scale, whatever the number of classes and steps.
    """

    scale: float

    def __post_init__(self) -> None:
        check_above_zero("scale", self.scale)

    @classmethod
    def published(cls, *, classes: int, hidden: int, batch_size: float, epsilon: float) -> Self:
        """The scale of Eq. 21 at ε3 = `epsilon`, Δ_F/(|L| ε3), on the label coefficient alone."""
        check_above_zero("epsilon3", epsilon)
        check_above_zero("batch_size", batch_size)
        return cls(scale=objective_sensitivity(classes, hidden) / (batch_size * epsilon))

    @classmethod
    def for_epsilon(cls, epsilon: float) -> Self:
        """The scale at which a label costs ε in truth."""
        check_above_zero("epsilon3", epsilon)
        return cls(scale=2 / epsilon)

    @property
    def epsilon(self) -> float:
        """Local ε of a record's label."""
        return 2 / self.scale

    def event(self, adjacency: Adjacency) -> DpEvent:
        """What the noisy labels of all records, and all that is made of them, cost each record."""
        return local_event(self.epsilon, adjacency)

    def coefficients(self, labels: Tensor, classes: int, stream: Stream) -> Tensor:
        """Noisy λ¹ [N, m] in float32, to be kept in place of the labels: a second draw would cost ε a second time."""
        plain = label_coefficients(labels.cpu(), classes)
        noise = stream.laplace(plain.shape, dtype=torch.float64, device="cpu")
        return (plain + self.scale * noise).float()


def split_last(model: nn.Module) -> tuple[nn.Sequential, nn.Linear]:
    """The model as what makes the last hidden layer, and its last layer: a Linear without bias, as in Eq. 19.

    Both share the model's parameters.
    """
    layers = _flat(model)
    last = layers[-1]
    if not isinstance(last, torch.nn.Linear) or last.bias is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not end in a Linear layer without bias, as the expanded objective needs: "
            "a chain of layers (nn.Sequential) such as afrrs-mnist does"
        )
    return torch.nn.Sequential(*layers[:-1]), last


def _flat(module: nn.Module) -> list[nn.Module]:
    if not isinstance(module, torch.nn.Sequential):
        return [module]
    return [layer for child in module for layer in _flat(child)]


def _quadratic(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    return (first * weight).sum() + torch.einsum("cp,cpq,cq->", weight, second, weight)
