"""What the user of a trainer gives as records: whether they can be drawn one by one, and put together."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterableDataset

from assay.data.records import Records
from assay.errors import ConfigError

_SOME = 5


def check_dataset(dataset: Any, field: str) -> None:
    """Refuse what records cannot be drawn from, each with the same probability.

    Args:
        dataset: The training records.
        field: The argument that they come from.

    Raises:
        ConfigError: There are none, or they come in an order of their own.
    """
    if dataset is None:
        raise ConfigError(field, None, "the records to train on")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or isinstance(dataset, IterableDataset):
        raise ConfigError(
            field,
            type(dataset).__name__,
            "records with a length and an index: Poisson sampling draws each with the same probability, and a stream "
            "gives them in an order of its own. Read it into a list or a datasets.Dataset first",
        )
    if not len(dataset):
        raise ConfigError(field, "no records", "at least one record")


def check_together(records: Records, field: str, function: Any, instead: str) -> None:
    """Refuse a way of putting records together that fails on some of them.

    Args:
        records: All records.
        field: The argument that says how.
        function: Its value.
        instead: What puts records of different lengths together.

    Raises:
        ConfigError: It fails.
    """
    some = torch.linspace(0, len(records) - 1, min(len(records), _SOME), dtype=torch.float64).long()
    try:
        records.gather(some)
    except Exception as error:  # the user's own data set and function, which may fail in any way
        raise ConfigError(
            field,
            getattr(function, "__name__", type(function).__name__),
            f"one that puts {len(some)} of these records together ({instead}). Here it failed with "
            f"{type(error).__name__}: {error}",
        ) from error
