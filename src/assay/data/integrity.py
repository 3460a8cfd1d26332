"""Verification of files by their SHA-256, in memory.

We check the bytes in memory and then parse the same bytes. What is written was checked before it got its name. So no
parser sees unverified bytes, and no unverified file of the data directory has its final name.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from gzip import GzipFile
from pathlib import Path

from assay._util.files import replacing
from assay.data.catalog import KnownFile
from assay.errors import DataError


def verified_content(data: bytes, known: KnownFile, *, gzipped: bool, where: str) -> bytes:
    """The content of `data`, if it is exactly that of `known`.

    Args:
        data: the bytes.
        known: the file that they should be.
        gzipped: whether to unpack them first, reading no more than the expected size.
        where: what the error calls the bytes.

    Raises:
        DataError: they are something else; the error says how they differ.
    """
    content, ended_early = _gunzip(data, known.content.size) if gzipped else (data, False)
    if hashlib.sha256(content).hexdigest() == known.content.sha256:
        return content
    expected = known.gz if gzipped and known.gz is not None else known.content
    if ended_early or len(data) < expected.size:
        verdict = "it looks truncated"
    else:
        verdict = "it is corrupt, or another file of that name"
    raise DataError(
        f"{where} does not have the known content of {known.name}: expected SHA-256 {expected.sha256}, "
        f"found {hashlib.sha256(data).hexdigest()}; expected {expected.size:,} bytes, found {len(data):,}: "
        f"{verdict}."
    )


def read_verified(path: Path, known: KnownFile, dataset: str) -> bytes:
    """The verified content of a stored file of a data set.

    Raises:
        DataError: it cannot be read or has other content; the error says what to do.
    """
    remedy = f"Remove it and run `assay data get {dataset}`, or put a good copy in its place."
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. {remedy}") from error
    try:
        return verified_content(data, known, gzipped=path.suffix == ".gz", where=str(path))
    except DataError as error:
        raise DataError(f"{error} {remedy}") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Write verified `data` under its final name, whole or not at all.

    Raises:
        DataError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise DataError(f"{path} cannot be written: {reason.strerror or reason}") from error


def _gunzip(data: bytes, size: int) -> tuple[bytes, bool]:
    """The uncompressed content, empty if it is damaged, and whether it breaks off."""
    with GzipFile(fileobj=io.BytesIO(data)) as wrapper:
        try:
            # One byte more than expected shows an excess, and makes gzip check its sum at the end.
            return wrapper.read(size + 1), False
        except EOFError:
            return b"", True
        except (OSError, zlib.error):
            return b"", False
