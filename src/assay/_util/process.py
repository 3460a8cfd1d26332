"""What belongs to one process and exists once: noise, keys, claims on files.

A forked child has a copy of everything that its parent had. If it drew from the parent's key it would draw the parent's noise, and two
releases with the same noise differ by no noise at all. The same holds for a copy of an object that draws or charges. So keys give other
numbers in a child, locked files are closed there, and what is `Unique` refuses to work.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from dataclasses import dataclass, field
from typing import IO, Any, NoReturn, Self, SupportsIndex

from assay.errors import AssayError


@dataclass(frozen=True, eq=False, slots=True)
class Process:
    """A process. `salt` is its own random bytes, by which its keys differ from those of the process that forked it; the first has none."""

    salt: bytes
    pid: int = field(default_factory=os.getpid)


_here = Process(b"")
_closed_in_children: weakref.WeakSet[Any] = weakref.WeakSet()


def here() -> Process:
    """The process that asks: the same object as long as it is the same process."""
    if os.getpid() != _here.pid:  # forked by code that does not tell Python
        _enter_child()
    return _here


def close_in_children(file: IO[Any]) -> None:
    """A forked child closes its copy of this file, and with it gives up its part in a lock; the parent's stays as it is."""
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
    """Exists once, in the process that made it. Copying and pickling it is a `TypeError`."""

    __slots__ = ("_process",)
    _process: Process

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Remember the process; subclasses need not call anything."""
        made = super().__new__(cls)
        made._process = here()
        return made

    def check_process(self) -> None:
        """`AssayError` in a process that only inherited this object."""
        if self._process is not here():
            raise AssayError(
                f"this {type(self).__name__} belongs to the process that made it ({self._process.pid}), of which this one ({os.getpid()}) is a "
                "fork: both would use the same random numbers, or charge the same ledger twice. Make a new one after forking"
            )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse `copy.copy`, `copy.deepcopy` and `pickle`."""
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: the copy would draw the same noise, or leave out what the original charges"
        )
