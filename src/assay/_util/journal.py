"""A file of JSON lines that several processes append to, one at a time, and from which nothing is ever taken away.

Every line ends with a digest of itself and of all lines before it (`assay._util.seals`), so that a line that was
changed, removed or put elsewhere is seen. With a key every line also carries an Ed25519 signature of itself and of the
digest of the line before it: then only who has the key can write a file that is whole. That the *last* lines were
removed cannot be seen in the file itself. Whoever wrote down its `head`, the digest of the last line, can tell
(`Journal.heads`).

A line is durable when `append` returns. A line that was torn by a crash was never acted on, and is ignored; the next
process that appends cuts it off. On a full disk the file stays as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from assay._util import seals
from assay._util.files import has_name, lock, sync_folder, writing
from assay._util.signatures import PrivateKey, PublicKey
from assay.errors import AssayError

SIGNATURE = "signature"
_WAIT = 0.01


class JournalError(AssayError):
    """The file is not what was written."""


@dataclass
class Journal:
    """The lines of a file as they were when it was read.

    Attributes:
        path: The file.
        lines: What each line says.
        heads: The digest of each line.
    """

    path: Path
    lines: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    _file: IO[bytes] | None = None
    _size: int = 0

    @property
    def head(self) -> str:
        """The digest of the last line; "" of an empty file."""
        return self.heads[-1] if self.heads else ""

    def append(self, line: Mapping[str, Any], key: PrivateKey | None = None) -> None:
        """Write a line, flushed to disk when this returns. Only inside `alone`.

        Args:
            line: What it says.
            key: Signs it.

        Raises:
            NoRoomError: The disk is full; the file is as it was.
            JournalError: Somebody who does not keep to the lock has changed the file.
        """
        file = self._file
        if file is None:
            raise JournalError(f"{self.path} is not open for writing")
        said: dict[str, Any] = json.loads(json.dumps(line, allow_nan=False))
        if key is not None:
            said[SIGNATURE] = key.sign(_signed(said, self.head)).hex()
        text, head = seals.chained(said, self.head)
        if not has_name(file, self.path) or os.fstat(file.fileno()).st_size != self._size:
            raise JournalError(f"{self.path} was replaced or changed while it was locked")
        rest = text + b"\n"
        try:
            with writing(self.path):
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                file.truncate(self._size)
            raise
        self._size += len(text) + 1
        self.lines.append(said)
        self.heads.append(head)


def read(path: Path) -> Journal:
    """The lines of a file, without waiting for anybody.

    Raises:
        JournalError: It is not there, or it is damaged.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}") from error
    return _parsed(path, raw)[0]


@contextlib.contextmanager
def alone(path: Path, *, create: bool = False) -> Iterator[Journal]:
    """Have the file to oneself: who comes later waits. Reads all of it, and lets lines be appended.

    Args:
        path: The file.
        create: Make it if it is not there.

    Raises:
        JournalError: It is not there, or it is damaged.
    """
    flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
    while True:
        try:
            handle = os.open(path, flags, 0o600)
        except FileNotFoundError:
            raise JournalError(f"{path} is not there") from None
        with os.fdopen(handle, "r+b", buffering=0) as file:
            while not lock(file):
                time.sleep(_WAIT)
            if not has_name(file, path):  # replaced while we waited
                continue
            file.seek(0)
            raw = file.read()
            found, whole, ended = _parsed(path, raw)
            if whole < len(raw):  # a line that was never finished, and never acted on
                file.truncate(whole)
                os.fsync(file.fileno())
            if not ended:  # whole but for its end of line
                with writing(path):
                    file.write(b"\n")
                    os.fsync(file.fileno())
                whole += 1
            if create:
                sync_folder(path.parent)
            found._file, found._size = file, whole
            try:
                yield found
            finally:
                found._file = None
            return


def _parsed(path: Path, raw: bytes) -> tuple[Journal, int, bool]:
    """The lines, how many bytes of them are whole, and whether the last one has its end."""
    *lines, torn = raw.split(b"\n")
    found, whole, ended = Journal(path), len(raw) - len(torn), True
    for line in lines:
        _take(found, line)
    if torn:
        if seals.unchained(torn, found.head) is not None:  # all of it but the end of the line: it counts
            _take(found, torn)
            whole, ended = len(raw), False
        elif seals.begins_with_line(torn, found.head):
            raise JournalError(f"{path} is damaged: its last line does not end as it was written")
    return found, whole, ended


def _take(found: Journal, line: bytes) -> None:
    number = len(found.lines) + 1
    whole = seals.unchained(line, found.head)
    if whole is None:
        raise JournalError(
            f"{found.path} is damaged: line {number} is not what its digest was made of. It was changed, or a line "
            "before it was removed"
        )
    said = json.loads(whole[0])
    if not isinstance(said, dict):
        raise JournalError(f"{found.path} is damaged: line {number} is not an object")
    found.lines.append(said)
    found.heads.append(whole[1])


def unsigned(found: Journal, key: PublicKey) -> list[int]:
    """The numbers of lines, from 1, that have no signature of this key."""
    wrong, before = [], ""
    for number, (line, head) in enumerate(zip(found.lines, found.heads, strict=True), start=1):
        content = {name: value for name, value in line.items() if name != SIGNATURE}
        try:
            right = key.verify(bytes.fromhex(line[SIGNATURE]), _signed(content, before))
        except (KeyError, ValueError, TypeError):
            right = False
        if not right:
            wrong.append(number)
        before = head
    return wrong


def _signed(content: Mapping[str, Any], before: str) -> bytes:
    """What is signed: a line without its signature, and through the digest before it all earlier lines."""
    return f"assay.journal/1\n{before}\n{json.dumps(content, sort_keys=True, separators=(',', ':'))}".encode()
