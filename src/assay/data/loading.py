"""How records are fetched and put together: what a torch `DataLoader` is told, and worker processes that fetch ahead.

The main process alone draws which records are in a batch. A worker gets indices, and a seed for what the data set
itself draws (a random crop); it never sees the randomness of the run. The seed of each part of a batch is drawn from a
stream of its own, secret without a seed of the run. So results do not depend on the number of workers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from assay.errors import ConfigError

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
