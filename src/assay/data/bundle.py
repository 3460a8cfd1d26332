"""What every data source hands over: tensors, and the public facts that the privacy statement needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from assay.data.split import BY_CONTENT, POSITION, SplitRule, drawn, drawn_units
from assay.data.task import MULTILABEL, REGRESSION, Task
from assay.errors import ConfigError


@dataclass(frozen=True, kw_only=True, eq=False)
class DataBundle:
    """A data set that is ready to train on.

    Guaranteed: features are float32, targets are as `task` says (int64 class numbers below `classes` by default), one
    for each record, and both splits hold records of one shape. `unit` says what one record is, because that is what ε protects;
    `notes` says how the features were made and what of the data is taken to be public; `source` names the
    place it came from (never an absolute path, which would tell about the machine); `split` says how records were
    assigned to parts, so that a run can be given the same ones again.

    Where several records belong to one person, `unit_column` names the column that says whose they are. `train_units` and
    `test_units` then hold the number of each record's person, from 0 to persons - 1 within the part; no person has records
    in both parts. `train_keys` holds a stable key for each training person, by which further parts are split off.

    `classes` is the number of outputs of a model. `schema` says how rows were prepared, as JSON, so that new rows can be
    prepared in the same way.
    """

    name: str
    train_x: Tensor = field(repr=False)
    train_y: Tensor = field(repr=False)
    test_x: Tensor = field(repr=False)
    test_y: Tensor = field(repr=False)
    classes: int
    unit: str
    notes: str
    source: str
    split: SplitRule = BY_CONTENT
    train_units: Tensor | None = field(default=None, repr=False)
    test_units: Tensor | None = field(default=None, repr=False)
    train_keys: Tensor | None = field(default=None, repr=False)
    unit_column: str | None = None
    task: Task | None = None
    schema: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._check_units()
        for split, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            if x.dtype != torch.float32 or x.dim() < 2:
                shown = f"{x.dtype} of shape {tuple(x.shape)}"
                raise ConfigError(f"{split}_x", shown, "float32 of shape (records, features...)")
            self._check_targets(split, len(x), y)
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            accepted = f"records of shape {self.input_shape}, as in train_x"
            raise ConfigError("test_x", tuple(self.test_x.shape[1:]), accepted)

    def _check_targets(self, split: str, records: int, y: Tensor) -> None:
        kind = None if self.task is None else self.task.kind
        if self.task is not None and self.task.outputs != self.classes:
            raise ConfigError("classes", self.classes, f"{self.task.outputs}, the outputs of task {kind}")
        dtype = torch.float32 if kind in (MULTILABEL, REGRESSION) else torch.int64
        shape = (records, self.classes) if kind == MULTILABEL else (records,)
        if y.dtype != dtype or tuple(y.shape) != shape:
            shown = f"{y.dtype} of shape {tuple(y.shape)}"
            wanted = str(dtype).removeprefix("torch.")
            raise ConfigError(f"{split}_y", shown, f"{wanted} of shape {shape}, one label a record")
        if records == 0:
            raise ConfigError(f"{split}_x", "no records", "at least one record")
        low, high = {MULTILABEL: (0, 1), REGRESSION: (-1, 1)}.get(kind or "", (0, self.classes - 1))
        if not low <= float(y.min()) <= float(y.max()) <= high:
            shown = f"labels from {y.min().item()} to {y.max().item()}"
            raise ConfigError(f"{split}_y", shown, f"labels from {low} to {high}")

    def _check_units(self) -> None:
        for split, units, y in (("train", self.train_units, self.train_y), ("test", self.test_units, self.test_y)):
            if (units is None) != (self.unit_column is None):
                raise ConfigError(f"{split}_units", units, "a person for each record where unit_column is given")
            if units is None:
                continue
            if units.dtype != torch.int64 or tuple(units.shape) != (len(y),):
                shown = f"{units.dtype} of shape {tuple(units.shape)}"
                raise ConfigError(f"{split}_units", shown, f"int64 of shape ({len(y)},), a person for each record")
            there = torch.unique(units)
            if len(units) and not torch.equal(there, torch.arange(len(there))):
                shown = f"{len(there)} persons, the largest number {int(units.max())}"
                raise ConfigError(f"{split}_units", shown, "persons numbered from 0 without a gap")
        if self.train_units is not None:
            keys = self.train_keys
            if keys is None or keys.dtype != torch.int64 or tuple(keys.shape) != (self.persons,):
                raise ConfigError("train_keys", keys, f"int64 of shape ({self.persons},), a key for each person")

    @property
    def persons(self) -> int | None:
        """How many persons the training records belong to; None where the unit is a record."""
        return None if self.train_units is None else int(self.train_units.max()) + 1

    @property
    def what(self) -> Task:
        """What is predicted; without a `task`, one of `classes` classes that have no names."""
        return Task.of_classes(self.classes) if self.task is None else self.task

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of classes or labels, where they were given."""
        return None if self.task is None or not self.task.names else self.task.names

    def drawn(self, purpose: str, share: float) -> Tensor:
        """Which training records a keyed hash draws for a purpose: by the person's id, or by the record's own content.

        Args:
            purpose: Draws for different purposes are unrelated.
            share: About how much of the records or persons is drawn.

        Returns:
            A boolean for each training record; the same for all records of a person.
        """
        if self.train_units is None or self.train_keys is None:
            return torch.from_numpy(drawn(self.train_x.numpy(), self.train_y.numpy(), purpose, share))
        return torch.from_numpy(drawn_units(self.train_keys.numpy(), purpose, share))[self.train_units]

    def only(self, kept: Tensor) -> DataBundle:
        """The data set with the training records that `kept`, a boolean for each, says."""
        x, y = self.train_x[kept], self.train_y[kept]
        if self.train_units is None or self.train_keys is None:
            return replace(self, train_x=x, train_y=y)
        there, units = torch.unique(self.train_units[kept], return_inverse=True)
        return replace(self, train_x=x, train_y=y, train_units=units, train_keys=self.train_keys[there])

    def with_test(self, aside: Tensor) -> DataBundle:
        """The data set with the training records that `aside` says as its test part, in place of its own."""
        units = None if self.train_units is None else torch.unique(self.train_units[aside], return_inverse=True)[1]
        rest = self.only(~aside)
        return replace(rest, test_x=self.train_x[aside], test_y=self.train_y[aside], test_units=units)

    def limited(self, records: int | None, rule: SplitRule) -> DataBundle:
        """The data set with some of its training records only.

        Args:
            records: How many, None for the share that the rule names. By content it is about that many: a share of the records is
                drawn. By position it is the first of them.
            rule: By what they are told apart.

        Returns:
            The data set, its `split` the rule that gives the same records again without `records`, if it goes by content.

        Raises:
            ConfigError: There are not that many records, or none was drawn.
        """
        there = len(self.train_x)
        if records is not None and not 1 <= records <= there:
            raise ConfigError(
                "records", records, f"a whole number from 1 to {there}, the training records of {self.name}"
            )
        if rule.by == POSITION:
            return replace(self.only(torch.arange(there) < (there if records is None else records)), split=rule)
        share = rule.share if records is None else records / there
        if share is None or share == 1:
            return self
        kept = self.drawn("records", share)
        if not kept.any():
            raise ConfigError(
                "records", records, f"more of the {there} training records: none was drawn for so small a share"
            )
        notes = (
            f"{self.notes} Of the {there} training records {int(kept.sum())} are used, those whose hash is below {share:.6g}: whether a "
            f"record is one of them follows from {'its own content' if self.unit_column is None else 'whose it is'}, and not from "
            "other records."
        )
        split = replace(rule, share=share)
        return replace(self.only(kept), notes=notes, split=split)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record's features."""
        return tuple(self.train_x.shape[1:])

    @property
    def train(self) -> TensorDataset:
        """The training records as a torch data set of (features, label)."""
        return TensorDataset(self.train_x, self.train_y)

    @property
    def test(self) -> TensorDataset:
        """The test records as a torch data set of (features, label)."""
        return TensorDataset(self.test_x, self.test_y)
