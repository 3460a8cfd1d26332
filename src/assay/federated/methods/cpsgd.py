"""cpSGD: updates rounded to a few levels, with binomial noise.

Agarwal, Suresh, Yu, Kumar and McMahan, "cpSGD: communication-efficient and differentially-private distributed SGD",
2018 (arXiv:1805.10559). Each client's update goes through these steps:

1. Clip it. Rotate it by a random Hadamard matrix (signs from a public seed, new in every round), so that no coordinate
   is much larger than C/√d.
2. Cut it to [-X, X] with X = C √(2 log(200 d)/d).
3. Round it at random, without bias, to k levels: whole numbers from -(k-1)/2 to (k-1)/2.
4. Add Bin(m, ½) - m/2 to each coordinate. Whole numbers modulo 2^b go over the wire.

The server adds them up and inverts the rotation.

Guarantee: rounding is repeated until the whole-number vector has norm at most D, D² = (C/step)² + d/4. After eight
attempts it is rounded towards zero. So D is a bound and not an expectation, and L = (k-1)/2 bounds each coordinate. The
clients' binomials add up to Bin(N, ½) with N ≥ 4 z² D², z the noise multiplier. As with other distributed noise, the
guarantee is for the sum of at least `min_answers` clients; otherwise the round is refused, and charged.

Verified ε comes from ρ, computed from the binomial distribution (`assay.federated.binomial.rho`). Claimed ε is theorem
1 of the paper for each of a client's turns with Δ₁ ≤ √d Δ₂, δ split evenly. Turns are composed by the better of plain
and advanced composition (Dwork, Rothblum and Vadhan, "Boosting and differential privacy", 2010,
doi:10.1109/FOCS.2010.12). Both are upper bounds; the verified one is much smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent, NonPrivateDpEvent, ZCDpEvent
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import ConfigError
from assay.federated.binomial import rho, theorem_epsilon
from assay.federated.exchange import Arrays, Exchange, Fields, Plain, Work
from assay.federated.integers import Whole, bits_for, centred_binomial, packed, summed
from assay.federated.layout import Layout, clipped
from assay.federated.methods import FederatedMethod
from assay.federated.wire import Message, Schema
from assay.randomness.streams import Seeded, Stream

if TYPE_CHECKING:
    from assay.federated.plan import FederatedPlan

_ROUNDINGS = 8


@dataclass(frozen=True)
class Quantiser:
    """Updates as whole-number vectors of bounded norm, and back."""

    size: int
    bound: float
    levels: int

    @property
    def padded(self) -> int:
        """The next power of two, which the rotation needs."""
        return 1 << max(1, (self.size - 1).bit_length())

    @property
    def linf(self) -> int:
        """L."""
        return (self.levels - 1) // 2

    @property
    def step(self) -> float:
        """One level."""
        return self.bound * math.sqrt(2 * math.log(200 * self.padded) / self.padded) / self.linf

    @property
    def l2(self) -> float:
        """D."""
        return math.sqrt((self.bound / self.step) ** 2 + self.padded / 4)

    def forward(self, vector: Tensor, signs: NDArray[np.float64], stream: Stream) -> Whole:
        """Clip, rotate and round a vector."""
        whole = np.zeros(self.padded)
        whole[: self.size] = clipped(vector, self.bound).numpy()
        scaled = np.clip(hadamard(whole * signs) / self.step, -self.linf, self.linf)
        below = np.floor(scaled)
        for _ in range(_ROUNDINGS):
            drawn = below + (stream.uniform(self.padded).numpy() < scaled - below)
            if float(drawn @ drawn) <= self.l2**2:
                return np.asarray(drawn.astype(np.int64))
        towards_zero = np.trunc(scaled)  # no longer than `scaled`, whose norm is at most bound/step
        return np.asarray(towards_zero.astype(np.int64))

    def backward(self, average: NDArray[np.float64], signs: NDArray[np.float64]) -> Tensor:
        """The vector that an average of levels stands for."""
        return torch.from_numpy((hadamard(average * self.step) * signs)[: self.size].copy())


def hadamard(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """The orthonormal Hadamard transform, its own inverse; the length is a power of two."""
    out, half = vector.astype(np.float64), 1
    while half < len(out):
        pairs = out.reshape(-1, 2, half)
        out = np.concatenate([pairs[:, :1] + pairs[:, 1:], pairs[:, :1] - pairs[:, 1:]], axis=1).reshape(-1)
        half *= 2
    return out / math.sqrt(len(out))


@dataclass(frozen=True)
class Quantised(Plain):
    """Both sides of a round of cpSGD; the rotation follows from the public seed."""

    quantiser: Quantiser
    trials: int
    minimum: int
    bits: int
    public_seed: int

    def expects(self, instructions: Arrays) -> Schema:  # noqa: ARG002
        """A residue for each coordinate."""
        return Schema({"levels": (f"uint{self.bits}", self.quantiser.padded)})

    def answer(self, work: Work, instructions: Arrays, turn: int, stream: Stream) -> tuple[Fields, Arrays]:  # noqa: ARG002
        """Levels with binomial noise."""
        vector = clipped(work.update, self.quantiser.bound) * work.weight
        levels = self.quantiser.forward(vector, self._signs(turn), stream)
        return {}, {"levels": packed(levels + centred_binomial(self.trials, len(levels), stream), self.bits)}

    def combine(self, answers: Sequence[Message], instructions: Arrays, turn: int, stream: Stream) -> Tensor | None:  # noqa: ARG002
        """The average of those who answered; None if they are too few."""
        if len(answers) < self.minimum:
            return None
        total = summed([answer.arrays["levels"] for answer in answers], self.bits)
        return self.quantiser.backward(total / len(answers), self._signs(turn))

    def _signs(self, turn: int) -> NDArray[np.float64]:
        draws = Seeded(self.public_seed).stream("rotation", turn).uniform(self.quantiser.padded).numpy()
        return np.where(draws < 0.5, -1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class CpSGD(FederatedMethod):
    """k-level rounding, random rotation, binomial noise."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("levels",)

    name: str = "cpsgd"
    summary: str = (
        "cpSGD: rotated, k-level quantised updates with binomial noise, integers on the wire (Agarwal et al. 2018)"
    )
    soundness: str = "sound; its theorem's ε is far above the one computed from the distribution"
    levels: int = 17

    def __post_init__(self) -> None:
        if not (3 <= self.levels <= 4097 and self.levels % 2):
            raise ConfigError("levels", self.levels, "an odd number from 3 to 4097: 0 is one of the levels")

    @property
    def noises(self) -> tuple[str, ...]:
        """The clients' shares."""
        return ("distributed",)

    def exchange(self, plan: FederatedPlan, layout: Layout) -> Exchange:  # noqa: ARG002
        """Quantised updates."""
        quantiser, trials = self._parts(plan)
        largest = plan.per_round * quantiser.linf + 5 * math.sqrt(plan.per_round * trials)
        return Quantised(quantiser, trials, plan.answers, bits_for(largest), plan.public_seed)

    def _parts(self, plan: FederatedPlan) -> tuple[Quantiser, int]:
        """The quantiser, and each client's number of trials: even, so that the noise is whole numbers around 0."""
        quantiser = Quantiser(plan.size, plan.clip, self.levels)
        total = 4 * (plan.noise_multiplier * quantiser.l2) ** 2
        return quantiser, 2 * math.ceil(total / plan.answers / 2)

    def event(self, plan: FederatedPlan) -> DpEvent:
        """ρ of the sum of `answers` clients' noise."""
        quantiser, trials = self._parts(plan)
        cost = rho(trials * plan.answers, quantiser.linf, quantiser.l2)
        return NonPrivateDpEvent() if math.isinf(cost) else ZCDpEvent(cost)

    def claimed(self, plan: FederatedPlan) -> float:
        """Theorem 1, composed over a client's turns; replacing a client moves the sum by up to twice the bounds."""
        quantiser, trials = self._parts(plan)
        turns, l2 = plan.turns, 2 * quantiser.l2

        def one(delta: float) -> float:
            l1 = math.sqrt(quantiser.padded) * l2
            return theorem_epsilon(trials * plan.answers, quantiser.padded, delta, l1, l2, 2 * quantiser.linf)

        plain = turns * one(plan.delta / turns)
        each = one(plan.delta / (2 * turns))
        if math.isinf(each) or each > 700:
            return plain
        advanced = each * math.sqrt(2 * turns * math.log(2 / plan.delta)) + turns * each * math.expm1(each)
        return min(plain, advanced)


METHOD = CpSGD()
