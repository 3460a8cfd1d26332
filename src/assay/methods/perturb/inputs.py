"""Noise on the inputs themselves, drawn once a record and kept (afrrs.txt, Algorithm 2, Eq. 16-18).

Feature j of every record, in [0, 1], gets Laplace noise of a scale b_j of its own. Whatever is computed from the noisy
features afterwards, over any number of steps, is post-processing. This is *local* privacy of a record's features: two records
differ by at most 1 in each feature, so the likelihood of a noisy record changes by at most e^(Σ_j 1/b_j).

The paper's scales are b_j = Δ_f/(|L| ε_k), Δ_f = 2|h_0|d, and its claim is ε2: the noise divided by the batch size |L| is taken
for noise on the batch's sum, although every record has its own. As Σ_j ε_k(j) = d ε2, what is true is Σ_j 1/b_j = |L| ε2/(2|h_0|).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from dp_accounting.dp_event import DpEvent, LaplaceDpEvent, NonPrivateDpEvent, NoOpDpEvent

from assay._util.lazy import torch
from assay.accounting.epsilon import Adjacency
from assay.errors import ConfigError, DataError, check_above_zero
from assay.methods.perturb.regions import Regions

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness, Stream

OUTSIDE = ("refuse", "clamp")
_BLOCK = (
    1024  # records a stream: memory stays small, and the noise of a record does not depend on how much is drawn at once
)


def local_event(epsilon: float, adjacency: Adjacency) -> DpEvent:
    """What a release of each record by itself costs, if exchanging a record changes its likelihood by at most e^ε.

    The number of records is public. Under add-or-remove-one, an absent record is one of zeros, released with noise like any
    other; that is an exchange as well. The accountant doubles the shift of a replaced record, because elsewhere the bound is
    on what one record adds to a sum; here ε holds for the exchange itself, and the multiplier takes the doubling back.
    """
    if epsilon == 0:
        return NoOpDpEvent()
    if math.isinf(epsilon):
        return NonPrivateDpEvent()
    return LaplaceDpEvent((2 if adjacency is Adjacency.REPLACE_ONE else 1) / epsilon)


def input_sensitivity(first_units: int, features: int) -> float:
    """Lemma 2: Δ_f = 2|h_0|d, |h_0| being the number of neurons of the first layer."""
    return 2.0 * first_units * features


def check_outside(outside: str) -> None:
    """Refuse another treatment of features outside [0, 1] than there is."""
    if outside not in OUTSIDE:
        raise ConfigError("outside", outside, "one of " + ", ".join(OUTSIDE))


def check_published(*, epsilon: float, batch_size: float, first_units: int) -> None:
    """Refuse settings for which the published scales are not defined."""
    check_above_zero("epsilon2", epsilon)
    check_above_zero("batch_size", batch_size)
    if first_units < 1:
        raise ConfigError("first_units", first_units, "the number of neurons of the first layer, 1 or above")


@dataclass(frozen=True, kw_only=True, eq=False)
class InputNoise:
    """Laplace noise of scale `scales[j]` on feature j; `scales` has the shape of one record.

    A feature of infinite scale (a region without relevance has no budget) is not released at all: it is 0 in every record.
    `outside` says what happens to features outside [0, 1], for which no ε would hold: they are refused, or clamped.
    `bias_scale` is that of Eq. 18, for the first layer's bias.
    """

    scales: Tensor
    outside: str = "refuse"
    bias_scale: float | None = None

    def __post_init__(self) -> None:
        check_outside(self.outside)
        if not bool((self.scales > 0).all()):
            raise ConfigError("scales", self.scales, "numbers above 0, infinity allowed")

    @classmethod
    def published(
        cls, regions: Regions, *, epsilon: float, batch_size: float, first_units: int, outside: str = "refuse"
    ) -> Self:
        """Algorithm 2 at ε2 = `epsilon`: (1/|L|) Lap(Δ_f/ε_k) on the inputs, (1/|L|) Lap(Δ_f/ε2) on the bias."""
        check_published(epsilon=epsilon, batch_size=batch_size, first_units=first_units)
        unit = input_sensitivity(first_units, regions.features) / batch_size
        scales = unit / regions.of_features(regions.epsilons(epsilon))
        return cls(scales=scales, outside=outside, bias_scale=unit / epsilon)

    @classmethod
    def for_epsilon(cls, regions: Regions, *, epsilon: float, outside: str = "refuse") -> Self:
        """The scales, in the regions' proportions, at which the features of a record cost ε in truth: Σ 1/b_j = ε."""
        check_above_zero("epsilon2", epsilon)
        return cls(scales=regions.features / regions.of_features(regions.epsilons(epsilon)), outside=outside)

    @property
    def epsilon(self) -> float:
        """Σ_j 1/b_j of the scales really used: local ε of all features of a record together."""
        return math.fsum((1 / self.scales.double()).flatten().tolist())

    def event(self, adjacency: Adjacency) -> DpEvent:
        """What the noisy features of all records, and all that is made of them, cost each record."""
        return local_event(self.epsilon, adjacency)

    def perturbed(self, inputs: Tensor, randomness: Randomness) -> Tensor:
        """The noisy records, to be kept in place of the records: a second draw would cost ε a second time."""
        if inputs.shape[1:] != self.scales.shape:
            raise ConfigError(
                "inputs", tuple(inputs.shape[1:]), f"records of shape {tuple(self.scales.shape)}, like the scales"
            )
        inputs = self.within(inputs)
        scales = self.scales.to(device="cpu", dtype=torch.float64)
        kept = scales.isfinite()
        noisy = torch.empty_like(inputs)
        for block, start in enumerate(range(0, len(inputs), _BLOCK)):
            part = inputs[start : start + _BLOCK]
            noise = randomness.stream("input noise", block).laplace(part.shape, dtype=torch.float64, device="cpu")
            value = part.cpu().double() + noise.mul_(torch.where(kept, scales, 0.0))
            noisy[start : start + _BLOCK] = torch.where(kept, value, 0.0)
        return noisy

    def perturbed_bias(self, bias: Tensor, stream: Stream) -> Tensor:
        """Eq. 18, one draw. A bias is no data: its noise hides nothing, and is here because the algorithm has it."""
        if self.bias_scale is None:
            raise ConfigError("bias_scale", None, "a number above 0: only the published scales come with one")
        noise = stream.laplace(bias.shape, dtype=torch.float64, device="cpu") * self.bias_scale
        return bias.detach() + noise.to(bias)

    def within(self, inputs: Tensor) -> Tensor:
        """The features within [0, 1]; where they are clamped, not-a-number counts as 0."""
        if self.outside == "clamp":
            return inputs.nan_to_num(nan=0.0).clamp(0.0, 1.0)
        bad = ~((inputs >= 0) & (inputs <= 1))
        if bool(bad.any()):
            record = int(bad.flatten(1).any(1).nonzero()[0])
            raise DataError(
                f"record {record} has a feature outside [0, 1], for which the noise on inputs gives no privacy: "
                "scale the data to [0, 1], or declare outside = clamp"
            )
        return inputs
