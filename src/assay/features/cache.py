"""Features on disk: computed once for the same records and settings, found by the hash of both.

The file is whole or not there, and believed only as far as it proves itself (`store`): what is damaged is computed anew. It is mapped
into memory, so that runs side by side share one copy. An unfinished one has another name; one process at a time works on it, and goes on
after the last piece that holds. Both hold what the records hold and are as private as they are; the folder is for its owner only, who
may remove it at any time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from assay._util.files import NO_ROOM, claimed, sync_folder
from assay.data.locate import cache_directory
from assay.errors import DataError
from assay.features.progress import Progress, Tell, silent
from assay.features.store import RECORDS, Store, pieces


def computed(
    extract: Callable[[Tensor], Tensor],
    x: Tensor,
    settings: str,
    made_with: str,
    *,
    what: str = "features",
    tell: Tell = silent,
) -> Tensor:
    """`extract(x)`, from the cache where it is there; without a cache directory it is only computed. `tell` is told how far `what` is."""
    base = cache_directory()
    progress = Progress(what, len(x), tell)
    if base is None:
        return torch.cat([piece for _, piece in _extracted(extract, x, 0, progress)])
    name = key(x, settings, made_with)
    path = base / "features" / f"{name}.npy"
    with _kept(path):
        found = _found(path, len(x))
    return _made(path, extract, x, progress, tell) if found is None else found


def key(x: Tensor, settings: str, made_with: str) -> str:
    """A name for the features of these very records with these settings."""
    found = hashlib.blake2b(f"{settings}\n{made_with}\n{tuple(x.shape)} {x.dtype}\n".encode(), digest_size=20)
    for part in x.contiguous().split(4096):
        found.update(part.numpy().data)
    return found.hexdigest()


def _found(path: Path, records: int) -> Tensor | None:
    """What the file holds, if it is there and whole."""
    try:
        with path.open("rb") as file:
            store = Store(file, path.stem, records)
            return store.tensor() if store.proven() == store.pieces else None
    except FileNotFoundError:
        return None


def _made(path: Path, extract: Callable[[Tensor], Tensor], x: Tensor, progress: Progress, tell: Tell) -> Tensor:
    """The features, computed and kept under this name; or kept there by another process that was at it already."""
    part = _part(path)
    with ExitStack() as claim:
        with _kept(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            waits = "note: another process is computing these features; waiting for it"
            file = claim.enter_context(claimed(part, lambda: tell(waits)))
            done = 0
            # a file without a piece is nothing to go on with
            claim.callback(lambda: None if done else part.unlink(missing_ok=True))
            if path.exists():
                found = _found(path, len(x))  # by now: another process may have made it
                if found is not None:
                    return found
                tell(f"note: {path} is damaged, or of an earlier version of Assay: it is computed anew")
                path.unlink()
            store = Store(file, path.stem, len(x))
            done = store.proven()
        for place, piece in _extracted(extract, x, done, progress):
            with _kept(path, store):
                if place == 0:
                    store.begin(tuple(piece.shape[1:]))
                store.write(place, piece)
            done = place + 1
        with _kept(path, store):
            os.fsync(file.fileno())
            part.replace(path)
            sync_folder(path.parent)
            with path.open("rb") as whole:  # anew: a mapping keeps its file open, and with it the claim
                return Store(whole, path.stem, len(x)).tensor()


def _part(path: Path) -> Path:
    """The name of the file as long as it is unfinished."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def _kept(path: Path, store: Store | None = None) -> Iterator[None]:
    """What the disk refuses is an error that says what to do; a file that could not be written goes."""
    try:
        yield
    except OSError as error:
        takes = ""
        if store is not None:
            _part(path).unlink(missing_ok=True)
            takes = f" They take {store.size / 1e6:,.1f} MB."
        said = f"features cannot be kept in {path.parent}: {error.strerror or error}.{takes}"
        if error.errno in NO_ROOM:
            raise DataError(f"{said} Make room there, or set XDG_CACHE_HOME to a folder on another disk.") from error
        raise DataError(f"{said} Set XDG_CACHE_HOME to a folder that can be written to.") from error


def _extracted(
    extract: Callable[[Tensor], Tensor], x: Tensor, first: int, progress: Progress
) -> Iterator[tuple[int, Tensor]]:
    """The features of each piece from `first` on, with its place.

    Kernels may differ in the last bit with the number of rows they are given: where all calls are alike, one record more
    leaves the features of the others as they were.
    """
    progress.go_on(first * RECORDS)
    for place, part in enumerate(pieces(x, first), first):
        filled = part if len(part) == RECORDS else torch.cat([part, part.new_zeros(RECORDS - len(part), *x.shape[1:])])
        with torch.no_grad():
            found = extract(filled)[: len(part)].to(torch.float32).contiguous()
        yield place, found
        progress.at(place * RECORDS + len(part))
