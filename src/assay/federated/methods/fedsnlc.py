"""DP-FedSNLC, the baseline of the DP-FedAGS paper: tensors of the update that lower the local loss most.

The paper (cited in `fedags`) names Ding, Wang, Liang, Bi and Pan, "Towards Plausible Differentially Private ADMM Based
Distributed Machine Learning", CIKM 2020, doi:10.1145/3340531.3411860, which we have not read. It says that the method
"evaluates the significance of gradients by assessing changes in the loss function and applies noise perturbation to the
significant gradients". Here the parts of an update are the tensors of the model. The score of a part is L(W) - L(W with
that part of the update), on the client's records.

`published`: parts that score at least the average get N(0, σ²C²), the others are sent as they are; weights n_k/n.
Claimed ε is Eq. 2 of the DP-FedAGS paper, which compares the two methods at equal ε; its ΔS is `sensitivity`. Verified
ε is ∞: insignificant parts leave without noise, and the data decide which ones get it.

`sound`: a client sends its update together with its scores, clipped to norm `score_bound`. They form one vector of norm
at most C,

    √(1-s) · clip(update on the set, C)  ⊕  √s · (C/score_bound) · clip(scores, score_bound),

so that one noise covers both (s is `score_share`). The server averages the released scores. The set of the next round
is the share `keep` of the parts that score highest, which is post-processing. In the first `warmup` rounds the set is
everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent, NonPrivateDpEvent
from torch import Tensor

from assay.accounting.epsilon import rdp_epsilon
from assay.errors import ConfigError, check_above_zero
from assay.federated import bits
from assay.federated.exchange import Arrays, Exchange, Fields, Plain, Work
from assay.federated.layout import Layout, clipped
from assay.federated.methods import FederatedMethod
from assay.federated.methods.fedags import check_sensitivity, gaussian_claim
from assay.federated.wire import Message, Schema
from assay.methods import check_variant
from assay.randomness.streams import Stream

if TYPE_CHECKING:
    from assay.federated.plan import FederatedPlan

_DECAY = 0.8  # of the moving average of released scores


def loss_changes(work: Work, layout: Layout) -> Tensor:
    """How much each part of the update, applied alone, lowers the local loss; 0 where that is NaN or infinite."""
    before = work.loss_at(work.start)
    changes = []
    for part in layout.blocks().values():
        moved = work.start.clone()
        moved[part] += work.update[part]
        changes.append(before - work.loss_at(moved))
    return torch.tensor(changes, dtype=torch.float64).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


class Scored:
    """Both sides of a round of the sound variant."""

    def __init__(self, method: FedSNLC, plan: FederatedPlan, layout: Layout) -> None:
        self.method, self.plan, self.layout = method, plan, layout
        self.parts = len(layout.shapes)
        self.task_arrays: Mapping[str, tuple[str, int]] = {"parts": ("uint8", bits.bytes_for(self.parts))}
        self.scores = torch.zeros(self.parts, dtype=torch.float64)

    def instructions(self, turn: int) -> Arrays:
        """The parts of this round, from released scores alone."""
        chosen = torch.ones(self.parts, dtype=torch.bool)
        if turn >= self.method.warmup:
            kept = max(1, math.ceil(self.method.keep * self.parts))
            chosen[self.scores.argsort(descending=True, stable=True)[kept:]] = False
        return {"parts": bits.pack(chosen)}

    def expects(self, instructions: Arrays) -> Schema:
        """A number for each coordinate of the set, and a score for each part."""
        length = int(self.selected(instructions).sum()) + self.parts
        return Schema({"update": (self.plan.source(length).dtype, length)})

    def answer(self, work: Work, instructions: Arrays, turn: int, stream: Stream) -> tuple[Fields, Arrays]:  # noqa: ARG002
        """Update and scores as one bounded vector."""
        share, bound = self.method.score_share, self.plan.clip
        kept = clipped(work.update[self.selected(instructions)], bound) * math.sqrt(1 - share)
        scores = clipped(loss_changes(work, self.layout), self.method.score_bound) * self._scale
        vector = torch.cat([kept, scores]) * work.weight
        return {}, {"update": self.plan.source(len(vector)).send(vector, stream)}

    def combine(self, answers: Sequence[Message], instructions: Arrays, turn: int, stream: Stream) -> Tensor | None:  # noqa: ARG002
        """The average on the set, zero elsewhere; scores are averaged over rounds."""
        chosen = self.selected(instructions)
        length = int(chosen.sum()) + self.parts
        average = self.plan.source(length).average([answer.arrays["update"] for answer in answers], length, stream)
        if average is None:
            return None
        self.scores = _DECAY * self.scores + (1 - _DECAY) * average[-self.parts :] / self._scale
        update = torch.zeros(self.layout.size, dtype=torch.float64)
        update[chosen] = average[: -self.parts] / math.sqrt(1 - self.method.score_share)
        return update

    @property
    def _scale(self) -> float:
        """From scores to the vector."""
        return math.sqrt(self.method.score_share) * self.plan.clip / self.method.score_bound

    def state(self) -> dict[str, Tensor]:
        """The average of released scores."""
        return {"scores": self.scores}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from that average."""
        self.scores = state["scores"].clone()

    def selected(self, instructions: Arrays) -> Tensor:
        chosen = bits.unpack(instructions["parts"], self.parts)
        lengths = torch.tensor([part.stop - part.start for part in self.layout.blocks().values()])
        return chosen.repeat_interleave(lengths)


@dataclass(frozen=True)
class Published(Plain):
    """Both sides of a round as published."""

    plan: FederatedPlan
    layout: Layout

    def expects(self, instructions: Arrays) -> Schema:  # noqa: ARG002
        """Gradient and number of records."""
        return Schema({"gradient": ("float32", self.layout.size)}, {"records": int})

    def answer(self, work: Work, instructions: Arrays, turn: int, stream: Stream) -> tuple[Fields, Arrays]:  # noqa: ARG002
        """Noise on significant parts only."""
        sent = clipped(-work.update / work.lr, self.plan.clip)
        changes = loss_changes(work, self.layout)
        for part, change in zip(self.layout.blocks().values(), changes, strict=True):
            if change >= changes.mean():
                noise = stream.normal((part.stop - part.start,), dtype=torch.float64, device="cpu")
                sent[part] += self.plan.noise_multiplier * self.plan.clip * noise
        return {"records": work.records}, {"gradient": sent.float().numpy()}

    def combine(self, answers: Sequence[Message], instructions: Arrays, turn: int, stream: Stream) -> Tensor | None:  # noqa: ARG002
        """-Σ (n_k/n) g_k; the server's learning rate is η."""
        records = [max(answer.fields["records"], 0) for answer in answers]
        total = torch.zeros(self.layout.size, dtype=torch.float64)
        for answer, count in zip(answers, records, strict=True):
            weight = count / sum(records) if sum(records) else 1 / len(answers)
            total -= weight * torch.from_numpy(answer.arrays["gradient"].astype(np.float64))
        return total


@dataclass(frozen=True, kw_only=True)
class FedSNLC(FederatedMethod):
    """Parts of the update by their effect on the local loss."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("variant", "sensitivity", "keep", "warmup", "score_bound", "score_share")

    name: str = "fedsnlc"
    summary: str = "DP-FedSNLC: parts of the update that lower the local loss most (as described in Zhang et al.)"
    soundness: str = (
        "not sound as we read it: insignificant parts leave without noise, and the data decide which, ε = ∞"
    )
    sensitivity: float = 1.0
    keep: float = 0.5
    warmup: int = 5
    score_bound: float = 1.0
    score_share: float = 0.05

    def __post_init__(self) -> None:
        check_variant(self.variant)
        check_sensitivity(self.sensitivity, self.variant)
        check_above_zero("score_bound", self.score_bound)
        if not 0 < self.keep <= 1:
            raise ConfigError("keep", self.keep, "a number above 0, at most 1")
        if not 0 < self.score_share < 1:
            raise ConfigError("score_share", self.score_share, "a number between 0 and 1, both excluded")
        if self.warmup < 0:
            raise ConfigError("warmup", self.warmup, "a whole number, 0 or above")

    @property
    def noises(self) -> tuple[str, ...]:
        """As published, noise is the clients'."""
        return ("local",) if self.variant == "published" else ("central", "local", "distributed")

    def exchange(self, plan: FederatedPlan, layout: Layout) -> Exchange:
        """One of the two."""
        return Published(plan, layout) if self.variant == "published" else Scored(self, plan, layout)

    def event(self, plan: FederatedPlan) -> DpEvent:
        """That of the noise; as published, none is enough."""
        return NonPrivateDpEvent() if self.variant == "published" else plan.source(plan.size).event

    def claimed(self, plan: FederatedPlan) -> float:
        """Eq. 2 of the DP-FedAGS paper; of the sound variant, the moments accountant."""
        if self.variant == "published":
            return gaussian_claim(plan.noise_multiplier, self.sensitivity)
        return rdp_epsilon(plan.event(), plan.delta, plan.adjacency)


METHOD = FedSNLC()
