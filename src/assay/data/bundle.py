"""A data set in memory: tensors, and the public facts that the privacy statement needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from assay.data.records import RowsOfPersons
from assay.data.split import BY_CONTENT, POSITION, SplitRule, drawn, drawn_units
from assay.data.task import MULTILABEL, REGRESSION, Task
from assay.errors import ConfigError


@dataclass(frozen=True, kw_only=True, eq=False)
class DataBundle:
    """A data set that is ready to train on.

    Guarantee: features are float32, targets are as `task` says (int64 class numbers below `classes` by default), one
    for each record, and both splits hold records of one shape.

    Where several records belong to one person, `unit_column` names the column that says whose they are. No person then
    has records in both splits.

    Attributes:
        name: the data set.
        train_x: the features of the training records.
        train_y: their targets.
        test_x: the features of the test records.
        test_y: their targets.
        classes: the number of outputs of a model.
        unit: what one record is, because ε protects that.
        notes: how the features were made, and which facts about the data are taken as public.
        source: where it came from; never an absolute path, which would describe the machine.
        split: how records were assigned, so that a run can get the same ones again.
        train_units: the number of each training record's person, from 0 to persons - 1.
        test_units: the same for the test records, numbered separately.
        train_keys: a stable key for each training person, by which further splits are drawn.
        unit_column: the column that says whose a record is.
        task: what is predicted; None for classes without names.
        schema: how rows were prepared, as JSON, so that new rows can be prepared in the same way.
        record_shape: the shape of one record before features replaced it; None where records are as they were.

    Raises:
        ConfigError: a tensor has another type or shape, or a target lies outside its range.
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
    row_keys: Tensor | None = field(default=None, repr=False)
    """A key for each training row of a table, by its raw values: the same under every schema."""
    task: Task | None = None
    schema: Mapping[str, Any] | None = field(default=None, repr=False)
    record_shape: tuple[int, ...] | None = None

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
            raise ConfigError(f"{split}_y", shown, f"{wanted} of shape {shape}, one label per record")
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
        """The number of persons among the training records; None where the unit is a record."""
        return None if self.train_units is None else int(self.train_units.max()) + 1

    @property
    def counted(self) -> int:
        """The number of training records, or of persons: how many rows these have is a fact about them, and private."""
        return len(self.train_x) if self.persons is None else self.persons

    @property
    def what(self) -> Task:
        """What is predicted; without a `task`, one of `classes` classes that have no names."""
        return Task.of_classes(self.classes) if self.task is None else self.task

    def drawn(self, purpose: str, share: float) -> Tensor:
        """Draw training records by a keyed hash of the person's id, or else of the record's content.

        Args:
            purpose: draws for different purposes are unrelated.
            share: the approximate share of records or persons to draw.

        Returns:
            A boolean for each training record; the same for all records of a person.
        """
        if self.train_units is None or self.train_keys is None:
            return torch.from_numpy(drawn(self.train_x.numpy(), self.train_y.numpy(), purpose, share))
        return torch.from_numpy(drawn_units(self.train_keys.numpy(), purpose, share))[self.train_units]

    def only(self, kept: Tensor) -> DataBundle:
        """The data set with those training records only for which `kept` is True."""
        x, y = self.train_x[kept], self.train_y[kept]
        rows = None if self.row_keys is None else self.row_keys[kept]
        if self.train_units is None or self.train_keys is None:
            return replace(self, train_x=x, train_y=y, row_keys=rows)
        there, units = torch.unique(self.train_units[kept], return_inverse=True)
        return replace(self, train_x=x, train_y=y, row_keys=rows, train_units=units, train_keys=self.train_keys[there])

    def with_test(self, aside: Tensor) -> DataBundle:
        """The data set whose test records are those training records for which `aside` is True."""
        units = None if self.train_units is None else torch.unique(self.train_units[aside], return_inverse=True)[1]
        rest = self.only(~aside)
        return replace(rest, test_x=self.train_x[aside], test_y=self.train_y[aside], test_units=units)

    def limited(self, records: int | None, rule: SplitRule) -> DataBundle:
        """The data set with some of its training records only.

        Args:
            records: how many; persons, where records belong to them. By content it is about that many, because a share
                of them is drawn. By position it is the first of them. None means the share that the rule names.
            rule: how records are chosen.

        Returns:
            The data set. If records are chosen by content, its `split` gives the same records again without `records`.

        Raises:
            ConfigError: there are not that many records, or none was drawn.
        """
        count, noun = self.counted, "records" if self.unit_column is None else "persons"
        if records is not None and not 1 <= records <= count:
            accepted = f"a whole number from 1 to {count}, the training {noun} of {self.name}"
            raise ConfigError("records", records, accepted)
        if rule.by == POSITION:
            return replace(self.only(torch.arange(len(self.train_x)) < (records or len(self.train_x))), split=rule)
        share = rule.share if records is None else records / count
        if share is None or share == 1:
            return self
        kept = self.drawn("records", share)
        if not kept.any():
            accepted = f"more of the {count} training {noun}: none was drawn for so small a share"
            raise ConfigError("records", records, accepted)
        used = self.only(kept)
        notes = (
            f"{self.notes} Of the {count} training {noun} {used.counted} are used, those whose hash is below "
            f"{share:.6g}: whether a record is one of them follows from "
            f"{'its own content' if self.unit_column is None else 'whose it is'}, and not from other records."
        )
        return replace(used, notes=notes, split=replace(rule, share=share))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record's features."""
        return tuple(self.train_x.shape[1:])

    def note_on_pixels(self, network: str) -> str | None:
        """What to tell somebody whose pixels start at 0, for a network that was trained on pixels from -1 to 1.

        Args:
            network: Its name.

        Returns:
            A note for the operator, or None where some pixels are below 0.
        """
        if float(self.train_x.min()) < 0:
            return None
        return (
            f"{self.name} has pixels from 0 on, and {network} was trained on pixels from -1 to 1. If yours are from 0 "
            "to 1, use 2 * x - 1"
        )

    def inputs(self) -> dict[str, Any]:
        """What a run notes about its inputs, so that its model can be built and used without these records."""
        shape = self.input_shape if self.record_shape is None else self.record_shape
        return {"record": list(shape), "model": list(self.input_shape), "outputs": self.classes}

    @property
    def train(self) -> TensorDataset:
        """The training records as a torch data set of (features, label); with a unit it keeps whose each is."""
        if self.train_units is None or self.unit_column is None:
            return TensorDataset(self.train_x, self.train_y)
        return RowsOfPersons(self.train_x, self.train_y, units=self.train_units, unit_column=self.unit_column)

    @property
    def test(self) -> TensorDataset:
        """The test records as a torch data set of (features, label)."""
        return TensorDataset(self.test_x, self.test_y)
