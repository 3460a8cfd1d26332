"""Requests to stop: from a scheduler (SIGTERM) or the keyboard (SIGINT)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM and SIGINT ask for a checkpoint and an orderly end. A second signal ends the process at once.

    Yields:
        Whether a signal has come.
    """
    asked = threading.Event()
    kept: Sequence[tuple[int, Any]] = []
    if threading.current_thread() is threading.main_thread():

        def ask(number: int, _frame: Any) -> None:
            asked.set()
            signal.signal(number, signal.SIG_DFL)

        kept = [(number, signal.signal(number, ask)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        yield asked.is_set
    finally:
        for number, handler in kept:
            signal.signal(number, handler)
