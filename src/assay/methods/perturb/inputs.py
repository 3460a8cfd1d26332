"""Noise on the inputs themselves, drawn once per record and kept (AFRRS, Algorithm 2, Eq. 16-18).

Feature j of every record, in [0, 1], gets Laplace noise of scale b_j. Whatever is computed from the noisy features
afterwards, over any number of steps, is post-processing. This is *local* privacy of a record's features: two records
differ by at most 1 in each feature, so the likelihood of a noisy record changes by at most e^(Σ_j 1/b_j).

The paper's scales are b_j = Δ_f/(|L| ε_k) with Δ_f = 2|h_0|d, and it claims ε2. It divides the noise by the batch size
|L|, as if it were noise on the batch's sum, although every record has separate noise. Since Σ_j ε_k(j) = d ε2, what is
true is Σ_j 1/b_j = |L| ε2/(2|h_0|).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from dp_accounting.dp_event import DpEvent, LaplaceDpEvent, NonPrivateDpEvent, NoOpDpEvent

from assay._util.lazy import torch
from assay.accounting.epsilon import Adjacency
from assay.errors import ConfigError, DataError, check_above_zero, one_of
from assay.methods.perturb.regions import Regions

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness, Stream

OUTSIDE = ("refuse", "clamp")
_BLOCK = 1024  # records per stream: this bounds memory, and fixes which numbers a record gets


def local_event(epsilon: float, adjacency: Adjacency) -> DpEvent:
    """The cost of releasing each record by itself, if exchanging a record changes its likelihood by at most e^ε.

    The number of records is public. Under add-or-remove-one, an absent record is one of zeros, released with noise like
    any other, so that is an exchange too. The accountant doubles the shift of a replaced record, because elsewhere the
    bound is on what one record adds to a sum. Here ε holds for the exchange itself, so the multiplier undoes the
    doubling.
    """
    if epsilon == 0:
        return NoOpDpEvent()
    if math.isinf(epsilon):
        return NonPrivateDpEvent()
    return LaplaceDpEvent((2 if adjacency is Adjacency.REPLACE_ONE else 1) / epsilon)


def input_sensitivity(first_units: int, features: int) -> float:
    """Lemma 2: Δ_f = 2|h_0|d, where |h_0| is the number of neurons of the first layer."""
    return 2.0 * first_units * features


def check_outside(outside: str) -> None:
    """Refuse another treatment of features outside [0, 1] than there is."""
    if outside not in OUTSIDE:
        raise ConfigError("outside", outside, one_of(outside, OUTSIDE))


def check_published(*, epsilon: float, batch_size: float, first_units: int) -> None:
    """Refuse settings for which the published scales are not defined."""
    check_above_zero("epsilon2", epsilon)
    check_above_zero("batch_size", batch_size)
    if first_units < 1:
        raise ConfigError("first_units", first_units, "the number of neurons of the first layer, 1 or above")


@dataclass(frozen=True, kw_only=True, eq=False)
class InputNoise:
    """Laplace noise on the features of every record.

    Attributes:
        scales: the scale for each feature, in the shape of one record. A feature of infinite scale (a region without
            relevance has no budget) is not released at all: it is 0 in every record.
        outside: "refuse" or "clamp" features outside [0, 1], for which no ε would hold.
        bias_scale: the scale of Eq. 18, for the first layer's bias.

    Raises:
        ConfigError: a scale is not above 0, or `outside` is neither.
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
        """Algorithm 2 at ε2 = `epsilon`: (1/|L|) Lap(Δ_f/ε_k) on the inputs, (1/|L|) Lap(Δ_f/ε2) on the bias.

        Raises:
            ConfigError: a number is out of range.
        """
        check_published(epsilon=epsilon, batch_size=batch_size, first_units=first_units)
        unit = input_sensitivity(first_units, regions.features) / batch_size
        scales = unit / regions.of_features(regions.epsilons(epsilon))
        return cls(scales=scales, outside=outside, bias_scale=unit / epsilon)

    @property
    def epsilon(self) -> float:
        """Σ_j 1/b_j of the scales in use: the local ε of all features of a record together."""
        return math.fsum((1 / self.scales.double()).flatten().tolist())

    def event(self, adjacency: Adjacency) -> DpEvent:
        """What the noisy features, and everything computed from them, cost each record."""
        return local_event(self.epsilon, adjacency)

    def perturbed(self, inputs: Tensor, randomness: Randomness) -> Tensor:
        """The noisy records, which must replace the records: a second draw would cost ε a second time.

        Args:
            inputs: the records.
            randomness: the source of the noise; every record has a draw of its own.

        Raises:
            ConfigError: the records do not have the shape of the scales.
            DataError: a feature lies outside [0, 1] and `outside` is "refuse".
        """
        if inputs.shape[1:] != self.scales.shape:
            raise ConfigError(
                "inputs", tuple(inputs.shape[1:]), f"records of shape {tuple(self.scales.shape)}, like the scales"
            )
        inputs = self.within(inputs)
        scales = self.scales.to(device="cpu", dtype=torch.float64)
        kept = scales.isfinite()
        noisy = torch.empty_like(inputs)
        for block, start in enumerate(range(0, len(inputs), _BLOCK)):
            plain = inputs[start : start + _BLOCK]
            noise = randomness.stream("input noise", block).laplace(plain.shape, dtype=torch.float64, device="cpu")
            value = plain.cpu().double() + noise.mul_(torch.where(kept, scales, 0.0))
            noisy[start : start + _BLOCK] = torch.where(kept, value, 0.0)
        return noisy

    def draws(self, count: int, randomness: Randomness) -> Tensor:
        """Noise alone, for records that share it. What they become is not private: `epsilon` does not hold."""
        return self.perturbed(self.scales.new_zeros(count, *self.scales.shape).float(), randomness)

    def shifted(self, inputs: Tensor, noise: Tensor) -> Tensor:
        """The records with this noise, one draw for each or one for all. Not private if records share a draw."""
        kept = self.scales.isfinite().to(inputs.device)
        return torch.where(kept, self.within(inputs) + noise.to(inputs), 0.0)

    def perturbed_bias(self, bias: Tensor, stream: Stream) -> Tensor:
        """Eq. 18, one draw. A bias is not data, so its noise protects nothing; the algorithm has it.

        Raises:
            ConfigError: there is no `bias_scale`.
        """
        if self.bias_scale is None:
            raise ConfigError("bias_scale", None, "a number above 0: only the published scales come with one")
        noise = stream.laplace(bias.shape, dtype=torch.float64, device="cpu") * self.bias_scale
        return bias.detach() + noise.to(bias)

    def within(self, inputs: Tensor) -> Tensor:
        """The features within [0, 1]. Clamping turns not-a-number into 0.

        Raises:
            DataError: a feature lies outside and `outside` is "refuse".
        """
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
