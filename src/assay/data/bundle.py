"""What every data source hands over: tensors, and the public facts that the privacy statement needs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from assay.errors import ConfigError


@dataclass(frozen=True, kw_only=True, eq=False)
class DataBundle:
    """A data set that is ready to train on.

    Guaranteed: features are float32 and labels int64, one label a record, every label in [0, classes), and
    both splits hold records of one shape. `unit` says what one record is, because that is what ε protects;
    `notes` says how the features were made and what of the data is taken to be public; `source` names the
    place it came from (never an absolute path, which would tell about the machine).
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
