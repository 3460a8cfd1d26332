"""The rows of persons: whose each is, which are kept, and how a batch is fetched. `assay.data.units` says why."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from assay.data.ids import fault, texts_of
from assay.data.records import Key, Records, seeded
from assay.data.units import Unit
from assay.errors import ConfigError

Ids = Tensor | Sequence[int] | Sequence[str]
"""Whose each row is."""

_IDS = "whole numbers or texts, one for each row, and not both"
_KEY = b"assay: rows of a person, 1"
_TWICE = 8  # rows that are fetched again, to tell whether a data set draws from a generator of its own


def numbered(ids: Ids | np.ndarray[Any, Any]) -> Tensor:
    """Whose each row is, as numbers from 0 to persons - 1.

    Args:
        ids: One id for each row: whole numbers or texts.

    Raises:
        ConfigError: They are not one-dimensional, empty, or neither whole numbers nor texts; an id is missing; or two
            are likely one person's (`assay.data.ids`).

    Example:
        >>> numbered(["b", "a", "b"])
        tensor([1, 0, 1])
    """
    given = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else ids
    values = np.asarray(given)
    if values.ndim != 1 or len(values) == 0:
        raise ConfigError("units", f"shape {values.shape}", "one id for each row")
    if values.dtype.kind == "U" and getattr(getattr(given, "dtype", None), "kind", "O") != "U":
        values = np.asarray(given, dtype=object)  # numpy makes texts of a list of 7, 7.0 and "7": two persons
    if values.dtype.kind == "O" and all(isinstance(one, str) for one in values.tolist()):
        values = values.astype(str)
    if values.dtype.kind not in "iuUS":
        kinds = {type(one).__name__ for one in values.tolist()} if values.dtype.kind == "O" else {str(values.dtype)}
        raise ConfigError("units", f"ids of type {' and '.join(sorted(kinds))}", _IDS)
    found, numbers = np.unique(values, return_inverse=True)
    numbers = numbers.reshape(-1).astype(np.int64)
    # whole numbers are one person's only if they are equal: of them, the marks of a missing value are looked for
    texts = texts_of(found if found.dtype.kind in "US" else found[found < 0])
    if (wrong := fault(texts)) is not None:
        row = int((numbers == wrong[0]).argmax())
        raise ConfigError("units", f"{texts[wrong[0]]!r} (row {row})", wrong[1])
    return torch.from_numpy(numbers)


def rows_kept(ids: Ids, most: int | None) -> int:
    """How many rows are left when at most `most` of each person are kept: the records of a plan that samples rows.

    Example:
        >>> rows_kept(["a", "a", "a", "b"], 2)
        3
    """
    counts = torch.bincount(numbered(ids))
    return int((counts if most is None else counts.clamp(max=most)).sum())


class UnitRecords(Records):
    """Records of which several may belong to one person. What an index means is what the unit samples.

    Where persons are sampled, `len` is the number of persons, an index names a person, and `gather` gives the rows of
    these persons, one person after the other, `counts` says how many each has. Where rows are sampled, an index names
    one of the rows that are kept.

    Attributes:
        unit: Who is protected.
        rows: All rows, whoever they belong to.
        owner: Whose each of them is, as numbers from 0 on.
    """

    def __init__(self, records: Records, ids: Ids, unit: Unit) -> None:
        owner = numbered(ids)
        if len(owner) != len(records):
            raise ConfigError("units", f"{len(owner)} ids", f"one for each of the {len(records)} rows")
        super().__init__(records.dataset, records.device, records.loading)
        self.unit, self.rows, self.owner = unit, records, owner
        kept = _kept(records, owner, unit.rows)
        self._kept, self._counts = _by_person(owner, kept)
        if not unit.whole:
            self._kept = torch.nonzero(kept).flatten()
        self._starts = self._counts.cumsum(0) - self._counts

    def __len__(self) -> int:
        return len(self._counts) if self.unit.whole else len(self._kept)

    @property
    def persons(self) -> int:
        """How many persons there are."""
        return len(self._counts)

    def counts(self, index: Tensor) -> Tensor:
        """How many rows each of these persons has."""
        return self._counts[index]

    def gather(self, index: Tensor) -> Any:
        """The rows of these persons, stacked; or these rows."""
        return self.rows.gather(self.places_of(index))

    @property
    def draws(self) -> bool:
        """Whether fetching a row may draw random numbers."""
        return self.rows.draws

    def gather_seeded(self, index: Tensor, seed: int | None) -> Any:
        """As `gather`; what the data set draws meanwhile begins at `seed`."""
        return self.rows.gather_seeded(self.places_of(index), seed)

    def ahead(self, keys: Iterator[Key]) -> Iterator[Any] | None:
        """The batches of these persons, or rows, fetched by worker processes; None where this process fetches them."""
        return self.rows.ahead((self.places_of(torch.tensor(index)).tolist(), seed) for index, seed in keys)

    def digest(self, most: int = 32) -> str:
        """A digest of some persons, as of records, and of whose each row is."""
        return hashlib.sha256(super().digest(most).encode() + self.owner.numpy().tobytes()).hexdigest()

    def zeros(self, count: int = 1) -> Any:
        """Rows of zeros, shaped like the others."""
        return self.rows.zeros(count)

    def stand_ins(self, count: int = 1) -> Any:
        """The first rows, for a pass through the model in which they do not count."""
        return self.rows.stand_ins(count)

    def places_of(self, index: Tensor) -> Tensor:
        """Where the rows of these persons, or these rows, are in the data set."""
        if not self.unit.whole:
            return self._kept[index]
        counts = self._counts[index]
        first = (self._starts[index] - (counts.cumsum(0) - counts)).repeat_interleave(counts)
        return self._kept[first + torch.arange(len(first))]


def _by_person(owner: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that are kept, one person after the other, and how many each person has."""
    rows = torch.nonzero(kept).flatten()
    order = owner[rows].argsort(stable=True)
    return rows[order], torch.bincount(owner[rows], minlength=int(owner.max()) + 1)


def _kept(records: Records, owner: Tensor, most: int | None) -> Tensor:
    """Which rows are kept: of each person the `most` with the least keyed hash. Equal hashes mean equal content."""
    kept = torch.ones(len(owner), dtype=torch.bool)
    counts = torch.bincount(owner)
    if most is None or int(counts.max()) <= most:
        return kept
    rows = torch.nonzero(counts[owner] > most).flatten()
    hashes = np.array([_looked_at(records, int(i)) for i in rows], dtype=np.uint64)
    for place in range(min(_TWICE, len(rows))):
        if _looked_at(records, int(rows[place])) != hashes[place]:
            raise ConfigError(
                "dataset",
                f"row {int(rows[place])}, which is another one when it is fetched again",
                f"rows that draw from torch, NumPy or random alone, or at most {most} rows of each person: which rows "
                "are kept must follow from what they hold",
            )
    order = np.lexsort((hashes, owner[rows].numpy()))
    whose = owner[rows].numpy()[order]
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(whose)) + 1])
    rank = np.arange(len(whose)) - np.repeat(firsts, np.diff([*firsts, len(whose)]))
    kept[rows[torch.from_numpy(order[rank >= most])]] = False
    return kept


def _looked_at(records: Records, i: int) -> int:
    """The hash of a row whose random draws are the same at every look: other rows do not decide what it draws."""
    with seeded(0) if records.draws else nullcontext():
        return row_hash(records.dataset[i])


def row_hash(row: Any) -> int:
    """A keyed hash of what a row holds.

    Raises:
        ConfigError: It holds something else than tensors, arrays, numbers, texts and bytes.
    """
    found = hashlib.blake2b(digest_size=8, key=_KEY)
    for leaf in pytree.tree_leaves(row):
        if isinstance(leaf, Tensor | np.ndarray):
            values = leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf
            found.update(f"{values.dtype}{values.shape}".encode())
            found.update(np.ascontiguousarray(values).tobytes())
        elif isinstance(leaf, bool | int | float | str | bytes | np.generic | None):
            found.update(f"{type(leaf).__name__}{leaf!r}".encode())
        else:
            raise ConfigError(
                "dataset",
                f"rows that hold {type(leaf).__name__}",
                "rows of tensors, arrays, numbers and texts, or at most as many rows of each person as are kept",
            )
    return int.from_bytes(found.digest(), "little")
