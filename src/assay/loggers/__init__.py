"""Loggers: callbacks that hand what a run releases to TensorBoard, Weights & Biases or MLflow.

    assay.fit(model, train, plan=plan, out="runs/a", callbacks=[assay.loggers.MLflow(uri="http://tracking:5000")])
    assay train ... --log mlflow:uri=http://tracking:5000

A logger sees `Progress`, the record and the statement, and nothing else. So it logs the training loss as it was
released with noise, what was measured on test records, the verified ε, the settings that the record lists, and the
statement with the model card as artifacts. The raw loss, norms of gradients and the number of gradients that were left
out never reach it. A tool that also copies the console, the code or the machine's figures is told not to: a console
may show what ε does not cover.

Each logger is one file here, found by its name. One of your own is a subclass of `Logger`; `--log` finds it by an entry
point of your package in the group `assay.logger`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from assay._util import extras, spec
from assay._util.registry import Registry
from assay._util.seals import of_file
from assay.errors import ConfigError
from assay.runs.callbacks import Callback
from assay.runs.directory import RunDirectory

if TYPE_CHECKING:
    from torch import nn

    from assay.runs.result import Progress, Result

_PUBLIC = ("method", "variant", "data", "model", "records", "noise_multiplier", "noise_schedule", "clip", "steps")
"""Fields of the record that are logged as settings, beside ε and how the run trained."""


@dataclass(kw_only=True)
class Logger(Callback, ABC):
    """Logs what a run releases. A subclass says how values, settings and files are written.

    Attributes:
        directory: A folder for what the tool writes.
        scored: On which records accuracy is measured: `test` or `validation`.
    """

    name: ClassVar[str]
    """What `--log` calls it."""
    package: ClassVar[str]
    """The package that it needs, which is also the name of Assay's extra."""
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """What may be set in `--log name:key=value`."""

    directory: Path | str = "."
    scored: str = "test"

    def __post_init__(self) -> None:
        if importlib.util.find_spec(self.package) is None:
            raise ConfigError("log", self.name, f"an installed {self.package}: {extras.command(self.package)}")

    @property
    def run_id(self) -> str | None:
        """What this run is known by, if `directory` is a run's: one that is resumed goes on where it was logged."""
        file = RunDirectory(Path(self.directory)).spec
        if not file.exists():
            return None
        return hashlib.sha256(f"{file.resolve()} {file.stat().st_mtime_ns} {of_file(file)}".encode()).hexdigest()[:16]

    def on_epoch(self, progress: Progress, model: nn.Module) -> None:  # noqa: ARG002
        """Log the values of this epoch."""
        values = {
            "loss/train (released)": progress.loss,
            f"accuracy/{self.scored}": progress.accuracy,
            "epsilon/verified": progress.epsilon,
        }
        self.write(progress.step, _finite(values))

    def on_end(self, result: Result) -> None:
        """Log the final figures, the settings, the statement and the model card; then close."""
        from assay.runs.card import card

        record = result.record
        final = {f"final/{key}": value for key, value in record["result"].items() if isinstance(value, int | float)}
        self.write(record["steps"], _finite(final))
        self.write_settings(settings_of(record))
        self.write_texts({"statement.md": result.statement, "README.md": card(record, result.statement)})
        self.close()

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step."""

    @abstractmethod
    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write what the run was, once."""

    @abstractmethod
    def write_texts(self, texts: Mapping[str, str]) -> None:
        """Write documents by name, once."""

    @abstractmethod
    def close(self) -> None:
        """End what was begun. May be called twice, and before anything was begun."""


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def settings_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record is logged as settings: plain values by name, which the record publishes anyway.

    Args:
        record: A finished run's.
    """
    eps = record["epsilon"]
    found: dict[str, Any] = {name: record.get(name) for name in _PUBLIC}
    found |= {f"epsilon.{name}": eps.get(name) for name in ("verified", "claimed", "delta", "adjacency", "target")}
    found |= {f"sampling.{name}": value for name, value in record["sampling"].items()}
    training = record["training"]
    optimizer = training.get("optimizer") or {}
    found |= {f"training.{name}": value for name, value in training.items() if name != "optimizer"}
    found |= {f"optimizer.{name}": value for name, value in optimizer.items()} if isinstance(optimizer, dict) else {}
    return {k: v for k, v in found.items() if isinstance(v, str | int | float | bool)}


LOGGERS: Registry[type[Logger]] = Registry(
    "logger", of=Logger, wanted="a Logger", classes=True, package=__name__, attribute="LOGGER"
)


def parse(text: str) -> list[Logger]:
    """The loggers that `--log` names: `tensorboard`, `wandb:project=hearts`, or several with + between them.

    Args:
        text: What was typed.

    Returns:
        The loggers; nothing is written yet.

    Raises:
        ConfigError: One is not known, a setting is not, or its package is not installed.
    """
    return [spec.parse("log", one, LOGGERS) for one in text.split("+")]


def check(text: str | None) -> None:
    """Refuse a log that is not known, or whose package is not installed, before anything is trained.

    Args:
        text: What `--log` says; None is nothing.

    Raises:
        ConfigError: As `parse`.
    """
    if text is not None:
        parse(text)


@contextmanager
def logging(text: str | None, directory: Path, scored: str = "test") -> Iterator[list[Callback]]:
    """The loggers of a run by name, which write into its directory unless they are told otherwise.

    Args:
        text: What `--log` says; None is nothing.
        directory: The run's directory.
        scored: On which records accuracy is measured.

    Yields:
        Callbacks, closed at the end.

    Raises:
        ConfigError: As `parse`.
    """
    made = [] if text is None else parse(text)
    with ExitStack() as undo:
        for logger in made:
            logger.directory, logger.scored = directory, scored
            undo.callback(logger.close)
        yield [*made]


def __getattr__(name: str) -> Any:
    """The classes of this package's own loggers, imported at first use."""
    homes = {"TensorBoard": "tensorboard", "WandB": "wandb", "MLflow": "mlflow"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return LOGGERS[homes[name]]
