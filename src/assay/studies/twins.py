"""Identical runs are trained once: a finished run of another study, asked for with the same options and seed, is copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from assay._util.files import copy_folder
from assay.errors import AssayError
from assay.runs.directory import RunDirectory
from assay.studies.directory import Study
from assay.studies.grid import Run, arguments


def take(study: Study, run: Run, root: Path) -> str | None:
    """Copy a finished run of the tables' studies below `root` (`paper/table`) that was asked for with exactly the options and the seed
    of `run`, those of a preset among them; the name of that study, or None where there is no such run or `run` has begun. The copy is there whole or not at all.

    Nothing in a finished run's files says where they are, so they are true of the copy too. Results of attacks and of audits that trained again stay behind:
    no ε covers them. So do the ledgers of runs that were replaced: they are about the other directory.
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
        except (AssayError, OSError):  # damaged, or of another version: told to whoever works on that study
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
    """Whether a new run would be given the same records: earlier versions told them apart by position."""
    if not {"records", "validation"} & run.decided.keys() and not str(run.decided.get("data", "")).endswith(".npz"):
        return True
    return directory.read_spec()["names"].get("split") is not None


def _is_done(directory: RunDirectory) -> bool:
    """Whether a run has ended, by its record; a damaged record is none."""
    try:
        return directory.finished and directory.read_record()["status"] in ("done", "budget-spent")
    except (AssayError, OSError):
        return False
