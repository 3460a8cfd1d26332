"""The search for the files of a data set, or of public word vectors, on this machine. Nothing here fetches anything.

A data directory has the standard layout: mnist/*-ubyte.gz, cifar-10-batches-bin/*.bin, adult/adult.data and so on
(`FileSet.folders`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assay._util.files import user_folder
from assay.data.catalog import FileSet, KnownFile
from assay.data.integrity import read_verified
from assay.errors import DataError

_SYSTEM_FOLDERS = (Path("/usr/share/datasets"),)  # Debian: dataset-fashion-mnist


@dataclass(frozen=True)
class Place:
    """A data directory to look in; its path is None if it is not configured."""

    label: str
    path: Path | None


@dataclass(frozen=True)
class Found:
    """A complete set of files, in the order of `FileSet.files`. Reading verifies them."""

    info: FileSet
    place: Place
    folder: Path
    paths: tuple[Path, ...]

    def contents(self) -> Iterator[bytes]:
        """The verified content of each file, in order."""
        for path, known in zip(self.paths, self.info.files, strict=True):
            yield read_verified(path, known, self.info.name)


def cache_directory() -> Path | None:
    """The user's cache, `$XDG_CACHE_HOME/assay` or `~/.cache/assay`; None for a user without a home."""
    return user_folder("XDG_CACHE_HOME", ".cache")


def places(data_dir: str | Path | None) -> list[Place]:
    """The places to look in, in order."""
    explicit = None if data_dir is None else Path(data_dir).expanduser()
    variable = os.environ.get("ASSAY_DATA", "")
    return [
        Place("--data-dir", explicit),
        Place("$ASSAY_DATA", Path(variable).expanduser() if variable else None),
        Place("user cache", cache_directory()),
        *(Place("system folder", folder) for folder in _SYSTEM_FOLDERS),
    ]


def stored_form(folder: Path, known: KnownFile) -> Path | None:
    """The file in `folder` that stores `known`, in one of its forms; None if there is none."""
    for name in known.forms:
        try:
            if (folder / name).is_file():
                return folder / name
        except OSError:  # we may not enter the folder
            return None
    return None


def find(info: FileSet, where: list[Place]) -> Found | None:
    """The first folder that has all the files, or None."""
    for place in where:
        if place.path is None:
            continue
        for name in info.folders:
            folder = place.path / name
            paths = [path for known in info.files if (path := stored_form(folder, known)) is not None]
            if len(paths) == len(info.files):
                return Found(info, place, folder, tuple(paths))
    return None


def require(info: FileSet, data_dir: str | Path | None) -> Found:
    """As `find`, in all places.

    Raises:
        DataError: the files are nowhere; the error says how to supply them.
    """
    where = places(data_dir)
    found = find(info, where)
    if found is None:
        raise DataError(
            f"{info.name} is not on this machine. Looked in:\n{account(info, where)}\n"
            f"Run `assay data get {info.name}` to fetch it. {by_hand(info)}"
        )
    return found


def account(info: FileSet, where: list[Place]) -> str:
    """Lines that say where we looked, and what was missing there."""
    return "\n".join(f"  {line}" for place in where for line in _search_lines(info, place))


def by_hand(info: FileSet) -> str:
    """How to supply the files without fetching."""
    names = ", ".join(known.name + ("" if known.gz is None else "[.gz]") for known in info.files)
    return (
        f"To supply it by hand, put {names} into DIR/{info.folders[0]} and pass `--data-dir DIR` or set ASSAY_DATA=DIR."
    )


def _search_lines(info: FileSet, place: Place) -> Iterator[str]:
    if place.path is None:
        yield f"{place.label}: not set"
        return
    for name in info.folders:
        folder = place.path / name
        lacking = [known.name for known in info.files if stored_form(folder, known) is None]
        missing = "none of its files" if len(lacking) == len(info.files) else f"not {', '.join(lacking)}"
        yield f"{place.label}: {folder}: {missing}"
