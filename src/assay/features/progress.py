"""Lines about the progress of a long computation."""

from __future__ import annotations

import time
from collections.abc import Callable

Tell = Callable[[str], object]
"""Takes a line for people."""

_FIRST, _EVERY = 5.0, 30.0  # seconds


def silent(line: str) -> None:
    """Print nothing."""


class Progress:
    """Reports how many records are done: first after five seconds, then every half minute.

    Args:
        what: what is computed.
        total: the number of records.
        tell: is called with each line.
    """

    def __init__(self, what: str, total: int, tell: Tell) -> None:
        self._what, self._total, self._tell = what, total, tell
        self._begun = time.monotonic()
        self._next = self._begun + _FIRST
        self._before = 0

    def resume(self, before: int) -> None:
        """Begin with `before` records already done."""
        self._before = before
        self._begun = time.monotonic()

    def at(self, done: int) -> None:
        """Report that `done` records are done."""
        now = time.monotonic()
        if now < self._next or done == self._total:
            return
        self._next = now + _EVERY
        left = (now - self._begun) / (done - self._before) * (self._total - done)
        self._tell(f"{self._what}: {done:,} of {self._total:,}, about {_duration(left)} left")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
