"""`--log tensorboard`: event files in the run's directory, with what the run may show anyway.

They hold what `Progress` has at the end of an epoch and nothing else: the released training loss, accuracy on the test
(or validation) records, the verified ε. Files are written record by record and flushed. Their names do not contain the
name of the machine.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import ConfigError
from assay.runs.callbacks import Callback

if TYPE_CHECKING:
    from torch import nn

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
def logging(name: str | None, directory: Path, scored: str = "test") -> Iterator[Callback]:
    """A callback that writes event files into the run's directory; without a name it does nothing.

    Args:
        name: One of `LOGS`, or None.
        directory: The run's directory.
        scored: On which records accuracy is measured.

    Yields:
        The callback.

    Raises:
        ConfigError: The log is not known, or its package is not installed.
    """
    check(name)
    if name is None:
        yield Callback()
        return
    log = TensorBoard(directory, scored)
    try:
        yield log
    finally:
        log.close()


class TensorBoard(Callback):
    """Writes what `Progress` holds at the end of every epoch; `close` it after the run."""

    def __init__(self, directory: Path, scored: str) -> None:
        self.directory, self.scored = directory, scored
        self.file: Any = None

    def on_epoch(self, progress: Progress, model: nn.Module) -> None:  # noqa: ARG002
        """Write the values of this epoch."""
        values = {
            "loss/train (released)": progress.loss,
            f"accuracy/{self.scored}": progress.accuracy,
            "epsilon/verified": progress.epsilon,
        }
        shown = {tag: value for tag, value in values.items() if value is not None and math.isfinite(value)}
        self._write(progress.step, shown)

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
        """Close the file, if one was begun."""
        if self.file is not None:
            self.file.close()
