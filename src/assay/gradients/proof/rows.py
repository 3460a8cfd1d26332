"""What a model is called with, as tensors with one row per record, and back.

Checks replace records by others, so they must know where a record's numbers are. Mostly that is a row of each tensor.
There are three other ways to hand over a batch:

- a `PackedSequence`, which holds the first steps of all records, then the second ones, and so on;
- a bag: the words of all records in one tensor, and where each record begins, as `nn.EmbeddingBag` takes them;
- tensors with the records in their second dimension (`batch_first=False`), where none has them in the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree


@dataclass(slots=True)
class Where:
    """Which dimension of a model's arguments is the records'. The first batch that can tell decides it for good."""

    second: bool | None = None

    def of_output(self, t: Tensor, records: int) -> int | None:
        """The dimension of the records in what the model returned; None if it has none, or two that could be it.

        Args:
            t: What the model returned.
            records: How many records there are.
        """
        first, second = _has(t, 0, records), _has(t, 1, records)
        if not self.second:
            return 0 if first else None
        return None if first == second else 1 if second else 0


class Rows:
    """The arguments of a call, with one row per record, and what makes arguments of them again.

    Args:
        given: The arguments, in tuples, lists and dicts.
        records: How many records there are.
        where: What earlier batches showed; a batch with as many steps as records cannot tell.
    """

    def __init__(self, given: Any, records: int, where: Where) -> None:
        leaves, self._spec = pytree.tree_flatten(given, is_leaf=_is_packed)
        bag = _bag(leaves, records)
        flat = [len(v) for v in leaves if isinstance(v, Tensor) and v.dim() == 1]
        self._words = next((length for length in flat if length != records), records)
        self._second = where.second
        if self._second is None:
            self._second = bag is None and not any(_is_packed(v) or _has(v, 0, records) for v in leaves)
            if not any(_has(v, 0, records) and _has(v, 1, records) for v in leaves):
                where.second = self._second
        self._ways = [self._way(leaf, i, bag, records) for i, leaf in enumerate(leaves)]
        offsets = None if bag is None else leaves[bag]
        self.values = [_opened(leaf, way, offsets, self._words) for leaf, way in zip(leaves, self._ways, strict=True)]

    def _way(self, leaf: Any, place: int, bag: int | None, records: int) -> str:
        if _is_packed(leaf):
            return "packed"
        if self._second and _has(leaf, 1, records):
            return "second"
        if bag is not None and isinstance(leaf, Tensor) and leaf.dim() == 1:
            return "offsets" if place == bag else "words" if len(leaf) == self._words else ""
        return ""

    def closed(self, values: list[Any]) -> Any:
        """The arguments that these rows stand for.

        Args:
            values: Rows, in place of `self.values`.
        """
        leaves = list(map(_closed, values, self._ways, self.values))
        return pytree.tree_unflatten(leaves, self._spec)


def opened(output: Any) -> Any:
    """What a model returned, with packed sequences as tensors with one row per record, to be compared.

    Such a row is a sum over the record's steps in which no two steps count alike: its shape does not depend on how long
    other records are.

    Args:
        output: Tensors, and packed sequences of them, in tuples, lists and dicts.
    """
    return pytree.tree_map(lambda v: _summed(v) if _is_packed(v) else v, output, is_leaf=_is_packed)


def _is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def _has(value: Any, dim: int, records: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > dim and value.shape[dim] == records


def _bag(leaves: list[Any], records: int) -> int | None:
    """Which of these says where each record begins, if one does: whole numbers from 0 that never fall."""
    flat = {i: v for i, v in enumerate(leaves) if isinstance(v, Tensor) and v.dim() == 1 and len(v) > 0}
    words = [len(v) for v in flat.values() if len(v) != records] or [records]
    if len(flat) < 2 or len(set(words)) > 1:
        return None
    for place, v in reversed(flat.items()):  # the words come first
        if len(v) != records or v.dtype not in (torch.int64, torch.int32) or int(v[0]) != 0:
            continue
        if bool((v.diff() >= 0).all()) and (words[0] != records or int(v[-1]) == records - 1):
            return place if int(v[-1]) <= words[0] else None
    return None


def _padded(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    padded, lengths = pad_packed_sequence(packed, batch_first=True)
    return padded, lengths


def _sizes(offsets: Tensor, words: int) -> Tensor:
    return torch.diff(offsets, append=offsets.new_tensor([words]))


def _summed(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    padded, lengths = _padded(packed)
    weights = 1.5 + torch.arange(1, padded.shape[1] + 1, dtype=torch.float64).cos()
    return torch.tensordot(weights.to(padded), padded, ([0], [1])), lengths


def _opened(leaf: Any, way: str, offsets: Any, words: int) -> Any:
    if way == "packed":
        return _padded(leaf)
    if way == "second":
        return leaf.transpose(0, 1)
    if way == "offsets":
        return _sizes(leaf, words)
    if way == "words":
        sizes = _sizes(offsets, words)
        rows = leaf.new_zeros(len(offsets), int(sizes.max()))
        rows[_mask(sizes, rows)] = leaf
        return rows, sizes
    return leaf


def _closed(value: Any, way: str, opened: Any) -> Any:
    if way == "second":
        return value.transpose(0, 1)
    if way == "offsets":
        sizes = _kept_sizes(value, opened)
        return sizes.cumsum(0) - sizes
    if way in ("packed", "words"):
        rows, sizes = value[0], _kept_sizes(value[1], opened[1])
        if way == "words":
            return rows[_mask(sizes, rows)]
        return pack_padded_sequence(rows, sizes.cpu(), batch_first=True, enforce_sorted=False)
    return value


def _kept_sizes(sizes: Tensor, opened: Tensor) -> Tensor:
    """Zeros in place of a record are zeros of its length: torch crashes on a bag of no words at all."""
    return sizes if bool(sizes.any()) else opened


def _mask(sizes: Tensor, rows: Tensor) -> Tensor:
    return torch.arange(rows.shape[1], device=rows.device) < sizes.to(rows.device).unsqueeze(1)
