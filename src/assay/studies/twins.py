"""Identical runs are trained once: a finished run of another study with the same options and seed is copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from assay._util.files import copy_folder
from assay.errors import AssayError
from assay.runs.directory import RunDirectory
from assay.studies.directory import Study
from assay.studies.grid import Run, arguments


def take(study: Study, run: Run, root: Path) -> str | None:
    """Copy a finished run with exactly the options (those of its preset among them) and the seed of `run`.

    The copy appears whole or not at all. Nothing in a finished run's files depends on where they are. Results of
    attacks and of audits that trained again stay behind, because no ε covers them. So do the ledgers of runs that were
    replaced: they are about the other directory.

    Args:
        study: The study of `run`.
        run: The run to be copied.
        root: Where the studies of tables are (`paper/table`).

    Returns:
        The study with the run; None where there is no such run or `run` has begun.
    """
    directory = study.of(run).path
    if directory.exists() and any(directory.iterdir()):
        return None
    for other in _studies(root):
        for twin in _twins(study, run, other):
            copy_folder(twin.path, directory, without=("attacks.json", "audits.json", "ledgers"))
            return other.path.relative_to(root).as_posix()
    return None


def _studies(root: Path) -> Iterator[Study]:
    for file in sorted(root.glob("*/*/study.json")):
        try:
            yield Study.open(file.parent)
        except (AssayError, OSError):  # damaged, or of another version: whoever works on that study will be told
            continue


def _twins(study: Study, run: Run, other: Study) -> Iterator[RunDirectory]:
    if other.grid.command != study.grid.command:
        return
    asked = arguments(run.decided)
    for candidate in other.grid.runs():
        alike = candidate.seed == run.seed and arguments(candidate.decided) == asked
        if alike and _is_done(directory := other.of(candidate)) and _has_its_records(directory, run):
            yield directory


def _has_its_records(directory: RunDirectory, run: Run) -> bool:
    """Whether a new run would have the same records: earlier versions split them by position."""
    if not {"records", "validation"} & run.decided.keys() and not str(run.decided.get("data", "")).endswith(".npz"):
        return True
    return directory.read_spec()["names"].get("split") is not None


def _is_done(directory: RunDirectory) -> bool:
    """Whether a run has ended, by its record; a damaged record does not count."""
    try:
        return directory.finished and directory.read_record()["status"] in ("done", "budget-spent")
    except (AssayError, OSError):
        return False
