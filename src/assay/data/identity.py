"""The content of a record as bytes, by which it is recognised whatever its place or its file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset

from assay.data.bundle import DataBundle
from assay.data.records import Records, tensors_of
from assay.data.split import TEST_SHARE, drawn_units, unit_keys
from assay.data.tables import encoding
from assay.data.tables.loading import read
from assay.data.tables.preparing import row_keys
from assay.errors import ConfigError

_CHUNK = 1024


def contents(dataset: Dataset[Any]) -> Iterator[bytes]:
    """The content of each record, one after the other; nothing is kept in memory.

    Floating-point numbers count as float32, whole numbers as int64. So a record is the same whether it comes from a
    file, a tensor or a list of numbers. Records that change at every look (random views) cannot be recognised.

    Args:
        dataset: A map-style data set.

    Returns:
        Bytes for each record, in order.

    Raises:
        ConfigError: The data set has no length or no index.
    """
    records = Records(dataset)
    if (tensors := tensors_of(dataset)) is not None:
        for start in range(0, len(records), _CHUNK):
            chunk = [_numbers(tensor[start : start + _CHUNK]) for tensor in tensors]
            yield from (b"".join(row.tobytes() for row in rows) for rows in zip(*chunk, strict=True))
        return
    for i in range(len(records)):
        yield b"".join(_leaf(leaf) for leaf in pytree.tree_leaves(dataset[i]))


def of_bundle(bundle: DataBundle) -> Iterator[bytes]:
    """What the training records of a data set are recognised by.

    Records that belong to persons are recognised by whose they are, rows of a table by their raw values under any
    schema, and all others by their content.
    """
    if bundle.train_keys is not None:
        return _keys(b"person", bundle.train_keys)
    return contents(bundle.train) if bundle.row_keys is None else _keys(b"row", bundle.row_keys)


def rows_of(bundle: DataBundle) -> Iterator[bytes]:
    """What a data set of records, in place of persons, would be recognised by: all rows, whichever it tests on."""
    return itertools.chain(contents(TensorDataset(bundle.train_x, bundle.train_y)), contents(bundle.test))


def of_table(
    source: Path | str, unit: str | None = None, delimiter: str | None = None, *, whole: bool = False
) -> Iterator[bytes]:
    """The same of the training part of a table, without a schema: all but the fifth that is set aside for testing.

    Args:
        source: The path of a table.
        unit: The column that says whose a row is.
        delimiter: What stands between values, if a schema says that.
        whole: With the fifth, too.

    Raises:
        DataError: The table cannot be read.
        ConfigError: There is no such column.
    """
    found = read(source, delimiter)
    if unit is not None and unit not in found.columns:
        raise ConfigError("unit", unit, f"record, client, or a column of {found.name}: {', '.join(found.columns)}")
    keys = np.unique(row_keys(found) if unit is None else unit_keys(encoding.ids(found, unit)))
    trained = keys if whole else keys[~drawn_units(keys, "test", TEST_SHARE)]
    return _keys(b"row" if unit is None else b"person", torch.from_numpy(trained))


def of_keys(keys: np.ndarray[Any, Any], unit: str | None = None) -> Iterator[bytes]:
    """What rows of a table, or persons, are recognised by, from their keys."""
    return _keys(b"row" if unit is None else b"person", torch.from_numpy(keys))


def _keys(kind: bytes, keys: Tensor) -> Iterator[bytes]:
    return (kind + int(key).to_bytes(8, "little", signed=True) for key in keys.tolist())


def _leaf(leaf: Any) -> bytes:
    if isinstance(leaf, str):
        return leaf.encode("utf-8", "surrogatepass")
    if isinstance(leaf, bytes):
        return leaf
    return _numbers(torch.as_tensor(leaf)).tobytes()


def _numbers(tensor: Tensor) -> np.ndarray[Any, Any]:
    kind = torch.float32 if tensor.is_floating_point() else torch.int64
    return np.ascontiguousarray(tensor.detach().to("cpu", kind).numpy())
