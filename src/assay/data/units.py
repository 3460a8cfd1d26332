"""The unit of privacy where a person has several rows: who they are, how many rows count, and what is sampled.

Neighbouring data sets differ in one person and all of their rows. There are two ways to train, and a `Unit` says which:

A. *Persons are sampled.* The sampler draws persons. A drawn person brings all rows that are kept for them, their losses
   are averaged, and the gradient of that mean is clipped to C as one.

   Proof. A person is to the sampler what a record is otherwise: one coin, or one place in a batch. Somebody who was not
   drawn adds nothing to a step's sum, somebody who was drawn adds one vector of norm at most C, whatever the number of
   their rows. What others add does not depend on them: the engine shows that rows do not mix, which rows are kept of a
   person follows from that person alone, and a batch is divided by a constant. So one person moves the sum by at most
   C, and the steps cost what they cost for records, with persons in the place of records. ∎

B. *Rows are sampled*, each by a coin of its own and clipped to C by itself. A person with at most k rows moves the sum
   by as many times C as there are heads among their coins: a mixture of Gaussians with the masses of Binomial(k, q),
   which covers everybody with k rows or fewer (`assay.accounting.mixtures` has the proof; Charles et al. 2024,
   arXiv:2407.07737). Without sampling the sum moves by at most k C, so that the noise multiplier of a person is that of
   a row divided by k.

In both ways at most k rows of a person are kept: those with the least keyed hash of their content. Whether a row is
kept depends on that person's rows only, so adding or removing somebody else changes nothing. In way A the limit is a
matter of memory and time, and may be left out; in way B ε rests on it.

The numbers of persons, and in way B of rows, are taken to be public, as the number of records is otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from assay.data.loading import Key
from assay.data.records import Records
from assay.errors import ConfigError, check_fields

Ids = Tensor | Sequence[int] | Sequence[str]
"""Whose each row is."""

_KEY = b"assay: rows of a person, 1"


class Sampled(StrEnum):
    """What the sampler draws."""

    PERSONS = "persons"
    ROWS = "rows"


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What ε protects: a person with all of their rows.

    Attributes:
        name: What the persons are called, as in the column that names them: `patient_id`.
        persons: How many there are. Public.
        rows: How many rows of a person are kept at the most, k; None keeps all of them, where persons are sampled.
        sampled: Whether batches are drawn from persons or from rows.

    Raises:
        ConfigError: A value is out of its range, or rows are sampled without a limit.

    Example:
        >>> str(Unit(name="patient_id", persons=500, rows=4))
        'one patient_id with all of their rows'
    """

    name: str
    persons: int
    rows: int | None = None
    sampled: Sampled = Sampled.PERSONS

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError("unit", self.name, "the name of the column that says whose a row is")
        if not isinstance(self.persons, int) or isinstance(self.persons, bool) or self.persons < 1:
            raise ConfigError("unit.persons", self.persons, "a whole number, 1 or above")
        if not isinstance(self.sampled, Sampled):
            raise ConfigError("unit_sampling", self.sampled, "Sampled.PERSONS or Sampled.ROWS")
        if self.rows is not None and (not isinstance(self.rows, int) or isinstance(self.rows, bool) or self.rows < 1):
            raise ConfigError("unit_rows", self.rows, "a whole number, 1 or above")
        if self.rows is None and self.sampled is Sampled.ROWS:
            raise ConfigError("unit_rows", None, "how many rows of a person count at the most: ε rests on it")

    def __str__(self) -> str:
        return f"one {self.name} with all of their rows"

    @property
    def whole(self) -> bool:
        """Whether a person is sampled and clipped as one."""
        return self.sampled is Sampled.PERSONS

    def describe(self) -> str:
        """How it works, for the statement."""
        if self.whole:
            kept = "all rows" if self.rows is None else f"at most {self.rows} rows"
            return (
                f"persons are sampled; {kept} of each are used, the gradient of the mean of their losses is bounded as "
                "one"
            )
        return (
            f"rows are sampled, at most {self.rows} of each person are used, and ε accounts for all of a person's rows "
            "together (a mixture of Gaussians; Charles et al. 2024)"
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {**asdict(self), "sampled": self.sampled.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Unit:
        """What `to_json` wrote.

        Raises:
            ConfigError: A field is not known, missing or out of its range.
        """
        check_fields("plan.unit", data, [f.name for f in fields(cls)])
        known = dict(data)
        if not {"name", "persons"} <= known.keys():
            raise ConfigError("plan.unit", sorted(known), "an object with name and persons")
        return cls(**{**known, "sampled": parse_sampled(known.get("sampled", "persons"))})


def parse_sampled(text: str) -> Sampled:
    """What is sampled, by its name: `persons` or `rows`.

    Raises:
        ConfigError: It is neither.
    """
    try:
        return Sampled(text)
    except ValueError:
        raise ConfigError("unit_sampling", text, "persons or rows") from None


def numbered(ids: Ids | np.ndarray[Any, Any]) -> Tensor:
    """Whose each row is, as numbers from 0 to persons - 1.

    Args:
        ids: One id for each row: whole numbers or texts.

    Raises:
        ConfigError: They are not one-dimensional, empty, or neither whole numbers nor texts.

    Example:
        >>> numbered(["b", "a", "b"])
        tensor([1, 0, 1])
    """
    values = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
    if values.ndim != 1 or len(values) == 0:
        raise ConfigError("units", f"shape {values.shape}", "one id for each row")
    if values.dtype.kind not in "iuUS":
        raise ConfigError("units", f"ids of type {values.dtype}", "whole numbers or texts, one for each row")
    return torch.from_numpy(np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64))


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

    def zeros(self, count: int = 1) -> Any:
        """Rows of zeros, shaped like the others."""
        return self.rows.zeros(count)

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
    hashes = np.array([row_hash(records.dataset[int(i)]) for i in rows], dtype=np.uint64)
    order = np.lexsort((hashes, owner[rows].numpy()))
    whose = owner[rows].numpy()[order]
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(whose)) + 1])
    rank = np.arange(len(whose)) - np.repeat(firsts, np.diff([*firsts, len(whose)]))
    kept[rows[torch.from_numpy(order[rank >= most])]] = False
    return kept


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
