"""The C library's allocator, told to keep the memory that a training step frees."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os

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
