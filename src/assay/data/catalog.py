"""The data sets known by name: their public facts, and the exact bytes of their files.

Sums are SHA-256 of the files as their authors publish them. For an idx file the sum of the uncompressed content counts,
because distributors repack the gzip wrapper around the same content. (Debian's Fashion-MNIST drops the file name and
time from its header.)

A data set is one file in `assay.data.sets` that defines `DATASET`. Public word vectors are one file in
`assay.data.vectors` that defines `VECTORS`. `assay._util.registry` says how to add one from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay._util.registry import Registry
from assay.data.origins import Origin
from assay.errors import ConfigError, nearest, one_of

Split = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]
"""Records and their labels."""
Contents = Iterator[bytes]
"""The verified contents of a data set's files, in their order."""
Read = tuple[Split, Split | None]
"""Training and test records; None where the test records are to be set aside by position."""

DEFAULT = "mnist"  # for commands that name no data set


class Fingerprint(NamedTuple):
    """The SHA-256 and the size of a file."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """One file of a data set.

    Attributes:
        name: its name.
        content: what its content must match.
        gz: the published gzip wrapper, if there is one.
    """

    name: str
    content: Fingerprint
    gz: Fingerprint | None = None

    @property
    def forms(self) -> tuple[str, ...]:
        """The file names under which it may be stored, the first preferred."""
        return (self.name,) if self.gz is None else (self.name, f"{self.name}.gz")


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """Files with known content that `assay data get` fetches by name.

    Attributes:
        name: how it is called.
        description: one line about it.
        folders: where its files may be inside a data directory; the first is written to.
        files: its files.
        origins: where its files can be fetched from, in the order in which they are tried.
    """

    name: str
    description: str
    folders: tuple[str, ...] = ()
    files: tuple[KnownFile, ...] = ()
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DatasetInfo(FileSet):
    """What is known about a data set without opening it.

    A data set without files comes with a Python `package`.

    Attributes:
        unit: what one record is.
        train_records: the number of training records.
        test_records: the number of test records.
        shape: the shape of one record.
        classes: the number of classes.
        notes: what is done to the records, for the statement. It must use no statistic of the data.
        read: turns the contents of its files, in order, into arrays.
        source: what a data set without files comes with, in words.
        package: the Python package whose folder holds a data set without files.
    """

    unit: str
    train_records: int
    test_records: int
    shape: tuple[int, ...]
    classes: int
    notes: str
    read: Callable[[DatasetInfo, Contents], Read] = field(repr=False)
    source: str | None = None
    package: str | None = None


def known_files(sums: str) -> tuple[KnownFile, ...]:
    """The files of a data set, from lines of SHA-256, size and name. A name that ends in .gz is a file's wrapper.

    >>> known_files("0a1b 10 images\\n2c3d 4 images.gz")[0].forms
    ('images', 'images.gz')
    """
    rows = (line.split() for line in sums.split("\n") if line.strip())
    prints = {name: Fingerprint(sha256, int(size)) for sha256, size, name in rows}
    return tuple(
        KnownFile(name=name, content=content, gz=prints.get(f"{name}.gz"))
        for name, content in prints.items()
        if not name.endswith(".gz")
    )


DATASETS: Registry[DatasetInfo] = Registry(
    "data",
    of=DatasetInfo,
    wanted="an assay.data.catalog.DatasetInfo",
    package="assay.data.sets",
    attribute="DATASET",
)

VECTORS: Registry[FileSet] = Registry(
    "vectors",
    of=FileSet,
    wanted="an assay.data.catalog.FileSet",
    package="assay.data.vectors",
    attribute="VECTORS",
)


def available() -> list[DatasetInfo]:
    """Every named data set, smallest first, whether or not its files are on this machine."""
    return sorted(DATASETS.values(), key=lambda info: info.train_records)


def describe(name: object) -> DatasetInfo:
    """The data set called `name`.

    Raises:
        ConfigError: there is none; the error lists the names.

    >>> describe("mnist").train_records
    60000
    """
    if isinstance(name, str) and name in DATASETS:
        return DATASETS[name]
    path = Path(str(name)).expanduser()
    hint = nearest(path.name, (one.name for one in path.parent.glob("*"))) if path.suffix and not path.exists() else ""
    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        hint = "save the sheet as CSV in UTF-8 and name that file; otherwise "
    accepted = (
        f"{hint}{one_of(name, (info.name for info in available()))}; or, to train on, the path of a table (.csv, .tsv, "
        ".parquet), of a folder of pictures, or of an .npz file with arrays x and y; hf:NAME; or module:factory"
    )
    raise ConfigError("data", str(name), accepted)
