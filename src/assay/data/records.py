"""Batches of records by index. Tensors are indexed at once; any other torch Dataset is collated as by a DataLoader."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset

from assay._util import seals
from assay.data.loading import PLAIN, Fetched, Key, Loading, fetch_ahead
from assay.errors import ConfigError

_MARKED_TENSORS = 1 << 16
_TARGETS = ("labels", "label", "target", "targets")


class Records:
    """The records of a data set, with batches on one device.

    Args:
        dataset: a map-style data set.
        device: where batches go.

    Raises:
        ConfigError: the data set has no length or no index.
    """

    def __init__(self, dataset: Dataset[Any], device: torch.device | str = "cpu", loading: Loading = PLAIN) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ConfigError(
                "dataset",
                type(dataset).__name__,
                "a map-style data set (with __len__ and __getitem__): private sampling picks records by index",
            )
        self._dataset = dataset
        self.device = torch.device(device)
        self.loading = loading
        # Tensors stay where they are and only batches move, so that the device need not hold all records.
        plain = type(dataset) is TensorDataset and loading.collate_fn is None
        self._tensors = dataset.tensors if plain and isinstance(dataset, TensorDataset) else None

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def dataset(self) -> Dataset[Any]:
        """The data set itself."""
        return self._dataset

    @property
    def draws(self) -> bool:
        """Whether fetching a record may draw random numbers: the data set's own code runs."""
        return self._tensors is None and type(self) is Records

    def all(self) -> Any:
        """Every record, stacked."""
        return self.gather(torch.arange(len(self)))

    def gather(self, index: Tensor) -> Any:
        """The records of these indices, put together."""
        if self._tensors is not None:
            return [t.index_select(0, index).to(self.device, non_blocking=True) for t in self._tensors]
        return self.gather_seeded(index, None)

    def gather_seeded(self, index: Tensor, seed: int | None) -> Any:
        """As `gather`; what the data set draws meanwhile begins at `seed`."""
        return self.placed(Fetched(self._dataset, self.loading.collate)[index.tolist(), seed])

    def placed(self, batch: Any) -> Any:
        """A batch with its tensors on the device; a collator's own kind of mapping becomes a plain dict."""
        if isinstance(batch, Mapping) and type(batch) is not dict:
            batch = dict(batch)
        return pytree.tree_map(lambda v: v.to(self.device, non_blocking=True) if isinstance(v, Tensor) else v, batch)

    def ahead(self, keys: Iterator[Key]) -> Iterator[Any] | None:
        """The batches of these keys, fetched by worker processes; None where this process fetches them.

        Args:
            keys: Which records, and a seed for each batch.
        """
        if self.loading.num_workers == 0 or self._tensors is not None or type(self) is not Records:
            return None
        pin = self.device.type == "cuda"
        return (self.placed(batch) for batch in fetch_ahead(self._dataset, keys, self.loading, pin=pin))

    def digest(self, most: int = 32) -> str:
        """A digest of some records, evenly spaced: it differs where records differ, or are in another order."""
        return self._digest(torch.linspace(0, len(self) - 1, min(most, len(self)), dtype=torch.float64).long())

    def marks(self, most: int = 4096) -> list[str]:
        """A digest of each record, to tell whether another data set has it too.

        Of all records where there are at most `most`, or 65,536 where they are tensors; else of that many at random.
        """
        most = most if self._tensors is None else _MARKED_TENSORS
        places = random.Random(0).sample(range(len(self)), min(most, len(self)))
        return [self._digest(torch.tensor([place])) for place in places]

    def _digest(self, index: Tensor) -> str:
        leaves = pytree.tree_leaves(self.gather_seeded(index, 0) if self.draws else self.gather(index))
        tensors = [("", leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        texts = repr([leaf for leaf in leaves if isinstance(leaf, str | bytes | int | float)])
        return seals.of_tensors([*tensors, ("", torch.tensor(list(texts.encode()), dtype=torch.uint8))])

    def check_pairs(self, field: str) -> None:
        """Refuse records that are neither pairs of input and target nor dicts with labels.

        Raises:
            ConfigError: the first record is no pair.
        """
        if len(self) == 0 or self.loading.collate_fn is not None:
            return
        one = self._dataset[0]
        if isinstance(one, Mapping):
            if not any(name in one for name in _TARGETS):
                shown = f"a dict with {', '.join(map(str, one)) or 'nothing'}"
                raise ConfigError(field, shown, f"a dict with one of {', '.join(_TARGETS)}")
            return
        if not isinstance(one, tuple | list) or len(one) != 2:
            shown = f"{len(one)} values per record" if isinstance(one, tuple | list) else type(one).__name__
            raise ConfigError(
                field, shown, "two values per record, (input, target); a loop of your own may take others"
            )

    def filled(self, index: Tensor, fill: int) -> Any:
        """The records of these indices, followed by `fill` stand-ins.

        Raises:
            ConfigError: a record holds anything but tensors and numbers, which become tensors.
        """
        others, batch = self.stand_ins(fill), self.gather(index)
        if not all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(batch)):
            raise ConfigError(
                "dataset", type(self._dataset).__name__, "records of tensors and numbers with exact noise"
            )
        return pytree.tree_map(lambda a, b: torch.cat([a, b]), batch, others)

    def stand_ins(self, count: int = 1) -> Any:
        """The first records, for a pass through the model in which they do not count.

        The model must be able to take them, and need not be able to take zeros: word ids may begin at 1. Where this
        rank has no records, zeros are all there is.
        """
        return self.gather(torch.arange(count) % len(self)) if len(self) else self.zeros(count)

    def zeros(self, count: int = 1) -> Any:
        """Records of zeros with the shapes of the others. They stand for no record, and say nothing about any.

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
        one = self.gather(torch.zeros(count, dtype=torch.int64))
        return pytree.tree_map(lambda v: torch.zeros_like(v) if isinstance(v, Tensor) else v, one)


def pair(batch: Any) -> tuple[Any, Any]:
    """A batch as (inputs, targets): two things as they are; of a dict, its labels and the rest.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(batch, Mapping):
        name = next((name for name in _TARGETS if name in batch), None)
        if name is not None:
            return {key: value for key, value in batch.items() if key != name}, batch[name]
        raise ConfigError(
            "collate_fn", f"a dict with {', '.join(map(str, batch))}", f"one of {', '.join(_TARGETS)} in it"
        )
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    shown = f"{len(batch)} values" if isinstance(batch, tuple | list) else type(batch).__name__
    raise ConfigError("collate_fn", shown, "batches of two values, (inputs, targets), or a dict with labels")


def call(model: nn.Module, inputs: Any) -> Any:
    """The model's outputs: a dict of inputs is given by name; of an output with `logits` these are the outputs."""
    outputs = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    return outputs.logits if hasattr(outputs, "logits") else outputs
