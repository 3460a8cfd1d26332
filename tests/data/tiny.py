"""Small files in the standard formats, with their sums, for tests that need no real data."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from assay.data.catalog import Contents, DatasetInfo, Fingerprint, KnownFile, Read


def fingerprint(data: bytes) -> Fingerprint:
    return Fingerprint(hashlib.sha256(data).hexdigest(), len(data))


def known_file(name: str, content: bytes, *, gz: bool = False) -> KnownFile:
    wrapped = fingerprint(gzip.compress(content, mtime=0)) if gz else None
    return KnownFile(name=name, content=fingerprint(content), gz=wrapped)


def build_idx(values: npt.NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def _never(info: DatasetInfo, contents: Contents) -> Read:
    raise AssertionError("these tests read no records")


class Tiny:
    """A data set of two files, `a` (also gzipped) and `b`."""

    contents: ClassVar = {"a": b"content of a " * 50, "b": b"content of b " * 50}
    info = DatasetInfo(
        name="tiny",
        description="for tests",
        unit="one byte",
        train_records=1,
        test_records=1,
        shape=(1,),
        classes=2,
        folders=("tiny", "Tiny/raw"),
        files=(known_file("a", contents["a"], gz=True), known_file("b", contents["b"])),
        notes="as they are",
        read=_never,
    )

    @classmethod
    def write(cls, data_dir: Path, folder: str = "tiny") -> Path:
        (data_dir / folder).mkdir(parents=True)
        for name, content in cls.contents.items():
            (data_dir / folder / name).write_bytes(content)
        return data_dir / folder
