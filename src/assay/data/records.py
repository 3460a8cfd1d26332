"""Batches of records by index. Tensors are indexed at once; any other torch Dataset is collated as by a DataLoader."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset, default_collate

from assay.errors import ConfigError


class Records:
    """The records of a data set, with batches on one device.

    Args:
        dataset: a map-style data set.
        device: where batches go.

    Raises:
        ConfigError: the data set has no length or no index.
    """

    def __init__(self, dataset: Dataset[Any], device: torch.device | str = "cpu") -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ConfigError(
                "dataset",
                type(dataset).__name__,
                "a map-style data set (with __len__ and __getitem__): private sampling picks records by index",
            )
        self._dataset = dataset
        self.device = torch.device(device)
        # Tensors stay where they are and only batches move, so that the device need not hold all records.
        self._tensors = dataset.tensors if type(dataset) is TensorDataset else None

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def dataset(self) -> Dataset[Any]:
        """The data set itself."""
        return self._dataset

    def all(self) -> Any:
        """Every record, stacked."""
        return self.gather(torch.arange(len(self)))

    def gather(self, index: Tensor) -> Any:
        """The records of these indices, stacked."""
        if self._tensors is not None:
            return [t.index_select(0, index).to(self.device, non_blocking=True) for t in self._tensors]
        batch = default_collate([self._dataset[i] for i in index.tolist()])
        return pytree.tree_map(lambda v: v.to(self.device) if isinstance(v, Tensor) else v, batch)

    def check_pairs(self, field: str) -> None:
        """Refuse records that are not pairs of input and target.

        Raises:
            ConfigError: the first record is no pair.
        """
        if len(self) == 0:
            return
        one = self._dataset[0]
        if not isinstance(one, tuple | list) or len(one) != 2:
            shown = f"{len(one)} values per record" if isinstance(one, tuple | list) else type(one).__name__
            raise ConfigError(
                field, shown, "two values per record, (input, target); a loop of your own may take others"
            )

    def filled(self, index: Tensor, fill: int) -> Any:
        """The records of these indices, followed by `fill` records of zeros.

        Raises:
            ConfigError: a record holds anything but tensors and numbers, which become tensors.
        """
        batch, zeros = self.gather(index), self.zeros(fill)
        if not all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(batch)):
            raise ConfigError(
                "dataset", type(self._dataset).__name__, "records of tensors and numbers with exact noise"
            )
        return pytree.tree_map(lambda a, b: torch.cat([a, b]), batch, zeros)

    def zeros(self, count: int = 1) -> Any:
        """Records of zeros with the shapes of the others. They replace an empty batch and say nothing about any record.

        Raises:
            ConfigError: there is no record to take the shapes from.
        """
        if self._tensors is not None:  # there may be no records
            return [torch.zeros(count, *t.shape[1:], dtype=t.dtype, device=self.device) for t in self._tensors]
        if len(self) == 0:
            raise ConfigError(
                "dataset",
                "no records",
                "a TensorDataset on a rank without records: what a record looks like must be known",
            )
        return pytree.tree_map(
            lambda v: torch.zeros_like(v) if isinstance(v, Tensor) else v,
            self.gather(torch.zeros(count, dtype=torch.int64)),
        )
