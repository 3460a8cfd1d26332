"""Features on disk: computed once for the same records and settings, under the hash of both.

A file is whole or absent, and every piece of it has a digest (`store`). A damaged file is computed again. Files are
mapped into memory, so that runs side by side share one copy. An unfinished file has another name. One process at a time
works on it, and continues after the last intact piece. The files are as private as the records: only the owner can read
the folder, and may remove it at any time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from assay._util.files import NO_ROOM, locked, sync_folder
from assay.data.locate import cache_directory
from assay.errors import DataError
from assay.features.progress import Progress, Tell, silent
from assay.features.store import RECORDS, Store, pieces


def cached(
    extract: Callable[[Tensor], Tensor],
    x: Tensor,
    settings: str,
    made_with: str,
    *,
    what: str = "features",
    tell: Tell = silent,
) -> Tensor:
    """`extract(x)`, from the cache if it is there. Without a cache directory it is computed each time.

    Args:
        extract: computes the features of RECORDS records at a time.
        x: the records.
        settings: what is computed; part of the key.
        made_with: the packages that compute it; part of the key.
        what: what the lines about progress call it.
        tell: is called with lines about the progress.

    Raises:
        DataError: the cache cannot be written; the error says what to do.
    """
    base = cache_directory()
    progress = Progress(what, len(x), tell)
    if base is None:
        return in_pieces(extract, x, progress)
    name = key(x, settings, made_with)
    path = base / "features" / f"{name}.npy"
    with _disk_errors(path):
        features = _stored(path, len(x))
    return _compute(path, extract, x, progress, tell) if features is None else features


def in_pieces(extract: Callable[[Tensor], Tensor], x: Tensor, progress: Progress | None = None) -> Tensor:
    """`extract(x)`, computed each time, RECORDS records at a time."""
    progress = progress or Progress("features", len(x), silent)
    return torch.cat([piece for _, piece in _extracted(extract, x, 0, progress)])


def key(x: Tensor, settings: str, made_with: str) -> str:
    """The name of the file for exactly these records with these settings."""
    digest = hashlib.blake2b(f"{settings}\n{made_with}\n{tuple(x.shape)} {x.dtype}\n".encode(), digest_size=20)
    for rows in x.contiguous().split(4096):
        digest.update(rows.numpy().data)
    return digest.hexdigest()


def _stored(path: Path, records: int) -> Tensor | None:
    """The features in this file, if it exists and is whole."""
    try:
        with path.open("rb") as file:
            store = Store(file, path.stem, records)
            return store.tensor() if store.intact() == store.pieces else None
    except FileNotFoundError:
        return None


def _compute(path: Path, extract: Callable[[Tensor], Tensor], x: Tensor, progress: Progress, tell: Tell) -> Tensor:
    """Compute the features and store them at `path`, unless another process does so first."""
    unfinished = _unfinished(path)
    with ExitStack() as until_done:
        with _disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            waits = "note: another process is computing these features; waiting for it"
            file = until_done.enter_context(locked(unfinished, lambda: tell(waits)))
            done = 0
            # A file without a piece is of no use later.
            until_done.callback(lambda: None if done else unfinished.unlink(missing_ok=True))
            if path.exists():
                features = _stored(path, len(x))  # another process may have finished it by now
                if features is not None:
                    return features
                tell(f"note: {path} is damaged, or of an earlier version of Assay: computing it again")
                path.unlink()
            store = Store(file, path.stem, len(x))
            done = store.intact()
        for place, piece in _extracted(extract, x, done, progress):
            with _disk_errors(path, store):
                if place == 0:
                    store.begin(tuple(piece.shape[1:]))
                store.write(place, piece)
            done = place + 1
        with _disk_errors(path, store):
            os.fsync(file.fileno())
            unfinished.replace(path)
            sync_folder(path.parent)
            with path.open("rb") as whole:  # opened again: a mapping would keep the locked file open
                return Store(whole, path.stem, len(x)).tensor()


def _unfinished(path: Path) -> Path:
    """The name of the file as long as it is unfinished."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def _disk_errors(path: Path, store: Store | None = None) -> Iterator[None]:
    """Turn an error of the disk into one that says what to do, and remove a file that could not be written."""
    try:
        yield
    except OSError as error:
        size = ""
        if store is not None:
            _unfinished(path).unlink(missing_ok=True)
            size = f" They take {store.size / 1e6:,.1f} MB."
        reason = f"features cannot be kept in {path.parent}: {error.strerror or error}.{size}"
        if error.errno in NO_ROOM:
            raise DataError(f"{reason} Make room there, or set XDG_CACHE_HOME to a folder on another disk.") from error
        raise DataError(f"{reason} Set XDG_CACHE_HOME to a folder that can be written to.") from error


def _extracted(
    extract: Callable[[Tensor], Tensor], x: Tensor, first: int, progress: Progress
) -> Iterator[tuple[int, Tensor]]:
    """The features of each piece from `first` on, with its place.

    Every call gets the same number of rows, because kernels may round differently for other numbers. So one record more
    leaves the features of the others as they were.
    """
    progress.resume(first * RECORDS)
    for place, rows in enumerate(pieces(x, first), first):
        filled = rows if len(rows) == RECORDS else torch.cat([rows, rows.new_zeros(RECORDS - len(rows), *x.shape[1:])])
        with torch.no_grad():
            features = extract(filled)[: len(rows)].to(torch.float32).contiguous()
        yield place, features
        progress.at(place * RECORDS + len(rows))
