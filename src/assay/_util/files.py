"""Files and folders that are either whole or not there: written to a temporary name, flushed to disk, renamed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from assay._util.process import close_in_children
from assay.errors import AssayError

try:
    import fcntl
except ImportError:  # a system without file locks of this kind
    fcntl = None  # type: ignore[assignment]


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What an `OSError` says where a disk is full, a quota used up, or a file too large for its file system."""


class NoRoomError(AssayError, OSError):
    """The disk is full. Names the file, and how to go on."""

    def __init__(self, path: Path, reason: str) -> None:
        self.said = (
            f"no room to write {path}: {reason}. What was on disk before is whole. Make room and repeat the command; "
            "a run that has begun goes on with assay resume"
        )
        super().__init__(errno.ENOSPC, reason)

    def __str__(self) -> str:
        return self.said


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say of a full disk which file it has no room for: the error of the system, or of safetensors, names none.

    Raises:
        NoRoomError: There is no room for the file.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = error.errno in NO_ROOM if isinstance(error, OSError) else "No space left" in str(error)
        if not full:
            raise
        raise NoRoomError(path, getattr(error, "strerror", None) or str(error)) from error


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Give a temporary sibling to write to, flush it to disk and rename it to `path`. A crash, or an error while it is
    written, leaves the old file; otherwise the new one is there.

    Args:
        path: The file.
        private: Whether only the owner may read the file.

    Yields:
        The path to write to.

    Raises:
        NoRoomError: The disk is full; what was there is unchanged.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with writing(path):
            if private:
                part.touch(mode=0o600)
            yield part
            with part.open("rb+") as handle:
                os.fsync(handle.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def replace_file(path: Path, write: Callable[[Path], object], *, private: bool = False) -> None:
    """`write` a file whole: it is given the path that `replacing` gives."""
    with replacing(path, private=private) as part:
        write(part)


def replace_text(path: Path, text: str) -> None:
    """Write a text file whole."""
    with replacing(path) as part:
        part.write_bytes(as_bytes(text))


def as_bytes(text: str) -> bytes:
    """Text as files hold it: UTF-8; a name that the file system gave and that is no text keeps its bytes."""
    return text.encode("utf-8", "surrogateescape")


def replace_json(path: Path, data: dict[str, Any], *, private: bool = False) -> None:
    """Write a JSON file whole. Infinite and undefined numbers are refused: the caller says "inf" where it means it."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if not _encodes(text):  # the name of a file that is no text
        text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    with replacing(path, private=private) as part:
        part.write_text(text, encoding="utf-8")


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def create_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON file whole, unless there is one: that one stays, and of several that are written at the same time the first does."""
    whole = path.with_name(f".{path.name}.{os.getpid()}.new.part")
    try:
        replace_json(whole, data)
        with contextlib.suppress(FileExistsError):
            os.link(whole, path)
    finally:
        whole.unlink(missing_ok=True)
    sync_folder(path.parent)


_PART = re.compile(r"\..+?\.(\d+)(\.new)?\.part")


def is_abandoned(path: Path) -> bool:
    """Whether this is a temporary file of a process that has ended."""
    found = _PART.fullmatch(path.name)
    return found is not None and not _lives(int(found[1]))


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files that processes left in this folder when they were killed; those of living ones stay."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_abandoned(path) and not path.is_dir():
            path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True


def copy_folder(source: Path, target: Path, *, without: Sequence[str]) -> None:
    """Copy a folder, except for files and folders with one of the names `without`, to one that is not there yet or is empty. A crash leaves a folder whose
    name `is_part`, or the whole copy. Files keep the times at which they were written.
    """
    part = target.with_name(f".{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(part, ignore_errors=True)  # of a copy that was killed
    try:
        shutil.copytree(source, part, ignore=shutil.ignore_patterns(*without))
        for path in part.rglob("*"):
            if path.is_file():
                with path.open("rb+") as handle:
                    os.fsync(handle.fileno())
        if target.exists():
            target.rmdir()
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    sync_folder(target.parent)


def set_times(folder: Path, nanoseconds: int) -> None:
    """Give a folder and all that is below it one time of change and of access, so that the times say nothing of how long anything took."""
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, ns=(nanoseconds, nanoseconds))


def is_part(name: str) -> bool:
    """Whether this is the name of a file or folder that was never finished."""
    return name.startswith(".") and name.endswith(".part")


def lock(file: IO[Any]) -> bool:
    """Claim an open file until it is closed; False if somebody else has it, in this process or another.

    A process that was started with the file has the lock too; a forked child closes its copy, so that only the parent has it. The end of a
    process ends its own. Where the system or the file system has no such locks, everybody is told True.
    """
    close_in_children(file)
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def unlock(file: IO[Any]) -> None:
    """Give up a lock at once, even if a forked child has not yet closed its copy of the file."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def claimed(path: Path, waits: Callable[[], object]) -> Iterator[IO[bytes]]:
    """The file of this name, made if it is not there, open for one process at a time and unbuffered; `waits` is called if another has it.

    Whoever has it may rename or remove it: who waited for it then gets a new one.
    """
    told = False
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
            while not lock(file):
                if not told:
                    waits()
                told = True
                time.sleep(0.1)
            if has_name(file, path):
                yield file
                return


def has_name(file: IO[Any], path: Path) -> bool:
    """Whether the open file is the one that this path leads to."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Have a folder to oneself, among those who ask for it so; others wait. Where folders cannot be locked nobody waits."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a system that does not open folders
        yield
        return
    try:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def take_room(file: IO[bytes], size: int) -> None:
    """Have the disk keep room for so many bytes of an open file, where it can: too little is found out now and not while writing."""
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except AttributeError:  # a system that has no such call
        return
    except OSError as error:
        if error.errno in NO_ROOM:
            raise


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in this folder durable, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a system that does not open folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
