"""What a finished run says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.errors import ConfigError
from assay.runs.directory import RunDirectory
from assay.runs.schema import read_record
from assay.runs.statement import statement
from assay.runs.verification import check_epsilon, check_statement


def record_of(run: Path | str) -> dict[str, Any]:
    """The record of a finished run, for programs.

    Args:
        run: The run's directory, or a record.json alone.

    Returns:
        What `record.json` holds; docs/record.md names the fields.

    Raises:
        ConfigError: It is not the directory of a run.
        AssayError: The run is unfinished, or the record is damaged or of another version.
    """
    path = Path(run)
    return _of_file(path) if path.is_file() else RunDirectory.open(path).read_record()


def statement_of(run: Path | str) -> str:
    """The privacy statement of a finished run, for people.

    Args:
        run: The run's directory, or a record.json alone.

    Returns:
        Markdown.

    Raises:
        ConfigError: It is not the directory of a run.
        AssayError: The run is unfinished, one of its files is damaged, or its ledger gives a larger ε than it says.
    """
    path = Path(run)
    if path.is_file():
        return statement(_of_file(path))
    directory = RunDirectory.open(path)
    directory.settle_texts()
    record = directory.read_record()  # refuses an unfinished run, and says how to resume it
    directory.check_files(record, *(file.name for file in (directory.spec, directory.ledger)))
    text = directory.read_statement(record)
    check_statement(directory, record, text)
    check_epsilon(directory, record)
    return text


def _of_file(path: Path) -> dict[str, Any]:
    if path.suffix != ".json":
        raise ConfigError("run", str(path), "the directory of a run, or a record.json")
    return read_record(path)
