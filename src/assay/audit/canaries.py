"""Canaries inside a real training run, put there from outside: the step, its sampler and its chain stay what they are.

A gradient canary is a record whose gradient is one coordinate, as large as clipping lets it be (Nasr et al. 2023). The
run's own sampler decides when it takes part: it stands in the data set as a placeholder whose own gradient is dropped.

The score of a canary is what an adversary sees who knows every other record and every batch (differential privacy is
promised against just that): the released coordinate less the others' part in it, step by step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from assay.audit.observe import turned_into
from assay.audit.persons import PlaceholderPersons
from assay.data.records import Records
from assay.errors import ConfigError
from assay.gradients.record_grads import RecordGrads
from assay.gradients.uses.base import Apart
from assay.mechanisms.objective import AlreadyReleased, NoisyCoefficients
from assay.mechanisms.types import Bounded, Grads, Private
from assay.methods.chain import Chain
from assay.randomness.streams import Stream
from assay.training.step import PrivateStep

_LARGE = 1000.0  # a canary's gradient over the clipping bound


class PlaceholderRecords(Records):
    """A data set with this many placeholders after its records; remembers which of them are in the batch given last."""

    def __init__(self, dataset: Dataset[Any], placeholders: int, device: torch.device | str = "cpu") -> None:
        super().__init__(dataset, device)
        self._placeholders = placeholders
        self.places = self.drawn = torch.zeros(0, dtype=torch.int64)

    def __len__(self) -> int:
        return super().__len__() + self._placeholders

    def gather(self, index: Tensor) -> Any:
        """The records of these indices; a placeholder looks like the first record."""
        own = super().__len__()
        self.places = torch.nonzero(index >= own).flatten()
        self.drawn = index[self.places] - own
        return super().gather(torch.where(index >= own, 0, index))


@dataclass(frozen=True, kw_only=True)
class CanaryChain(Chain):
    """The chain with canaries among the records; keeps what each step shows of every canary, included or not.

    `seen[t][j]` is the released coordinate of canary j without the other records' part, in units of the noise, and
    `size[t][j]` how far the canary would have moved it.
    """

    inner: Chain
    records: PlaceholderRecords | PlaceholderPersons
    included: Tensor
    where: Tensor
    """The coordinate of each canary in the vector of all parameters."""
    group: Tensor
    """The clipping group of each canary."""
    others: dict[str, Tensor] = field(default_factory=dict)
    seen: list[Tensor] = field(default_factory=list)
    size: list[Tensor] = field(default_factory=list)

    def clipped_sum(
        self, grads: RecordGrads, groups: list[int], slots: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """As the chain itself, placeholders replaced by their canaries."""
        if len(self.records.places):  # else every gradient takes the very way it takes in the run
            placeholder = torch.zeros(grads.records, dtype=torch.bool, device=grads_device(grads))
            placeholder[self.records.places] = True
            grads.uses = [
                (names, Apart([part.without(placeholder) for part in use.apart()])) for names, use in grads.uses
            ]
        total, norms = self.inner.clipped_sum(grads, groups, slots)
        for name, value in total.items():
            self.others[name] = self.others[name] + value if name in self.others else value.clone()
        taking_part = self.included[self.records.drawn]
        added = torch.zeros(sum(v.numel() for v in total.values()))
        added[self.where[taking_part]] = self._sizes()[taking_part]
        for value, own in zip(total.values(), added.split([v.numel() for v in total.values()]), strict=True):
            value += own.view(value.shape).to(value.device)
        return total, norms

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """As the chain itself, with the noise of this step: where noise falls, a step puts another in its chain."""
        private = replace(self.inner, noise=self.noise).release(grads, stream)
        if private.noise_std <= 0:
            raise ConfigError("noise_multiplier", 0.0, "noise above 0")
        less = self._at(self.others) if self.others else 0.0
        self.seen.append((self._at(private.value) - less) / private.noise_std)
        self.size.append(self._sizes() / private.noise_std)
        self.others.clear()
        return private

    def _sizes(self) -> Tensor:
        """What clipping leaves of each canary."""
        large = _LARGE * self.inner.clip.l2
        rows = torch.arange(len(self.group))
        norms = torch.zeros(len(self.group), int(self.group.max()) + 1)
        norms[rows, self.group] = large
        return self.inner.clip.weights(norms)[rows, self.group] * large

    def _at(self, values: Grads) -> Tensor:
        """The canaries' coordinates."""
        return torch.cat([v.detach().reshape(-1) for v in values.values()])[self.where].cpu()


def grads_device(grads: RecordGrads) -> torch.device:
    """Where the gradients are."""
    return next(iter(grads.parameters.values())).device


def insert(
    step: PrivateStep,
    records: PlaceholderRecords | PlaceholderPersons,
    included: Tensor,
    canaries: int,
    seed: int,
) -> CanaryChain:
    """Put canaries on distinct coordinates, chosen at random, into the step; `included` are the numbers of those that take part."""
    chain = step.chain
    by_gradient = not isinstance(chain.noise, AlreadyReleased | NoisyCoefficients)
    as_they_are = not (chain.each or chain.rules or chain.before) and chain.micro == 1
    if not (by_gradient and as_they_are and math.isfinite(chain.clip.l2)):
        raise ConfigError(
            "method",
            step.plan.method.name,
            "one that clips the gradients of single records as they are, for gradient canaries; audit one step instead, or "
            "use input canaries",
        )
    sizes = {name: p.numel() for name, p in step.engine.parameters.items()}
    if canaries > sum(sizes.values()):
        raise ConfigError("canaries", canaries, f"at most one a parameter: the model has {sum(sizes.values())}")
    groups, layer_of = chain.clip.groups(step.engine.layers), step.engine.empty().layer_of
    group = torch.cat([torch.full((n,), groups[layer_of[name]]) for name, n in sizes.items()])
    where = torch.randperm(len(group), generator=torch.Generator().manual_seed(seed))[:canaries]
    watched = turned_into(
        CanaryChain,
        chain,
        inner=chain,
        records=records,
        included=included,
        where=where,
        group=group[where],
    )
    step.chain = watched
    return watched


def likelihood_scores(seen: Sequence[Tensor], size: Sequence[Tensor], rate: float) -> NDArray[np.float64]:
    """The log-likelihood ratio of "included" to "excluded" for each canary: the most powerful test there is.

    `seen` and `size` are those of a `CanaryChain`: a step's coordinate is N(0, 1) without the canary and the mixture
    (1 - q) N(0, 1) + q N(a, 1) with it.
    """
    x, a = torch.stack(list(seen)).double(), torch.stack(list(size)).double()
    terms = x * a - a.square() / 2
    if rate < 1:
        terms = torch.logaddexp(terms + math.log(rate), torch.tensor(math.log1p(-rate), dtype=torch.float64))
    return np.asarray(terms.sum(0).numpy(), dtype=np.float64)


def periodic_scores(chain: CanaryChain, period: int) -> NDArray[np.float64]:
    """The largest sum over steps `period` apart: it sees records that come back in the same batch of every epoch.

    Batches that were drawn anew in each step make no such sum stand out; batches of one fixed order do.
    """
    seen = torch.stack(chain.seen).double()
    whole = seen[: len(seen) // period * period].unflatten(0, (-1, period))
    return np.asarray(whole.sum(0).amax(0).numpy(), dtype=np.float64)
