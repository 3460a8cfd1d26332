"""What every data source hands over: tensors, and the public facts that the privacy statement needs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from assay.data.split import BY_CONTENT, POSITION, SplitRule, drawn
from assay.errors import ConfigError


@dataclass(frozen=True, kw_only=True, eq=False)
class DataBundle:
    """A data set that is ready to train on.

    Guaranteed: features are float32 and labels int64, one label a record, every label in [0, classes), and
    both splits hold records of one shape. `unit` says what one record is, because that is what ε protects;
    `notes` says how the features were made and what of the data is taken to be public; `source` names the
    place it came from (never an absolute path, which would tell about the machine); `split` says how records were
    assigned to parts, so that a run can be given the same ones again.
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

    def __post_init__(self) -> None:
        for split, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            if x.dtype != torch.float32 or x.dim() < 2:
                shown = f"{x.dtype} of shape {tuple(x.shape)}"
                raise ConfigError(f"{split}_x", shown, "float32 of shape (records, features...)")
            if y.dtype != torch.int64 or y.shape != x.shape[:1]:
                shown = f"{y.dtype} of shape {tuple(y.shape)}"
                raise ConfigError(f"{split}_y", shown, f"int64 of shape ({len(x)},), one label a record")
            if len(y) == 0:
                raise ConfigError(f"{split}_x", "no records", "at least one record")
            if not 0 <= int(y.min()) <= int(y.max()) < self.classes:
                shown = f"labels from {int(y.min())} to {int(y.max())}"
                raise ConfigError(f"{split}_y", shown, f"labels from 0 to {self.classes - 1}")
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            accepted = f"records of shape {self.input_shape}, as in train_x"
            raise ConfigError("test_x", tuple(self.test_x.shape[1:]), accepted)

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
            return replace(self, train_x=self.train_x[:records], train_y=self.train_y[:records], split=rule)
        share = rule.share if records is None else records / there
        if share is None or share == 1:
            return self
        kept = torch.from_numpy(drawn(self.train_x.numpy(), self.train_y.numpy(), "records", share))
        if not kept.any():
            raise ConfigError(
                "records", records, f"more of the {there} training records: none was drawn for so small a share"
            )
        notes = (
            f"{self.notes} Of the {there} training records {int(kept.sum())} are used, those whose hash is below {share:.6g}: whether a "
            "record is one of them follows from its own content, and not from other records."
        )
        split = replace(rule, share=share)
        return replace(self, train_x=self.train_x[kept], train_y=self.train_y[kept], notes=notes, split=split)

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
