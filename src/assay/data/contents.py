"""The content of a record as bytes, by which it is recognised whatever its place or its file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset

from assay.data.records import Records

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
    if type(dataset) is TensorDataset:
        for start in range(0, len(records), _CHUNK):
            chunk = [_numbers(tensor[start : start + _CHUNK]) for tensor in dataset.tensors]
            yield from (b"".join(row.tobytes() for row in rows) for rows in zip(*chunk, strict=True))
        return
    for i in range(len(records)):
        yield b"".join(_leaf(leaf) for leaf in pytree.tree_leaves(dataset[i]))


def persons(keys: Tensor) -> Iterator[bytes]:
    """The same for persons: bytes from a stable key for each, whatever their records."""
    return (b"person" + int(key).to_bytes(8, "little", signed=True) for key in keys.tolist())


def _leaf(leaf: Any) -> bytes:
    if isinstance(leaf, str):
        return leaf.encode("utf-8", "surrogatepass")
    if isinstance(leaf, bytes):
        return leaf
    return _numbers(torch.as_tensor(leaf)).tobytes()


def _numbers(tensor: Tensor) -> np.ndarray[Any, Any]:
    kind = torch.float32 if tensor.is_floating_point() else torch.int64
    return np.ascontiguousarray(tensor.detach().to("cpu", kind).numpy())
