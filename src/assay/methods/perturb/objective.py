"""The cross-entropy as a quadratic with noisy coefficients (AFRRS, Eq. 19-22; the functional mechanism).

Output unit c has the score s_c = h W_cᵀ, where h is the last hidden layer in [0, 1]. Its loss
f(s) = y log(1 + e^-s) + (1 - y) log(1 + e^s) is expanded at 0 to λ⁰ + λ¹s + λ²s² with λ⁰ = log 2, λ¹ = ½ - y, λ² = ⅛.
Summed over a batch this is a quadratic in W with coefficients φ¹ = Σ λ¹h and φ² = Σ λ²hhᵀ. φ⁰ has no gradient and is
never released. There are two ways to protect the others:

- In every step (`assay.mechanisms.objective.NoisyCoefficients`, the paper's): Laplace noise of scale Δ_F/ε3 on each
  coefficient of the batch's sum. The paper writes (1/|L|) Lap on each of |L| records; read as one draw per batch,
  Theorem 3 holds for one step. But every step is a separate release on its sample: T subsampled Laplace releases, where
  the paper counts one. And that holds for the *coefficients* alone, which are all that the last layer's gradient needs.
  The gradient of the layers below is λ¹W + 2λ²(hWᵀ)W for each record's h. It contains the labels and no noise. Training
  through it, as the paper does, has no ε: see `BELOW_IS_NOT_PRIVATE`.
- Once per record (`LabelNoise`): Laplace noise on λ¹ = ½ - y, kept. Labels are paid for once. With noisy inputs
  (`assay.methods.perturb.inputs`) all training is post-processing, in every layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from dp_accounting.dp_event import DpEvent

from assay._util.lazy import torch
from assay.accounting.epsilon import Adjacency
from assay.errors import UnsupportedModelError, check_above_zero
from assay.methods.perturb.inputs import local_event

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.randomness.streams import Stream

LAMBDA0, LAMBDA2 = math.log(2), 1 / 8

BELOW_IS_NOT_PRIVATE = (
    "the noise on the coefficients of the objective has no part in the gradients of the layers below the last, which "
    "hold the labels as they are: no finite ε holds for the labels as published"
)


def label_coefficients(labels: Tensor, classes: int) -> Tensor:
    """λ¹ = ½ - y for each record and output unit, [B, m] in float64."""
    return 0.5 - torch.nn.functional.one_hot(labels, classes).double()


def quadratic_loss(scores: Tensor, first: Tensor) -> Tensor:
    """Eq. 20: Σ_c λ⁰ + λ¹s + λ²s² for each record, from scores [B, m] and their λ¹ [B, m], noisy or not."""
    return (LAMBDA0 + first.to(scores) * scores + LAMBDA2 * scores.square()).sum(1)


def objective_sensitivity(classes: int, hidden: int) -> float:
    """Lemma 3: Δ_F = m(|h| + ¼|h|²), for the exchange of one record for another."""
    return classes * (hidden + hidden**2 / 4)


@dataclass(frozen=True, kw_only=True)
class LabelNoise:
    """Laplace noise on ½ - y of every output unit, drawn once per record.

    Another label moves two of the coefficients by 1 each, so ε = 2/scale, whatever the number of classes and steps.

    Attributes:
        scale: the scale of the noise.

    Raises:
        ConfigError: the scale is not above 0.

    >>> LabelNoise(scale=4.0).epsilon
    0.5
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

    @property
    def epsilon(self) -> float:
        """The local ε of a record's label."""
        return 2 / self.scale

    def event(self, adjacency: Adjacency) -> DpEvent:
        """What the noisy labels, and everything computed from them, cost each record."""
        return local_event(self.epsilon, adjacency)

    def coefficients(self, labels: Tensor, classes: int, stream: Stream) -> Tensor:
        """Noisy λ¹ [N, m] in float32, which must replace the labels: a second draw would cost ε a second time."""
        plain = label_coefficients(labels.cpu(), classes)
        noise = stream.laplace(plain.shape, dtype=torch.float64, device="cpu")
        return (plain + self.scale * noise).float()


def split_last(model: nn.Module) -> tuple[nn.Sequential, nn.Linear]:
    """The layers up to the last hidden one, and the last layer: a Linear without bias, as in Eq. 19.

    Both share the model's parameters.

    Raises:
        UnsupportedModelError: the model does not end in such a layer.
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
