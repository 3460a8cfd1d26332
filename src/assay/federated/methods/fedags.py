"""DP-FedAGS: significant gradients.

Zhang, Mao, Tu, He, Ping and Wu, "Optimizing Privacy-Accuracy Trade-off in DP-FL via Significant Gradient Perturbation".

`published`: Algorithm 1 with Eq. 1-3 and 35-37. The sum of the local gradients is clipped to C as g'. A coordinate is
significant if g' + α ≥ λ_t + β, with α ~ Lap(qΔ/ε₁) for each coordinate, β ~ Lap(qΔ/ε₂) once, and
λ_t = min(sort(g')[⌈t|W|/T⌉], sort(g')[⌈0.9|W|⌉]) in ascending order. Significant coordinates get noise: N(0, σ²C²)
(`form=gaussian`, Algorithm 1) or Lap(qΔ/ε₃) (`form=laplace`, section IV). The others are sent as they are, with the
training loss L_k and the number of records n_k. The server computes γ_k = (n_k L + n L_k)/(2nL) and W ← W - ηΣγ_k g_k.
Settings: Δ is `sensitivity` in units of C; ε₁ : ε₂ = q^⅔ : 1; ε₃ is `value_share` of ε (the paper: much larger than
ε₁ + ε₂). The paper does not define q, here `queries`; with 1, section IV and Algorithm 1 agree. It calls ΔS the global
sensitivity and gives no number. 1 is what clipping to C enforces for adding or removing a client's gradient. With 0.1
(η C, what a client's step moves the model) accuracies come near its Table IV at ε 0.2 and 0.5 and stay below it at 0.1;
`experiments/dp-fedags` has both.

Claimed ε: ε₁ + ε₂ + ε₃, whatever the number of rounds (Theorem 2). With Gaussian noise, σ = (Δ/ε)√(2 ln(1.25/ζ)) with
ζ = e^-ε (Eq. 2), solved for ε. Verified ε: ∞ whatever Δ, for no finite ε holds. Insignificant coordinates, losses and
numbers of records leave without noise, and the gradient itself decides the threshold.

`sound`, `select=released`: the server chooses the set from what is already released, so the choice costs nothing. The
set holds the coordinates in which a moving average of earlier private updates is largest. Its size follows the paper's
schedule (all but t/T of the coordinates, at least `least`). The client keeps the coordinates of the set, *then* clips;
then noise is added as in `assay.federated.noise`. Nothing outside the set is sent. Weights are uniform. With
`weights=loss` they are (1 + min(L_k, loss_bound)/loss_bound)/2, applied by the client after clipping. They are at most
1, so the bound C holds, and neither loss nor number of records is ever sent.

`sound`, `select=svt` (with `local` noise): each client chooses its set by a sound form of the sparse vector technique
(Lyu, Su and Li, "Understanding the sparse vector technique for differential privacy", 2017, arXiv:1603.01699, algorithm
7). In random order it tests |u_i| + Lap(2cC/ε₂) ≥ C/√d + Lap(C/ε₁) and stops after c = `least` · d coordinates. |u_i|
is in [0, C], so replacing a client moves it by at most C, and the threshold is public. Each turn costs `svt_epsilon` =
ε₁ + ε₂ with ε₁ : ε₂ = 1 : (2c)^⅔. We charge the worst release with that ε, randomised response, beside the noise on the
chosen coordinates. The noise of the choice grows with c. For large models the choice is hardly better than chance; it
is here for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, NonPrivateDpEvent, RandomizedResponseDpEvent
from torch import Tensor

from assay.accounting.epsilon import rdp_epsilon
from assay.errors import ConfigError, check_above_zero
from assay.federated import bits
from assay.federated.exchange import Arrays, Exchange, Fields, Plain, Work
from assay.federated.layout import Layout, clipped
from assay.federated.methods import FederatedMethod
from assay.federated.wire import Message, Schema
from assay.methods import check_variant
from assay.randomness.streams import Stream

if TYPE_CHECKING:
    from assay.federated.plan import FederatedPlan

_DECAY = 0.9  # of the moving average that significance is read from


def gaussian_claim(multiplier: float, sensitivity: float = 1.0) -> float:
    """ε of Eq. 2 for noise of `multiplier` times C: (σ/Δ)²ε² = 2(ln 1.25 + ε), the positive root.

    >>> round(gaussian_claim(2.4052), 3), round(gaussian_claim(0.24052, sensitivity=0.1), 3)
    (0.5, 0.5)
    """
    relative = multiplier / sensitivity
    return (1 + math.sqrt(1 + 2 * relative**2 * math.log(1.25))) / relative**2 if relative else math.inf


def check_sensitivity(sensitivity: float, variant: str) -> None:
    """Refuse a ΔS that is not above 0, and any but C where noise must cover what a client contributes.

    Raises:
        ConfigError: The sensitivity is not accepted.
    """
    check_above_zero("sensitivity", sensitivity)
    if sensitivity != 1 and variant != "published":
        raise ConfigError("sensitivity", sensitivity, "1, unless the variant is published: C bounds a client")


class Significant:
    """Both sides of a round of the sound variant."""

    def __init__(self, method: FedAGS, plan: FederatedPlan, layout: Layout) -> None:
        self.method, self.plan, self.size = method, plan, layout.size
        self.task_arrays: Mapping[str, tuple[str, int]] = {"set": ("uint8", bits.bytes_for(self.size))}
        self.released = torch.zeros(self.size, dtype=torch.float64)

    def instructions(self, turn: int) -> Arrays:
        """The set of this round, from released updates alone."""
        share = max(1 - turn / self.plan.rounds, self.method.least)
        count = max(1, math.ceil(share * self.size))
        chosen = torch.zeros(self.size, dtype=torch.bool)
        chosen[self.released.abs().argsort(descending=True, stable=True)[:count]] = True
        return {"set": bits.pack(chosen)}

    def expects(self, instructions: Arrays) -> Schema:
        """A number for each coordinate of the set."""
        count = int(self.selected(instructions).sum())
        return Schema({"update": (self.plan.source(count).dtype, count)})

    def answer(self, work: Work, instructions: Arrays, turn: int, stream: Stream) -> tuple[Fields, Arrays]:  # noqa: ARG002
        """The coordinates of the set: first restricted, then clipped, weighted, protected."""
        vector = work.update[self.selected(instructions)]
        if self.plan.unit == "client":
            vector = clipped(vector, self.plan.clip) * (work.weight * self.method.weight(work.loss))
        return {}, {"update": self.plan.source(len(vector)).send(vector, stream)}

    def combine(self, answers: Sequence[Message], instructions: Arrays, turn: int, stream: Stream) -> Tensor | None:  # noqa: ARG002
        """The average on the set, zero elsewhere."""
        chosen = self.selected(instructions)
        count = int(chosen.sum())
        average = self.plan.source(count).average([answer.arrays["update"] for answer in answers], count, stream)
        if average is None:
            return None
        self.released[chosen] = _DECAY * self.released[chosen] + (1 - _DECAY) * average
        update = torch.zeros(self.size, dtype=torch.float64)
        update[chosen] = average
        return update

    def state(self) -> dict[str, Tensor]:
        """The average of released updates."""
        return {"released": self.released}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from that average."""
        self.released = state["released"].clone()

    def selected(self, instructions: Arrays) -> Tensor:
        return bits.unpack(instructions["set"], self.size)


@dataclass(frozen=True)
class Thresholded(Plain):
    """Both sides of a round of the sound variant in which clients choose."""

    method: FedAGS
    plan: FederatedPlan
    size: int

    @property
    def count(self) -> int:
        """c: the most coordinates that are chosen."""
        return max(1, math.ceil(self.method.least * self.size))

    def expects(self, instructions: Arrays) -> Schema:  # noqa: ARG002
        """The chosen set and c numbers: first those of the set's coordinates, then noise alone."""
        return Schema({"set": ("uint8", bits.bytes_for(self.size)), "update": ("float32", self.count)})

    def answer(self, work: Work, instructions: Arrays, turn: int, stream: Stream) -> tuple[Fields, Arrays]:  # noqa: ARG002
        """Choose privately; then restrict, clip, weight and protect."""
        chosen = self.choose(work.update, stream)
        vector = torch.zeros(self.count, dtype=torch.float64)
        vector[: int(chosen.sum())] = work.update.double()[chosen]
        weight = work.weight * self.method.weight(work.loss)
        sent = self.plan.source(self.count).send(clipped(vector, self.plan.clip) * weight, stream)
        return {}, {"set": bits.pack(chosen), "update": sent}

    def choose(self, update: Tensor, stream: Stream) -> Tensor:
        """The sparse vector technique."""
        bound, ratio = self.plan.clip, (2 * self.count) ** (2 / 3)
        first = self.method.svt_epsilon / (1 + ratio)
        second = self.method.svt_epsilon - first
        order = stream.uniform(self.size).argsort()
        threshold = bound / math.sqrt(self.size) + bound / first * stream.laplace(
            (1,), dtype=torch.float64, device="cpu"
        )
        noise = 2 * self.count * bound / second * stream.laplace((self.size,), dtype=torch.float64, device="cpu")
        above = clipped(update, bound).abs()[order] + noise >= threshold
        chosen = torch.zeros(self.size, dtype=torch.bool)
        chosen[order[above][: self.count]] = True  # what comes after the c-th is never looked at
        return chosen

    def combine(self, answers: Sequence[Message], instructions: Arrays, turn: int, stream: Stream) -> Tensor | None:  # noqa: ARG002
        """The average over those who answered, each on the set that it chose."""
        total = torch.zeros(self.size, dtype=torch.float64)
        for answer in answers:
            places = bits.unpack(answer.arrays["set"], self.size).nonzero().flatten()[: self.count]
            total[places] += torch.from_numpy(answer.arrays["update"].astype("float64"))[: len(places)]
        return total / max(1, len(answers))


@dataclass(frozen=True)
class Published(Plain):
    """Both sides of a round of Algorithm 1."""

    method: FedAGS
    plan: FederatedPlan
    size: int

    def expects(self, instructions: Arrays) -> Schema:  # noqa: ARG002
        """Gradient, loss and number of records."""
        return Schema({"gradient": ("float32", self.size)}, {"loss": float, "records": int})

    def answer(self, work: Work, instructions: Arrays, turn: int, stream: Stream) -> tuple[Fields, Arrays]:  # noqa: ARG002
        """Noise on significant coordinates only."""
        gradient = clipped(-work.update / work.lr, self.plan.clip)
        multiplier, form = self.plan.noise_multiplier, self.method.form
        draw = stream.normal if form == "gaussian" else stream.laplace
        significant = self._significant(gradient, turn, stream)
        noise = multiplier * self.plan.clip * draw((self.size,), dtype=torch.float64, device="cpu")
        sent = torch.where(significant, gradient + noise, gradient)
        loss = work.loss if math.isfinite(work.loss) else 0.0
        return {"loss": float(loss), "records": work.records}, {"gradient": sent.float().numpy()}

    def _significant(self, gradient: Tensor, turn: int, stream: Stream) -> Tensor:
        first, second = self.method.split(self.plan)
        scale = self.method.queries * self.method.sensitivity * self.plan.clip
        alpha = scale / first * stream.laplace((self.size,), dtype=torch.float64, device="cpu")
        beta = scale / second * stream.laplace((1,), dtype=torch.float64, device="cpu")
        return gradient + alpha >= self.threshold(gradient, turn) + beta

    def threshold(self, gradient: Tensor, turn: int) -> Tensor:
        """λ_t, Eq. 35; rounds count from 1, and so do places."""
        ascending = gradient.sort().values
        places = (math.ceil((turn + 1) * self.size / self.plan.rounds), math.ceil(0.9 * self.size))
        return torch.minimum(*(ascending[place - 1] for place in places))

    def combine(self, answers: Sequence[Message], instructions: Arrays, turn: int, stream: Stream) -> Tensor | None:  # noqa: ARG002
        """-Σ γ_k g_k, Eq. 37; the server's learning rate is η."""
        losses = [max(answer.fields["loss"], 0.0) for answer in answers]
        records = [max(answer.fields["records"], 0) for answer in answers]
        total = torch.zeros(self.size, dtype=torch.float64)
        for answer, loss, count in zip(answers, losses, records, strict=True):
            shares = [value / whole for value, whole in ((count, sum(records)), (loss, sum(losses))) if whole]
            weight = sum(shares) / len(shares) if shares else 1 / len(answers)
            total -= weight * torch.from_numpy(answer.arrays["gradient"].astype("float64"))
        return total


@dataclass(frozen=True, kw_only=True)
class FedAGS(FederatedMethod):
    """Noise, and in the sound variant messages, for significant coordinates only."""

    OPTIONS: ClassVar[tuple[str, ...]] = (
        *("variant", "form", "sensitivity", "value_share", "queries"),
        *("select", "svt_epsilon", "least", "weights", "loss_bound"),
    )

    name: str = "fedags"
    summary: str = "DP-FedAGS: significant coordinates of the update (Zhang et al.)"
    soundness: str = "not sound: insignificant coordinates, losses and thresholds leave without noise, ε = ∞"
    form: str = "gaussian"
    sensitivity: float = 1.0
    value_share: float = 0.9
    queries: int = 1
    select: str = "released"
    svt_epsilon: float = 0.1
    least: float = 0.1
    weights: str = "uniform"
    loss_bound: float = 3.0

    def __post_init__(self) -> None:
        check_variant(self.variant)
        if self.form not in ("gaussian", "laplace"):
            raise ConfigError("form", self.form, "gaussian or laplace")
        if self.select not in ("released", "svt"):
            raise ConfigError("select", self.select, "released or svt")
        check_sensitivity(self.sensitivity, self.variant)
        check_above_zero("svt_epsilon", self.svt_epsilon)
        if self.weights not in ("uniform", "loss"):
            raise ConfigError("weights", self.weights, "uniform or loss")
        if not 0 < self.value_share < 1:
            raise ConfigError("value_share", self.value_share, "a number between 0 and 1, both excluded")
        if self.queries < 1:
            raise ConfigError("queries", self.queries, "a whole number, 1 or above")
        if not 0 < self.least <= 1:
            raise ConfigError("least", self.least, "a number above 0, at most 1")
        check_above_zero("loss_bound", self.loss_bound)

    @property
    def units(self) -> tuple[str, ...]:
        """Clients only, as published and where clients choose."""
        return ("client",) if self.variant == "published" or self.select == "svt" else ("client", "record")

    @property
    def noises(self) -> tuple[str, ...]:
        """Clients add the noise, as published and where they choose."""
        by_clients = self.variant == "published" or self.select == "svt"
        return ("local",) if by_clients else ("central", "local", "distributed")

    def exchange(self, plan: FederatedPlan, layout: Layout) -> Exchange:
        """The published exchange, or one of the two sound ones."""
        if self.variant == "published":
            return Published(self, plan, layout.size)
        return Thresholded(self, plan, layout.size) if self.select == "svt" else Significant(self, plan, layout)

    def event(self, plan: FederatedPlan) -> DpEvent:
        """That of the noise, and of the choice where clients make it; as published, no noise is enough."""
        if self.variant == "published":
            return NonPrivateDpEvent()
        noise = plan.source(plan.size).event
        if self.select == "released":
            return noise
        # of all releases that are ε-private, randomised response with odds e^ε has the largest privacy profile
        return ComposedDpEvent([noise, RandomizedResponseDpEvent(2 / (1 + math.exp(self.svt_epsilon)), 2)])

    def weight(self, loss: float) -> float:
        """How much a client counts by its loss, from ½ to 1; the loss is not sent."""
        if self.weights == "uniform":
            return 1.0
        bounded = min(max(loss, 0.0), self.loss_bound) if math.isfinite(loss) else self.loss_bound
        return (1 + bounded / self.loss_bound) / 2

    def claimed(self, plan: FederatedPlan) -> float:
        """Theorem 2 with Eq. 2; of the sound variant, the moments accountant."""
        if self.variant == "sound":
            return rdp_epsilon(plan.event(), plan.delta, plan.adjacency)
        if self.form == "gaussian":
            return gaussian_claim(plan.noise_multiplier, self.sensitivity)
        relative = plan.noise_multiplier / self.sensitivity
        return self.queries / relative / self.value_share if relative else math.inf

    def split(self, plan: FederatedPlan) -> tuple[float, float]:
        """ε₁ and ε₂."""
        both, ratio = (1 - self.value_share) * self.claimed(plan), self.queries ** (2 / 3)
        return both * ratio / (1 + ratio), both / (1 + ratio)


METHOD = FedAGS()
