"""How far a file had got, outside its folder: an earlier copy in its place, or its deletion, is seen.

A chain of digests shows a line that was changed. It cannot show that the last lines are missing, because the file was
restored from a backup or deleted. So the user's own state (`$XDG_STATE_HOME/assay`, or `~/.local/state/assay`) holds,
for each budget and each unfinished run, the number of lines and the digest of the last one. Whoever charges compares
them first, and two copies that are used side by side are seen as well.

It is a second witness, no proof: where there is no such folder, on another machine or after a run was moved, nothing is
compared and nothing fails. A note is written after its line, in one write, under a lock. A kill in between leaves a
note of fewer lines, which is no contradiction; a note that cannot be read counts as none.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from assay._util.files import lock, user_folder
from assay.errors import AssayError

_SIZE = 512  # of a note: one write replaces all of it
_WAIT = 0.01


class EarlierCopyError(AssayError):
    """A file has fewer lines than it had, or others."""


class Note(NamedTuple):
    """How far a file had got."""

    lines: int
    head: str
    when: str


class Remembered:
    """What is known of one file from outside its folder.

    Args:
        kind: What the file is of: `budget` or `run`.
        name: Tells it from all others of its kind.
        file: The file.
    """

    def __init__(self, kind: str, name: str, file: Path) -> None:
        self._file = file
        self._key = f"{kind}-{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:32]}"

    @property
    def path(self) -> Path | None:
        """The note; None for a user without a folder for it."""
        base = user_folder("XDG_STATE_HOME", ".local/state")
        return None if base is None else base / "heads" / self._key

    def note(self) -> Note | None:
        """What is noted now; None if nothing is."""
        path = self.path
        with contextlib.suppress(OSError):
            return None if path is None else _parsed(path.read_bytes())
        return None

    def check(self, heads: Sequence[str], note: Note | None) -> None:
        """Refuse an earlier copy of the file.

        Args:
            heads: The digests of its lines.
            note: What was noted before they were read, or while nobody else may write.

        Raises:
            EarlierCopyError: It had other lines, or more. Names the note.
        """
        if note is not None and list(heads[note.lines - 1 : note.lines]) != [note.head]:
            raise EarlierCopyError(
                f"{self._file} is not what it was on {note.when}: it had {note.lines} lines then, of which some are "
                f"missing or changed ({self.path} remembers). An earlier copy was put in its place, or it was deleted, "
                "and what was spent since would not count. Put the later one back. Remove that note only if nothing "
                "was spent since"
            )

    @contextmanager
    def alone(self, heads: Sequence[str]) -> Iterator[None]:
        """Inside, lines may be appended to the file, whose digests `heads` then holds. Copies of it wait here.

        Raises:
            EarlierCopyError: As `check`.
        """
        with self._opened() as note:
            self.check(heads, _read(note))
            try:
                yield
            finally:
                if heads:
                    _write(note, heads[-1], len(heads))

    @contextmanager
    def noting(self, head: str, lines: int) -> Iterator[None]:
        """Inside, the line of this digest is written, the last of `lines`."""
        yield
        with self._opened() as note:
            _write(note, head, lines)

    def forget(self) -> None:
        """Remove the note: the file will not be charged any more, or another one begins in its place."""
        if (path := self.path) is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes] | None]:
        """The note, locked; None where there cannot be one."""
        try:
            path = self.path
            if path is None:
                raise OSError
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            yield None
            return
        with os.fdopen(handle, "r+b", buffering=0) as file:
            while not lock(file):
                time.sleep(_WAIT)
            yield file


def of_run(directory: Path, digest: str, ledger: Path) -> Remembered:
    """Of the ledger of the run with this `run.json` in this directory."""
    return Remembered("run", f"{directory.resolve()}\n{digest}", ledger)


def _read(note: IO[bytes] | None) -> Note | None:
    with contextlib.suppress(OSError):
        return None if note is None else _parsed(note.read(_SIZE))
    return None


def _write(note: IO[bytes] | None, head: str, lines: int) -> None:
    if note is None:
        return
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    said = json.dumps(Note(lines, head, when)._asdict())
    with contextlib.suppress(OSError):  # no room: an older note stays
        note.seek(0)
        note.write(said.encode().ljust(_SIZE))


def _parsed(raw: bytes) -> Note | None:
    try:
        found = Note(**json.loads(raw))
    except (ValueError, TypeError):
        return None
    return found if type(found.lines) is int and found.lines > 0 else None
