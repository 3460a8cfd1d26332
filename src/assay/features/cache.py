"""Features on disk: computed once for the same records and settings, found by the hash of both.

The file is whole or not there, holds float32, and is mapped into memory: runs side by side share one copy. It holds what the
records hold and is as private as they are; the folder is for its owner only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from assay.data.locate import cache_directory
from assay.files import replace_file

_AT_ONCE = 250  # records in one call: every call has the same shape, the last one filled up with zeros


def computed(extract: Callable[[Tensor], Tensor], x: Tensor, settings: str, made_with: str) -> Tensor:
    """`extract(x)`, from the cache where it is there; without a cache directory it is only computed."""
    base = cache_directory()
    if base is None:
        return torch.cat(list(_pieces(extract, x)))
    folder = base / "features"
    path = folder / f"{key(x, settings, made_with)}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, lambda part: _write(part, extract, x))
    return torch.from_numpy(np.load(path, mmap_mode="c"))  # private pages: nothing that is done to it reaches the file


def key(x: Tensor, settings: str, made_with: str) -> str:
    """A name for the features of these very records with these settings."""
    found = hashlib.blake2b(f"{settings}\n{made_with}\n{tuple(x.shape)} {x.dtype}\n".encode(), digest_size=20)
    for part in x.contiguous().split(4096):
        found.update(part.numpy().data)
    return found.hexdigest()


def _write(path: Path, extract: Callable[[Tensor], Tensor], x: Tensor) -> None:
    file, done = None, 0
    for piece in _pieces(extract, x):
        if file is None:
            file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(len(x), *piece.shape[1:]))
        file[done : done + len(piece)] = piece.numpy()
        done += len(piece)
    assert file is not None
    file.flush()


def _pieces(extract: Callable[[Tensor], Tensor], x: Tensor) -> Iterator[Tensor]:
    """The features, a few hundred records at a time.

    Kernels may differ in the last bit with the number of rows they are given: where all calls are alike, one record more
    leaves the features of the others as they were.
    """
    for part in x.split(_AT_ONCE):
        filled = (
            part if len(part) == _AT_ONCE else torch.cat([part, part.new_zeros(_AT_ONCE - len(part), *x.shape[1:])])
        )
        with torch.no_grad():
            yield extract(filled)[: len(part)].to(torch.float32).contiguous()
