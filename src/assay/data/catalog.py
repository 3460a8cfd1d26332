"""The data sets known by name: their public facts, and the exact bytes that count as each of them.

Sums are SHA-256 of the files as their authors publish them. Of an idx file the sum of the uncompressed
content is what counts: distributors repack the gzip wrapper (Debian's Fashion-MNIST drops the file name and
time from its header) around content that is the same to the last bit.

A data set is one file in `assay.data.sets` that defines `DATASET`; `assay._util.registry` tells how one from outside is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay._util.registry import Registry
from assay.data.origins import Origin
from assay.errors import ConfigError

Split = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]
"""Records and their labels."""
Contents = Iterator[bytes]
"""The verified contents of a data set's files, in their order."""
Read = tuple[Split, Split | None]
"""Training and test part; None where the test part is to be set aside by position."""

DEFAULT = "mnist"  # what commands train on where no data set is named


class Fingerprint(NamedTuple):
    """What identifies a run of bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """One file of a data set: `content` is what must match; `gz` is the published wrapper, if it has one."""

    name: str
    content: Fingerprint
    gz: Fingerprint | None = None

    @property
    def forms(self) -> tuple[str, ...]:
        """The file names under which it may be stored, the first preferred."""
        return (self.name,) if self.gz is None else (self.name, f"{self.name}.gz")


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What can be said about a data set without opening it.

    `folders` are the places of its files inside a data directory, the first being the one that is written to. `read` makes arrays of the
    contents of its `files`, in the order in which they are listed. A data set without files
    ships with a Python `package`.
    """

    name: str
    description: str
    unit: str
    train_records: int
    test_records: int
    shape: tuple[int, ...]
    classes: int
    folders: tuple[str, ...] = ()
    files: tuple[KnownFile, ...] = ()
    notes: str
    """What was done with the records, for the statement: it must use no statistic of the data."""
    read: Callable[[DatasetInfo, Contents], Read] = field(repr=False)
    origins: tuple[Origin, ...] = ()
    """Where its files can be fetched from, in the order in which that is tried."""
    source: str | None = None
    """What a data set without files comes with, in words."""
    package: str | None = None
    """The Python package whose folder has it, for a data set without files of its own."""


def idx_file(name: str, content: Fingerprint, gz: Fingerprint) -> KnownFile:
    """A file in the idx format."""
    return KnownFile(name=name, content=content, gz=gz)


def plain_file(name: str, sha256: str, size: int) -> KnownFile:
    """A file that is stored as it is read."""
    return KnownFile(name=name, content=Fingerprint(sha256, size))


DATASETS: Registry[DatasetInfo] = Registry(
    "data",
    fits=lambda thing: isinstance(thing, DatasetInfo),
    wanted="an assay.data.catalog.DatasetInfo",
    package="assay.data.sets",
    attribute="DATASET",
)


def available() -> list[DatasetInfo]:
    """Every data set that has a name, whether or not its files are on this machine, the smallest first."""
    return sorted(DATASETS.values(), key=lambda info: info.train_records)


def describe(name: object) -> DatasetInfo:
    """The entry called `name`, or a `ConfigError` that lists the names there are."""
    if isinstance(name, str) and name in DATASETS:
        return DATASETS[name]
    names = ", ".join(info.name for info in available())
    accepted = (
        f"one of {names}; or, to train on, the path of a table (.csv, .parquet) or of an .npz file with arrays x and y"
    )
    raise ConfigError("data", str(name), accepted)
