"""`--log tensorboard`: what a run may show anyway, as event files in its directory.

Logged is what `Progress` holds at the end of an epoch, and nothing else: the released training loss, accuracy on the test (or
validation) records, the verified ε. Files are written record by record and flushed, and their names do not tell the name of the machine.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.runs.result import Progress

LOGS = ("tensorboard",)


def check(name: str | None) -> None:
    """Refuse a log that is not known, or whose package is not installed, before anything is trained."""
    if name is None:
        return
    if name not in LOGS:
        raise ConfigError("log", name, "one of " + ", ".join(LOGS))
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("log", name, "an installed tensorboard: pip install 'assay-dp[tensorboard]'")


@contextmanager
def logging(name: str | None, directory: Path, scored: str = "test") -> Iterator[Callable[[Progress], None]]:
    """A watcher that writes event files into the run's directory; without a name one that does nothing. `scored` says which records
    accuracies are of.
    """
    check(name)
    if name is None:
        yield lambda _: None
        return
    log = _TensorBoard(directory, scored)
    try:
        yield log.watch
    finally:
        log.close()


class _TensorBoard:
    def __init__(self, directory: Path, scored: str) -> None:
        self.directory, self.scored = directory, scored
        self.file: Any = None

    def watch(self, now: Progress) -> None:
        if not now.epoch_end:
            return
        values = {
            "loss/train (released)": now.loss,
            f"accuracy/{self.scored}": now.accuracy,
            "epsilon/verified": now.epsilon,
        }
        shown = {tag: value for tag, value in values.items() if value is not None and math.isfinite(value)}
        self._write(now.step, shown)

    def _write(self, step: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self.file is None:  # only now: a run's directory must be empty when the run begins
            name = f"events.out.tfevents.{time.time_ns()}.assay"
            self.file = RecordWriter((self.directory / name).open("wb"))
            self.file.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self.file.write(Event(wall_time=time.time(), step=step, summary=summary).SerializeToString())
        self.file.flush()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
