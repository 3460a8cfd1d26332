"""Batches of records by index. Tensors are indexed at once; any other torch Dataset is collated as by a DataLoader.

`Loading` says how: what a `DataLoader` would be told, and worker processes that fetch ahead. The main process alone
draws which records are in a batch. A worker gets indices, and a seed for what the data set itself draws (a random
crop); it never sees the randomness of the run. The seed of each part of a batch is drawn from a stream of its own,
secret without a seed of the run. So results do not depend on the number of workers.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from assay._util import seals
from assay.errors import ConfigError

_MARKED_TENSORS, _LEAST_MARKS = 1 << 16, 32
Collate = Callable[[list[Any]], Any]
PREFETCH = 4
"""Twice torch's own: workers must not stand still while the first batch is proven, which takes as long as a few."""
Key = tuple[list[int], int | None]
"""Which records, in order, and the seed for what the data set draws while it fetches them."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """What a `DataLoader` would be told.

    Args:
        collate_fn: Puts records together into a batch; every tensor in it must have the records as its first dimension.
            None is torch's `default_collate`.
        num_workers: Processes that fetch records while the model trains; 0 fetches them in this one.
        pin_memory: Put batches into pinned memory, for faster copies to a GPU.
        prefetch_factor: How many parts of batches each worker fetches ahead.

    Raises:
        ConfigError: A number is out of its range.
    """

    collate_fn: Collate | None = None
    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int = PREFETCH

    def __post_init__(self) -> None:
        for name, least in (("num_workers", 0), ("prefetch_factor", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(name, value, f"a whole number, {least} or above")
        if self.collate_fn is not None and not callable(self.collate_fn):
            raise ConfigError("collate_fn", self.collate_fn, "a function that takes a list of records")

    @property
    def collate(self) -> Collate:
        """The function that puts records together."""
        return default_collate if self.collate_fn is None else self.collate_fn


PLAIN = Loading()
"""In this process, by torch's `default_collate`."""


class Fetched(Dataset[Any]):
    """A data set of batches: a key is indices and a seed, and its item the batch.

    Worker processes hold a copy of it.
    """

    def __init__(self, dataset: Dataset[Any], collate: Collate) -> None:
        self.dataset, self.collate = dataset, collate

    def __getitem__(self, key: Key) -> Any:
        index, seed = key
        if seed is None:
            return self._batch(index)
        with seeded(seed):
            return self._batch(index)

    def _batch(self, index: list[int]) -> Any:
        together = getattr(self.dataset, "__getitems__", None)
        records = [self.dataset[i] for i in index] if together is None else together(index)
        return self.collate(list(records))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What data sets draw from (torch, random, numpy) begins at `seed`, and is afterwards as it was before."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # of the CPU: records are not made on a GPU
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _as_it_is(batch: Any) -> Any:
    return batch


def fetch_ahead(dataset: Dataset[Any], keys: Iterator[Key], loading: Loading, *, pin: bool) -> Iterator[Any]:
    """The batches of these keys, in order, fetched by worker processes.

    Args:
        dataset: The records.
        keys: Drawn from in this process, `num_workers` times `prefetch_factor` keys ahead.
        loading: How many workers, and how records are put together.
        pin: Whether batches go to a GPU.

    Returns:
        An iterator; the workers end with it.
    """
    loader = DataLoader(
        Fetched(dataset, loading.collate),
        batch_size=None,
        sampler=_Keys(keys),
        num_workers=loading.num_workers,
        prefetch_factor=loading.prefetch_factor,
        pin_memory=loading.pin_memory and pin,
        collate_fn=_as_it_is,
        # A generator of its own: the seed that a loader draws for its workers must not come from the run's.
        generator=torch.Generator().manual_seed(0),
    )
    return iter(loader)


class _Keys(Sequence[Key]):
    """Keys for a loader, once; nobody asks for their number."""

    def __init__(self, keys: Iterator[Key]) -> None:
        self._keys = keys

    def __iter__(self) -> Iterator[Key]:
        return self._keys

    def __len__(self) -> int:
        raise TypeError("the number of batches is not known")

    def __getitem__(self, at: Any) -> Any:
        raise TypeError("keys come one after the other")


_TARGETS = ("labels", "label", "target", "targets")


class RowsOfPersons(TensorDataset):
    """Rows that were loaded with a unit. They keep whose they are, so that no run takes each for a person by mistake.

    Args:
        tensors: As for `TensorDataset`.
        units: The number of each row's person.
        unit_column: What says whose a row is.
    """

    def __init__(self, *tensors: Tensor, units: Tensor, unit_column: str) -> None:
        super().__init__(*tensors)
        self.units, self.unit_column = units, unit_column


def units_of(dataset: Dataset[Any]) -> Tensor | None:
    """Whose each row is, if the data set knows it itself: one that was loaded with a unit, or a part of one."""
    if isinstance(dataset, Subset):
        whole = units_of(dataset.dataset)
        return None if whole is None else whole[torch.as_tensor(dataset.indices)]
    return dataset.units if isinstance(dataset, RowsOfPersons) else None


def tensors_of(dataset: Dataset[Any]) -> tuple[Tensor, ...] | None:
    """The tensors that a data set is made of; None where its own code gives the records."""
    plain = type(dataset) in (TensorDataset, RowsOfPersons)
    return dataset.tensors if plain and isinstance(dataset, TensorDataset) else None


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
            accepted = "a map-style data set (with __len__ and __getitem__): private sampling picks records by index"
            if isinstance(dataset, DataLoader):
                accepted = f"the loader's .dataset: {accepted}"
            raise ConfigError("dataset", type(dataset).__name__, accepted)
        self._dataset = dataset
        self.device = torch.device(device)
        self.loading = loading
        # Tensors stay where they are and only batches move, so that the device need not hold all records.
        self._tensors = tensors_of(dataset) if loading.collate_fn is None else None

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def dataset(self) -> Dataset[Any]:
        """The data set itself."""
        return self._dataset

    @property
    def writes(self) -> tuple[int, ...]:
        """How often torch has written into each tensor of the data set, as far as that is known."""
        return tuple(t._version for t in self._tensors or () if not t.is_inference())

    @property
    def plain(self) -> bool:
        """Whether records are rows of tensors, put together by torch: none can then enter the row of another."""
        return self._tensors is not None

    @property
    def draws(self) -> bool:
        """Whether fetching a record may draw random numbers: the data set's own code runs."""
        return self._tensors is None and type(self) is Records

    @property
    def may_pad(self) -> bool:
        """Whether code that is not torch's puts records together: it may pad each to the longest of its batch."""
        return self.loading.collate_fn is not None or hasattr(self._dataset, "__getitems__")

    def places_of(self, index: Tensor) -> Tensor:
        """Where the rows of these indices are in the data set."""
        return index

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

    def marks(self, most: int = 4096, tensors: int = _MARKED_TENSORS, seconds: float = math.inf) -> list[str]:
        """A digest of each record, to tell whether another data set has it too.

        Of all records where there are at most `most`, or `tensors` where they are tensors; else of that many at random.
        No more are fetched after about `seconds`, but for the first 32.
        """
        most, began = most if self._tensors is None else tensors, time.monotonic()
        places = random.Random(0).sample(range(len(self)), min(most, len(self)))
        size = 1 if self._tensors is None else _LEAST_MARKS  # few: a record may be large
        at_once = [places[start : start + size] for start in range(0, len(places), size)]
        found: list[str] = []
        for some in at_once:
            if len(found) >= _LEAST_MARKS and time.monotonic() - began > seconds:
                break
            found += self._marks(torch.tensor(some))
        return found

    def _marks(self, index: Tensor) -> list[str]:
        tensors, texts = self._leaves(index)
        rows = [t.cpu().reshape(len(index), -1).contiguous().view(torch.uint8) for t in tensors]
        plain = torch.cat(rows, 1).numpy() if rows else [b""] * len(index)
        return [sha256(bytes(row) + texts).hexdigest() for row in plain]

    def _digest(self, index: Tensor) -> str:
        tensors, texts = self._leaves(index)
        return seals.of_tensors([("", t) for t in (*tensors, torch.tensor(list(texts), dtype=torch.uint8))])

    def _leaves(self, index: Tensor) -> tuple[list[Tensor], bytes]:
        """The tensors of these records, and everything else in them as text."""
        leaves = pytree.tree_leaves(self.gather_seeded(index, 0) if self.draws else self.gather(index))
        others = [leaf for leaf in leaves if isinstance(leaf, str | bytes | int | float)]
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)], repr(others).encode()

    def check_pairs(self, field: str) -> None:
        """Refuse records that are neither pairs of input and target nor dicts with labels.

        Raises:
            ConfigError: the first record is not a pair.
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
