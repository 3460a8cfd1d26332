"""What an attacker has: the trained model, records to decide on, and other records to learn the decision from.

The membership of an evaluated record serves only to count how often the attack was right. An attack learns from
*calibration* examples, which are other records:

- With `train` and `pool`, the attacker trains a shadow model on one half of the pool, as the target was trained. So the
  attacker knows what members (that half) and non-members (the other) look like.
- Without, the attacker knows the membership of a share of the records (`known`), and is evaluated on the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from assay.data.records import Records
from assay.errors import ConfigError

Trained = nn.Module | Sequence[nn.Module]
"""A classifier, or its checkpoints in the order of training; the last is the classifier."""

Train = Callable[[TensorDataset], Trained]
"""Trains a model on these records as the target was trained (central, federated, private or not).

The number of records differs from call to call: a private training makes its plan for `len(records)`.
"""

_FEWEST = 4  # members, and non-members, for learning or measuring anything


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """A model with records known to be its members, and records known not to be."""

    rounds: tuple[nn.Module, ...]
    members: TensorDataset
    nonmembers: TensorDataset

    @property
    def model(self) -> nn.Module:
        """The model at the end of its training."""
        return self.rounds[-1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """The model under attack, the records to decide on, and what else the attacker has.

    Records are pairs (features, label). `Subset`s of one data set must not overlap. All attacks but LiRA and
    RMIA share one shadow model.

    Attributes:
        target: The model, or its checkpoints.
        members: Records of the target's training set.
        nonmembers: Records of the same population that were not in it.
        train: Trains a shadow model; it may add other records.
        pool: Records of that population that are neither. A shadow model sees half of them, so a pool of twice the
            target's training set makes shadows like the target.
        shadows: How many models LiRA and RMIA train.
        known: The share of the records whose membership the attacker knows.
        seed: Fixes all draws.
    """

    target: Trained
    members: Dataset[Any] = field(repr=False)
    nonmembers: Dataset[Any] = field(repr=False)
    train: Train | None = None
    pool: Dataset[Any] | None = field(default=None, repr=False)
    shadows: int = 16
    known: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.target, nn.Module) and len(self.target) == 0:
            raise ConfigError("target", self.target, "a model, or at least one checkpoint of it")
        if self.shadows < 4 or self.shadows % 2:
            raise ConfigError("shadows", self.shadows, "an even number, 4 or above: every record is in half of them")
        if not 0 < self.known < 1:
            raise ConfigError("known", self.known, "a number between 0 and 1, both excluded")
        if self.pool is not None and self.train is None:
            raise ConfigError("train", None, "how to train a shadow model on the pool (or leave out `pool`)")
        given = {"members": self.members, "nonmembers": self.nonmembers}
        if self.pool is not None:
            given["pool"] = self.pool
        _refuse_overlap(given)
        for name, records in given.items():
            size = len(Records(records))
            if size < 2 * _FEWEST:
                raise ConfigError(name, f"{size} records", f"at least {2 * _FEWEST} records")

    @functools.cached_property
    def calibration(self) -> Examples:
        """What the attack may learn from."""
        if self.pool is None:
            return self._known_and_rest[0]
        assert self.train is not None
        pool = stacked(self.pool)
        order = self.generator("pool").permutation(len(pool))
        half = len(pool) // 2
        inside, outside = subset(pool, order[:half]), subset(pool, order[half:])
        return Examples(rounds=rounds_of(self.train(inside)), members=inside, nonmembers=outside)

    @functools.cached_property
    def evaluated(self) -> Examples:
        """What the attack is measured on: no record of `calibration` is in it."""
        return self._whole if self.pool is not None else self._known_and_rest[1]

    @property
    def calibrated_on(self) -> str:
        """Where the calibration comes from, in words."""
        examples = self.calibration
        sizes = f"{len(examples.members)} members and {len(examples.nonmembers)} non-members"
        return f"shadow model, its {sizes}" if self.pool is not None else f"known part, {sizes}, not evaluated"

    @functools.cached_property
    def _whole(self) -> Examples:
        return Examples(
            rounds=rounds_of(self.target), members=stacked(self.members), nonmembers=stacked(self.nonmembers)
        )

    @functools.cached_property
    def _known_and_rest(self) -> tuple[Examples, Examples]:
        whole, generator = self._whole, self.generator("known")
        members = self._cut(whole.members, generator)
        nonmembers = self._cut(whole.nonmembers, generator)
        known, rest = (
            Examples(rounds=whole.rounds, members=a, nonmembers=b) for a, b in zip(members, nonmembers, strict=True)
        )
        return known, rest

    def _cut(self, records: TensorDataset, generator: np.random.Generator) -> tuple[TensorDataset, TensorDataset]:
        order = generator.permutation(len(records))
        known = min(max(round(self.known * len(records)), _FEWEST), len(records) - _FEWEST)
        return subset(records, order[:known]), subset(records, order[known:])

    def generator(self, purpose: str) -> np.random.Generator:
        """Random numbers for one purpose, the same in every run with this seed."""
        return np.random.default_rng([self.seed, *purpose.encode()])


def rounds_of(trained: Trained) -> tuple[nn.Module, ...]:
    """The checkpoints, or the one model."""
    return (trained,) if isinstance(trained, nn.Module) else tuple(trained)


def stacked(records: Dataset[Any]) -> TensorDataset:
    """The records as tensors, because every model of an attack reads them all."""
    if type(records) is TensorDataset and len(records.tensors) == 2:
        return records
    held = Records(records)
    batch = held.gather(torch.arange(len(held)))
    if len(batch) != 2 or not all(isinstance(values, Tensor) for values in batch):
        raise ConfigError("records", type(records).__name__, "pairs (features, label) of tensors or numbers")
    return TensorDataset(*batch)


def subset(records: TensorDataset, index: NDArray[np.intp]) -> TensorDataset:
    """The records with these indices."""
    chosen = torch.from_numpy(index)
    return TensorDataset(*(tensor[chosen] for tensor in records.tensors))


def _refuse_overlap(given: dict[str, Dataset[Any]]) -> None:
    subsets = [(name, records) for name, records in given.items() if isinstance(records, Subset)]
    for i, (name, records) in enumerate(subsets):
        for other, earlier in subsets[:i]:
            shared = set(records.indices) & set(earlier.indices) if records.dataset is earlier.dataset else set()
            if shared:
                raise ConfigError(
                    name,
                    f"{len(shared)} records that are also in `{other}`",
                    "other records: an attack must not be calibrated on what it is evaluated on",
                )
