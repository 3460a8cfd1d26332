"""A file of features: an ordinary .npy of float32, followed by a digest of every piece of a few hundred records.

A piece counts only if its digest is correct. The digest covers the piece, its place, the file's shape and its name. So
a piece that was never written, written by half, or belongs elsewhere does not count.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from typing import IO

import numpy as np
import torch
from torch import Tensor

from assay._util.files import reserve

RECORDS = 250  # in a piece
_DIGEST = 20
_START = 128  # bytes before the first record: the .npy header, padded with blanks


class Store:
    """An open file for the features of `records` records.

    It uses ordinary reads and writes only, so that a full disk is an `OSError`.
    """

    def __init__(self, file: IO[bytes], name: str, records: int) -> None:
        self._file, self._name, self._records = file, name, records
        self._shape = _shape_in(file, records)

    @property
    def size(self) -> int:
        """The bytes of the whole file, once the shape is known."""
        return self._digests_at + _DIGEST * self.pieces

    @property
    def pieces(self) -> int:
        """The number of pieces of the whole file."""
        return _pieces(self._records)

    def intact(self) -> int:
        """The number of intact pieces before the first damaged one. If all are intact, the file is whole."""
        if self._shape is None or self._file.seek(0, 2) != self.size:
            return 0
        for place in range(self.pieces):
            self._file.seek(self._digest_at(place))
            digest = self._file.read(_DIGEST)
            self._file.seek(self._piece_at(place))
            last = min((place + 1) * RECORDS, self._records)
            content = self._file.read((last - place * RECORDS) * self._row)
            if self._digest(place, content) != digest:
                return place
        return self.pieces

    def begin(self, shape: tuple[int, ...]) -> None:
        """Empty the file and reserve all the space that records of this shape will need."""
        self._shape = (self._records, *shape)
        self._file.truncate(0)
        self._file.truncate(self.size)
        reserve(self._file, self.size)
        self._put(0, memoryview(_header(self._shape)))

    def write(self, place: int, piece: Tensor) -> None:
        """Write the features of a piece, and then their digest."""
        content = piece.reshape(-1).view(torch.uint8).numpy().data
        self._put(self._piece_at(place), content)
        self._put(self._digest_at(place), memoryview(self._digest(place, content)))

    def tensor(self) -> Tensor:
        """The features, mapped into memory that all processes share. Changes of the tensor do not reach the file."""
        assert self._shape is not None
        return torch.from_numpy(np.memmap(self._file, np.float32, "c", _START, self._shape))

    def _put(self, at: int, content: memoryview) -> None:
        self._file.seek(at)
        while content:  # a nearly full disk may write only some of it
            content = content[self._file.write(content) :]

    @property
    def _row(self) -> int:
        assert self._shape is not None
        return 4 * math.prod(self._shape[1:])

    @property
    def _digests_at(self) -> int:
        return self._piece_at(0) + self._records * self._row

    def _piece_at(self, place: int) -> int:
        return _START + place * RECORDS * self._row

    def _digest_at(self, place: int) -> int:
        return self._digests_at + place * _DIGEST

    def _digest(self, place: int, content: bytes | memoryview) -> bytes:
        digest = hashlib.blake2b(f"{self._name} {self._shape} {place}\n".encode(), digest_size=_DIGEST)
        digest.update(content)
        return digest.digest()


def pieces(x: Tensor, first: int = 0) -> Iterator[Tensor]:
    """The records of each piece, from the piece `first` on."""
    for place in range(first, _pieces(len(x))):
        yield x[place * RECORDS : (place + 1) * RECORDS]


def _pieces(records: int) -> int:
    return max(1, math.ceil(records / RECORDS))  # zero records have a shape too


def _header(shape: tuple[int, ...]) -> bytes:
    """The header of version 1.0 of the format, always of the same length."""
    text = repr({"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": shape}).encode()
    start = b"\x93NUMPY\x01\x00"
    length = _START - len(start) - 2
    return start + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"


def _shape_in(file: IO[bytes], records: int) -> tuple[int, ...] | None:
    """The shape in the header of a file of `records` records, or None if it has another header."""
    file.seek(0)
    start = file.read(_START)
    written = re.search(rb"'shape': \(([\d, ]+)\)", start)
    shape = () if written is None else tuple(int(number) for number in re.findall(rb"\d+", written[1]))
    return shape if shape[:1] == (records,) and start == _header(shape) else None
