"""The directory of a study: `study.json` says what to run, and every run has a directory below it.

`study.json` also says what presets stood for: a preset that has changed since is another setting. The file is written
whole before the first run starts, and later only gains seeds. The state of a study is that of its runs. Nothing else is
stored, so nothing can disagree after a crash.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay._util.files import lock, make_folder, replace_json
from assay.errors import AssayError, ConfigError
from assay.runs.directory import RunDirectory
from assay.studies.grid import Grid, Run

SCHEMA = "assay.study/1"
_PATIENCE = 20.0  # seconds; runs that a killed study leaves behind write their checkpoints and end within a step


@dataclass(frozen=True)
class Study:
    """A grid and where its runs are."""

    path: Path
    grid: Grid
    elsewhere: frozenset[tuple[tuple[str, ...], int]] = frozenset()
    """Runs, by labels and seed, that were measured on another machine and need not be repeated here."""

    @classmethod
    def at(cls, path: Path, grid: Grid) -> Study:
        """Begin the study of this grid in this directory, or open it if it is there, possibly to add seeds.

        Args:
            path: The directory.
            grid: The runs.

        Returns:
            The study.

        Raises:
            ConfigError: The directory holds other files, or a study with other settings; it says how they differ.
        """
        study = cls(path, grid)
        wanted = json.loads(json.dumps({"schema": SCHEMA, **grid.to_json()}))  # numbers and lists as they come back
        if study.file.exists():
            there = read(study.file)
            if {**there, "seeds": wanted["seeds"]} == wanted and set(there["seeds"]) < set(wanted["seeds"]):
                replace_json(study.file, wanted)
            elif there != wanted:
                changes = "; ".join(differences(there, wanted))
                accepted = f"another directory, or the settings that its study was begun with; {changes}"
                raise ConfigError("out", str(path), accepted)
            return study
        if path.is_file():
            raise ConfigError("out", str(path), "a directory; there is a file of that name")
        if path.exists() and any(not entry.name.startswith(".study.json.") for entry in path.iterdir()):
            raise ConfigError("out", str(path), "a new or empty directory, or a study; this one holds other files")
        make_folder(path)
        replace_json(study.file, wanted)
        return study

    @classmethod
    def open(cls, path: Path) -> Study:
        """Open an existing study.

        Raises:
            ConfigError: There is none in this directory.
        """
        study_file = path / "study.json"
        if not study_file.exists():
            raise ConfigError("study", str(path), "the directory of a study (it holds a study.json)")
        return cls(path, Grid.from_json(read(study_file)))

    @property
    def file(self) -> Path:
        """What is to be run."""
        return self.path / "study.json"

    def of(self, run: Run) -> RunDirectory:
        """A run's directory."""
        return RunDirectory(run.directory(self.path))

    def unfinished(self) -> list[Run]:
        """The runs that have no record yet, in order."""
        there = (run for run in self.grid.runs() if (run.labels, run.seed) not in self.elsewhere)
        return [run for run in there if not self.of(run).finished]

    @contextmanager
    def alone(self) -> Iterator[int]:
        """Let one process at a time work on the study.

        Runs inherit the locked file. So runs that outlive a killed study are waited for and not started twice.

        Yields:
            The file descriptor of the lock.

        Raises:
            AssayError: Another process works on the study.
        """
        with (self.path / ".lock").open("w") as file:
            end = time.monotonic() + _PATIENCE
            while not lock(file):
                if time.monotonic() > end:
                    raise AssayError(
                        f"another process is at work on the study {self.path}; wait for it or stop it first"
                    )
                time.sleep(0.1)
            yield file.fileno()


def read(path: Path) -> dict[str, Any]:
    """Read a `study.json`.

    Raises:
        AssayError: It is damaged or of another version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise AssayError(f"{path} is damaged: {error}") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise AssayError(f"{path} has schema {schema!r}; this version of Assay reads {SCHEMA!r}")
    return dict(data)


def differences(there: Any, wanted: Any, at: str = "") -> list[str]:
    """What differs between two JSON values, in words."""
    if isinstance(there, dict) and isinstance(wanted, dict):
        keys = [*there, *(key for key in wanted if key not in there)]
        return [
            line
            for key in keys
            for line in differences(there.get(key), wanted.get(key), f"{at}.{key}" if at else str(key))
        ]
    if there == wanted:
        return []
    return [f"{at} was {_said(there)} and now is {_said(wanted)}"]


def _said(value: Any) -> str:
    return "not given" if value is None else json.dumps(value, ensure_ascii=False)
