"""This process: objects that belong to it and exist once, the memory it keeps, and the commit of Assay that it runs.

A forked child has a copy of everything of its parent. If it drew from the parent's key it would draw the parent's
noise, and equal noise cancels in the difference of two releases. A copied object that draws or charges has the same
problem. So keys give other numbers in a child, locked files are closed there, and a `Unique` object refuses to work.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn, Self, SupportsIndex

from assay.errors import AssayError


@dataclass(frozen=True, eq=False, slots=True)
class Process:
    """A process. Random `salt` makes its keys differ from those of the process that forked it; the first has none."""

    salt: bytes
    pid: int = field(default_factory=os.getpid)


_here = Process(b"")
_closed_in_children: weakref.WeakSet[Any] = weakref.WeakSet()


def here() -> Process:
    """The current process: the same object as long as the process is the same."""
    if os.getpid() != _here.pid:  # forked by code that does not call Python's hooks
        _enter_child()
    return _here


def close_in_children(file: IO[Any]) -> None:
    """Let forked children close their copy of this file, so that only the parent holds its lock."""
    _closed_in_children.add(file)


def _enter_child() -> None:
    global _here  # noqa: PLW0603
    _here = Process(os.urandom(32))
    for file in list(_closed_in_children):
        with contextlib.suppress(OSError):
            file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_enter_child)


class Unique:
    """An object that exists once, in the process that made it. Copying or pickling it is a `TypeError`."""

    __slots__ = ("_process",)
    _process: Process

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Remember the process. Subclasses need not call anything."""
        made = super().__new__(cls)
        made._process = here()
        return made

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that made the object."""
        return self._process is not here()

    def check_process(self) -> None:
        """Refuse to work in a forked process.

        Raises:
            AssayError: this process only inherited the object.
        """
        if self.is_inherited:
            raise AssayError(
                f"this {type(self).__name__} belongs to the process that made it ({self._process.pid}), of which this "
                f"one ({os.getpid()}) is a fork: both would use the same random numbers, or charge the same ledger "
                "twice. Make a new one after forking"
            )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse `copy.copy`, `copy.deepcopy` and `pickle`."""
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: the copy would draw the same noise, or leave out "
            "what the original charges"
        )


_PATIENCE = 10.0  # seconds; a repository on a slow disk must not hold up a record


@functools.cache
def commit() -> str | None:
    """The commit of the sources that this process runs.

    Returns:
        Its 40 digits, followed by `-modified` if a file below `src` differs from it. None for an installed package, or
        where git does not answer.
    """
    root = Path(__file__).resolve().parents[3]
    # A package installed into a folder of somebody else's repository is not a checkout of Assay.
    if not ((root / ".git").exists() and (root / "src" / "assay").is_dir()):
        return None
    head = _answer(root, "rev-parse", "HEAD")
    changed = _answer(root, "status", "--porcelain", "--", "src")
    if not head or changed is None:
        return None
    return f"{head}-modified" if changed else head


def _answer(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # their numbers in glibc's malloc.h
_KEPT, _LARGEST = 2**30, 2**25  # bytes


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GB that was freed, and take blocks of up to 32 MB from there.

    By default it returns large blocks to the system at once, and gets them back page by page in the next step. Those
    page faults cost up to a fifth of a step. The peak of the process stays the same. Other C libraries are left as they
    are, and so is one whose `MALLOC_` variables the user has set.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no such function, or no C library to ask
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGEST)


def return_freed_memory() -> None:
    """Let glibc return what was freed, after something that needs much memory and is rare."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
