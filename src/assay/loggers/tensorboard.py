"""TensorBoard: event files in the run's directory.

They are written record by record and flushed. Their names do not contain the name of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from assay.loggers import Logger


@dataclass(kw_only=True)
class TensorBoard(Logger):
    """Writes event files into `directory`; `tensorboard --logdir` shows them.

    The statement and the model card are in the tab of texts.
    """

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboard"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._file: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._write(step, Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]))

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        rows = [f"| {name} | {value} |" for name, value in settings.items()]
        self.write_texts({"settings": "\n".join(["| setting | value |", "|---|---|", *rows])})

    def write_texts(self, texts: Mapping[str, str]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        for name, text in texts.items():
            tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
            about = create_summary_metadata(display_name=None, description=None)
            self._write(0, Summary(value=[Summary.Value(tag=name, metadata=about, tensor=tensor)]))

    def _write(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is None:  # only now: a run's directory must be empty when the run begins
            path = Path(self.directory) / f"events.out.tfevents.{time.time_ns()}.assay"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = RecordWriter(path.open("wb"))
            self._file.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        self._file.write(Event(wall_time=time.time(), step=step, summary=summary).SerializeToString())
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


LOGGER = TensorBoard
