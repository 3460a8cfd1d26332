"""What a finished run says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.runs.directory import RunDirectory


def record_of(run: Path | str) -> dict[str, Any]:
    """The record of a finished run, for programs.

    Args:
        run: The run's directory.

    Returns:
        What `record.json` holds; docs/record.md names the fields.

    Raises:
        ConfigError: It is not the directory of a run.
        AssayError: The run is unfinished, or the record is damaged or of another version.
    """
    return RunDirectory.open(Path(run)).read_record()


def statement_of(run: Path | str) -> str:
    """The privacy statement of a finished run, for people.

    Args:
        run: The run's directory.

    Returns:
        Markdown.

    Raises:
        ConfigError: It is not the directory of a run.
        AssayError: The run is unfinished.
    """
    directory = RunDirectory.open(Path(run))
    directory.read_record()  # refuses an unfinished run, and says how to resume it
    return directory.statement.read_text(encoding="utf-8")
