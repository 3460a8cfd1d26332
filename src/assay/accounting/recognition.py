"""Which records a budget covers: a keyed hash of each, in a file that only the holder of the data may read.

The key is random and stands in the same file. Whoever has the file can therefore test whether a record that they can
guess is among those of the budget. The file is as private as the records themselves, and stays with them: mode 0600,
never part of a run, never published. What leaves is a digest over the key and all hashes, which tells nothing without
the key.

Budgets that lie side by side are compared, so that no records have two. Where a budget protects persons, its file knows
the rows of their table, too: a budget of rows and one of persons on one table would each miss what the other spends.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay._util.files import replace_file
from assay.accounting.adjacency import CLIENT, RECORD
from assay.errors import AssayError, ConfigError

Tags = NDArray[np.uint64]
_MAGIC = b"assay.records/1\n"
_KEY, _DIGEST = 32, 32


@dataclass(frozen=True)
class Recognised:
    """Records that were looked up in a budget.

    Attributes:
        records: How many different ones there are.
        known: How many of them the budget covers.
        digest: A keyed SHA-256 of all of them, the same in any order; it says nothing without the budget's key.
    """

    records: int
    known: int
    digest: str


@dataclass(frozen=True)
class KnownRecords:
    """The key, and the hashes of all records that are covered, ascending."""

    key: bytes
    tags: Tags

    @classmethod
    def empty(cls) -> KnownRecords:
        """No records, and a new key."""
        return cls(secrets.token_bytes(_KEY), np.empty(0, np.uint64))

    @classmethod
    def read(cls, path: Path) -> KnownRecords:
        """The file.

        Raises:
            AssayError: It is missing or damaged.
        """
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise AssayError(
                f"{path} cannot be read: {error.strerror}. Without it records are not recognised"
            ) from error
        body, digest = raw[:-_DIGEST], raw[-_DIGEST:]
        head = len(_MAGIC) + _KEY
        if not raw.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest or (len(body) - head) % 8:
            raise AssayError(f"{path} is damaged: records would not be recognised")
        return cls(body[len(_MAGIC) : head], np.frombuffer(body[head:], dtype="<u8").astype(np.uint64))

    def write(self, path: Path) -> None:
        """Write the file whole, readable by its owner only."""
        body = self._bytes()
        replace_file(path, lambda part: part.write_bytes(body + hashlib.sha256(body).digest()), private=True)

    @property
    def digest(self) -> str:
        """What identifies the file's content to those who have it, and tells others nothing: the key is part of it."""
        return hashlib.sha256(self._bytes()).hexdigest()

    def _bytes(self) -> bytes:
        return _MAGIC + self.key + self.tags.astype("<u8").tobytes()

    def with_tags(self, tags: Tags) -> KnownRecords:
        """These and others."""
        return KnownRecords(self.key, np.union1d(self.tags, tags))

    def look_up(self, tags: Tags) -> Recognised:
        """How many of these are known."""
        different = np.unique(tags)
        digest = hashlib.sha256(b"assay.data/1\n" + self.key + different.astype("<u8").tobytes()).hexdigest()
        return Recognised(len(different), int(np.isin(different, self.tags, assume_unique=True).sum()), digest)


def hash_records(contents: Iterable[bytes], known: Sequence[KnownRecords]) -> list[Tags]:
    """The hashes of records under the keys of several budgets, in one pass.

    Args:
        contents: The content of each record.
        known: Whose keys are used.

    Returns:
        For each of them one number for each record. Two different records have the same number with probability 2^-64.
    """
    start = [hashlib.blake2b(digest_size=8, key=one.key) for one in known]
    found: list[list[bytes]] = [[] for _ in known]
    for content in contents:
        if not isinstance(content, bytes | bytearray | memoryview):
            raise ConfigError("contents", type(content).__name__, "bytes for each record: assay.data.contents(data)")
        for fresh, into in zip(start, found, strict=True):
            digest: Any = fresh.copy()
            digest.update(content)
            into.append(digest.digest())
    return [np.frombuffer(b"".join(one), dtype="<u8").astype(np.uint64) for one in found]


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Another budget in the same folder.

    Attributes:
        said: What the entries and records of others say of it.
        unit: What its ε protects.
        records: How many records or persons it covers.
        known: What they are recognised by.
    """

    said: Mapping[str, Any]
    unit: str
    records: int
    known: KnownRecords


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Records that a budget is to cover, beside what the other budgets cover.

    Attributes:
        records: How many different records, or persons, there are.
        new: How many of them the budget did not cover before.
        known: What it covers with them.
        unit: What its ε protects.
        others: The other budgets, with how many of the records each covers, and how many of all rows.
        rows: How many different rows there are, where persons are protected.
    """

    records: int
    new: int
    known: KnownRecords
    unit: str
    others: Sequence[tuple[Beside, int, int]]
    rows: int

    @classmethod
    def of(
        cls, contents: Iterable[bytes], rows: Iterable[bytes], known: KnownRecords, others: Sequence[Beside], unit: str
    ) -> Compared:
        """The records of these contents, and the rows of the table that they are the persons of."""
        keys = [known, *(other.known for other in others)]
        (own, *theirs), (own_rows, *their_rows) = hash_records(contents, keys), hash_records(rows, keys)
        return cls(
            records=(found := known.look_up(own)).records,
            new=found.records - found.known,
            known=known.with_tags(np.concatenate([own, own_rows])),
            unit=unit,
            others=[
                (other, *(other.known.look_up(tags).known for tags in both))  # type: ignore[misc]
                for other, *both in zip(others, theirs, their_rows, strict=True)
            ],
            rows=len(np.unique(own_rows)),
        )

    @property
    def overlaps(self) -> list[dict[str, Any]]:
        """What the entry says of the others that cover some of the records: how many, and their unit if it is another.

        A budget of rows and one of persons have rows in common.
        """
        found = []
        for other, records, rows in self.others:
            if (common := records if other.unit == self.unit else max(records, rows)) > 0:
                unit = {} if other.unit == self.unit else {"unit": other.unit}
                found.append({**other.said, "records": common, **unit})
        return found

    def check_new(self) -> None:
        """Refuse a second budget for the same records, or one of persons and one of their rows.

        Raises:
            ConfigError: There is such a budget: neither would count what the other spends.
        """
        for other, records, rows in self.others:
            differ = other.unit != self.unit
            if records != self.records and not (differ and rows and rows in (self.rows, other.records)):
                continue
            counts = (
                f"whose ε is that of each {other.unit}: neither budget would count what the other spends"
                if differ
                else "which counts for them under any name and in any order"
            )
            raise ConfigError(
                "data",
                f"{max(records, rows)} records",
                f"records without a budget; all of these are in the budget {other.said['name']} already, {counts}"
                + one_for_both(other.unit, self.unit),
            )


def one_for_both(*units: str | None) -> str:
    """How runs on rows count for the persons whose they are; empty where that is not what the units are."""
    persons = [unit for unit in units if unit not in (RECORD, CLIENT, None)]
    if RECORD not in units or not persons:
        return ""
    return f". A run on rows counts for each {persons[0]} with --unit {persons[0]} --unit-sampling rows --unit-rows K"
