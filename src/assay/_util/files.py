"""Files and folders that are either whole or absent: written under a temporary name, flushed to disk, renamed."""

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
except ImportError:  # a system without such file locks
    fcntl = None  # type: ignore[assignment]


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The numbers of an `OSError` for a full disk, an exhausted quota, or a file too large for its file system."""

_NOT_HERE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
)
"""Of one for a place where we may not write, or where something else stands in the way."""


class NoRoomError(AssayError, OSError):
    """The disk is full. The message names the file and says what to do."""

    def __init__(self, path: Path, reason: str) -> None:
        self._message = (
            f"no room to write {path}: {reason}. What was on disk before is whole. Make room and repeat the command; "
            "assay resume continues a run that has begun"
        )
        super().__init__(errno.ENOSPC, reason)

    def __str__(self) -> str:
        return self._message


class NotWritableError(AssayError, OSError):
    """Nothing may be written here. The message names the file or folder."""

    def __init__(self, path: Path, error: OSError) -> None:
        self._message = f"cannot write {path}: {error.strerror}. Name a place where you may write"
        super().__init__(error.errno, error.strerror)

    def __str__(self) -> str:
        return self._message


def make_folder(path: Path, *, mode: int = 0o777) -> None:
    """Make a folder that somebody asked for, and those above it, unless it is there.

    Raises:
        NotWritableError: The system does not let us.
        NoRoomError: The disk is full.
    """
    with writing(path):
        path.mkdir(mode=mode, parents=True, exist_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file in errors about a full disk or a missing right, which the system and safetensors do not.

    Raises:
        NoRoomError: There is no room for the file.
        NotWritableError: The system lets nobody, or not us, write there.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno in _NOT_HERE:
            raise NotWritableError(path, error) from error
        full = error.errno in NO_ROOM if isinstance(error, OSError) else "No space left" in str(error)
        if not full:
            raise
        raise NoRoomError(path, getattr(error, "strerror", None) or str(error)) from error


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Give a temporary file beside `path` to write to, flush it to disk and rename it.

    A crash, or an error while it is written, leaves the old file; otherwise the new one is there.

    Args:
        path: the file.
        private: whether only the owner may read the file.

    Yields:
        The path to write to.

    Raises:
        NoRoomError: the disk is full; the old file is unchanged.
        NotWritableError: the system does not let us write there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with writing(path):
            if private:
                temporary.touch(mode=0o600)
            yield temporary
            with temporary.open("rb+") as handle:
                os.fsync(handle.fileno())
            temporary.replace(path)
    finally:
        with contextlib.suppress(NotADirectoryError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def replace_file(path: Path, write: Callable[[Path], object], *, private: bool = False) -> None:
    """As `replacing`, where `write` writes to the path that it is given."""
    with replacing(path, private=private) as temporary:
        write(temporary)


def replace_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(as_bytes(text))


def as_bytes(text: str) -> bytes:
    """The text in UTF-8. File names that are not valid text keep their bytes."""
    return text.encode("utf-8", "surrogateescape")


def replace_json(path: Path, data: dict[str, Any], *, private: bool = False) -> None:
    """Write a JSON file, whole or not at all. Infinite and undefined numbers are a ValueError."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if not _encodes(text):  # it holds a file name that is not valid text
        text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    with replacing(path, private=private) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def create_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON file, whole, unless it exists. Of several processes that write it at once, the first wins."""
    whole = path.with_name(f".{path.name}.{os.getpid()}.new.part")
    try:
        replace_json(whole, data)
        with contextlib.suppress(FileExistsError):
            os.link(whole, path)
    finally:
        whole.unlink(missing_ok=True)
    sync_folder(path.parent)


_TEMPORARY = re.compile(r"\..+?\.(\d+)(\.new)?\.part")


def is_abandoned(path: Path) -> bool:
    """Whether this is a temporary file of a process that has ended."""
    match = _TEMPORARY.fullmatch(path.name)
    return match is not None and not _lives(int(match[1]))


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of processes that were killed; those of living processes stay."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_abandoned(path) and not path.is_dir():
            path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's process
        return True
    return True


def copy_folder(source: Path, target: Path, *, without: Sequence[str]) -> None:
    """Copy a folder. A crash leaves a folder whose name `is_part`, or the whole copy.

    Args:
        source: the folder.
        target: the copy, which must not exist or must be empty. Files keep their times.
        without: names of files and folders that are left out.
    """
    temporary = target.with_name(f".{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)  # of an earlier copy that was killed
    try:
        shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(*without))
        for path in temporary.rglob("*"):
            if path.is_file():
                with path.open("rb+") as handle:
                    os.fsync(handle.fileno())
        if target.exists():
            target.rmdir()
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(target.parent)


def user_folder(variable: str, usual: str) -> Path | None:
    """The folder `assay` of a base directory of the user, by the XDG specification; None for a user without a home."""
    base = Path(os.environ.get(variable, ""))
    if base.is_absolute():  # relative paths are ignored
        return base / "assay"
    try:
        return Path.home() / usual / "assay"
    except RuntimeError:
        return None


def set_times(folder: Path, nanoseconds: int) -> None:
    """Give a folder and everything in it one time of change and access, so that times do not show durations."""
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, ns=(nanoseconds, nanoseconds))


def is_part(name: str) -> bool:
    """Whether this is the name of an unfinished file or folder."""
    return name.startswith(".") and name.endswith(".part")


def lock(file: IO[Any]) -> bool:
    """Lock an open file until it is closed.

    A forked child closes its copy of the file, so that only the parent holds the lock. A lock ends with its process.

    Returns:
        False if somebody else holds the lock, in this process or another. Where there are no such locks, True.
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
    """Release a lock at once, even if a forked child has not yet closed its copy of the file."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked(path: Path, waits: Callable[[], object]) -> Iterator[IO[bytes]]:
    """Open a file without buffering, for one process at a time. It is created if it does not exist.

    Whoever holds it may rename or remove it; whoever waited then gets a new one.

    Args:
        path: the file.
        waits: is called once if another process holds the file.
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
    """Whether this path leads to the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder alone, among those who call this; others wait. Where folders cannot be locked, nobody waits."""
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


def reserve(file: IO[bytes], size: int) -> None:
    """Reserve `size` bytes on disk for an open file, where the system can, so that a full disk shows before writing.

    Raises:
        OSError: there is not enough space.
    """
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except AttributeError:  # a system without this call
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
