"""Canaries inside a real training run, inserted from outside: the step, its sampler and its chain do not change.

A gradient canary is a record whose gradient is one coordinate, as large as clipping allows (Nasr et al., "Tight
auditing of differentially private machine learning", 2023, arXiv:2302.07956). In the data set it is a placeholder whose
gradient is dropped, so the run's sampler decides when it takes part.

Differential privacy is promised against an adversary who knows every other record and every batch. The score of a
canary is what this adversary sees: in every step the released coordinate minus the other records' contribution.
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
from assay.data.samplers import Sampler
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
    """A data set with placeholders after its records, or in place of its last ones (`replaced`).

    It remembers which of them are in the latest batch.
    """

    def __init__(
        self, dataset: Dataset[Any], placeholders: int, device: torch.device | str = "cpu", *, replaced: bool = False
    ) -> None:
        super().__init__(dataset, device)
        self._placeholders = placeholders
        self._real = super().__len__() - (placeholders if replaced else 0)
        self.places = self.drawn = torch.zeros(0, dtype=torch.int64)

    def __len__(self) -> int:
        return self._real + self._placeholders

    def gather(self, index: Tensor) -> Any:
        """The records of these indices; a placeholder looks like the first record."""
        self.places = torch.nonzero(index >= self._real).flatten()
        self.drawn = index[self.places] - self._real
        return super().gather(torch.where(index >= self._real, 0, index))


@dataclass(frozen=True, kw_only=True)
class CanaryChain(Chain):
    """The chain with canaries among the records; keeps what each step shows of every canary, included or not.

    `seen[t][j]` is the released coordinate of canary j without the other records' contribution, in units of the noise,
    and `size[t][j]` how far the canary would have moved it.
    """

    inner: Chain
    records: PlaceholderRecords | PlaceholderPersons
    included: Tensor
    """The number of the canary at each place."""
    sign: Tensor
    """1 for each canary, -1 where it is reversed."""
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
        """Like the chain, with placeholders replaced by their canaries."""
        if len(self.records.places):  # otherwise gradients are handled exactly as in the run
            placeholder = torch.zeros(grads.records, dtype=torch.bool, device=grads_device(grads))
            placeholder[self.records.places] = True
            grads.uses = [
                (names, Apart([piece.without(placeholder) for piece in use.apart()])) for names, use in grads.uses
            ]
        total, norms = self.inner.clipped_sum(grads, groups, slots)
        for name, value in total.items():
            self.others[name] = self.others[name] + value if name in self.others else value.clone()
        taking_part = self.included[self.records.drawn]
        added = torch.zeros(sum(v.numel() for v in total.values()))
        added[self.where[taking_part]] = (self._sizes() * self.sign)[taking_part]
        for value, extra in zip(total.values(), added.split([v.numel() for v in total.values()]), strict=True):
            value += extra.view(value.shape).to(value.device)
        return total, norms

    def release(self, grads: Bounded, stream: Stream) -> Private:
        """Like the chain, with the noise of this step: under a falling schedule each step has another."""
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
    sign: Tensor | None = None,
) -> CanaryChain:
    """Insert canaries on distinct random coordinates into the step.

    Args:
        step: The step, whose chain is replaced.
        records: The data set with a placeholder for each included canary.
        included: The numbers of the canaries that take part.
        canaries: How many there are.
        seed: Chooses the coordinates.
        sign: 1 for each canary, and -1 for those that are reversed; None for 1.

    Returns:
        The step's new chain, which keeps what is seen.

    Raises:
        ConfigError: The method does not clip the gradients of single records, or the model is too small.
    """
    chain = step.chain
    by_gradient = not isinstance(chain.noise, AlreadyReleased | NoisyCoefficients)
    as_they_are = not (chain.each or chain.rules or chain.before) and chain.micro == 1
    if not (by_gradient and as_they_are and math.isfinite(chain.clip.l2)):
        raise ConfigError(
            "method",
            step.plan.method.name,
            "one that clips the gradients of single records as they are, for gradient canaries;"
            " audit one step instead, or use input canaries",
        )
    sizes = {name: p.numel() for name, p in step.engine.parameters.items()}
    if canaries > sum(sizes.values()):
        raise ConfigError("canaries", canaries, f"at most one per parameter: the model has {sum(sizes.values())}")
    groups, layer_of = chain.clip.groups(step.engine.layers), step.engine.empty().layer_of
    group = torch.cat([torch.full((n,), groups[layer_of[name]]) for name, n in sizes.items()])
    where = torch.randperm(len(group), generator=torch.Generator().manual_seed(seed))[:canaries]
    signs = torch.ones(canaries) if sign is None else sign
    more = {"records": records, "included": included, "sign": signs, "where": where, "group": group[where]}
    step.chain = watched = turned_into(CanaryChain, chain, inner=chain, **more)
    return watched


def likelihood_scores(
    seen: Sequence[Tensor], size: Sequence[Tensor], sampler: Sampler, *, reversed_: bool = False
) -> NDArray[np.float64]:
    """The log-likelihood ratio of "included" to "excluded" for each canary: the most powerful test.

    A step's coordinate is N(a, 1) with the canary in its batch and N(0, 1) without. The sampler says how its steps
    combine. A canary that is there in any case, as it is or reversed, is N(a, 1) or N(-a, 1) in its batches.

    Args:
        seen: As in `CanaryChain`.
        size: As in `CanaryChain`: a.
        sampler: How batches were drawn.
        reversed_: Whether an "excluded" canary was reversed instead.

    Returns:
        A score for each canary.
    """
    x, a = torch.stack(list(seen)).double(), torch.stack(list(size)).double()
    scores = sampler.log_ratio(x * a - a.square() / 2)
    if reversed_:
        scores = scores - sampler.log_ratio(-x * a - a.square() / 2)
    return np.asarray(scores.numpy(), dtype=np.float64)
