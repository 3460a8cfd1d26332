"""A measured table: JSON beside its TOML, run by run, and Markdown with ours and theirs side by side.

It says when and on what it was measured, with which seeds, and what was reduced. The machine is described by what
matters to a figure (cores, system, versions), never by its name.
"""

from __future__ import annotations

import datetime
import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay._util.files import replace_json, replace_text
from assay.errors import AssayError
from assay.runs.directory import RunDirectory
from assay.studies import summary
from assay.studies.columns import columns
from assay.studies.directory import Study
from assay.studies.grid import Grid
from assay.studies.summary import Measured
from assay.studies.tables import Table

SCHEMA = "assay.table/1"


@dataclass(frozen=True, kw_only=True)
class Results:
    """What was measured for a table, when, and on which machine."""

    title: str
    runs: Sequence[Measured]
    environment: Mapping[str, Any] | None = None
    date: str | None = None
    cores: int | None = None
    reduced: Sequence[str] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """The results as `read` reads them."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "reduced": list(self.reduced),
            "date": self.date,
            "cores": self.cores,
            "environment": None if self.environment is None else dict(self.environment),
            "cells": [run.to_json() for run in self.runs],
        }

    @property
    def machine(self) -> str:
        """The machine in words, without its name."""
        if self.environment is None:
            return "not known"
        cores = "" if self.cores is None else f"{self.cores} cores, "
        made = self.environment
        return (
            f"{cores}{made['platform']}, Python {made['python']}, torch {made['torch']}, {made['threads']} thread a run"
        )


def collect(table: Table, study: Study) -> Results:
    """The results so far.

    Args:
        table: The table.
        study: Its runs on this machine.

    Returns:
        The finished runs of the study, and those measured before that it does not have: on another machine, or in a
        directory that is gone.
    """
    here = _of_study(table, study)
    return _together(table, here, read(table)) if _json(table).exists() else here


def _of_study(table: Table, study: Study) -> Results:
    records = [study.of(run) for run in table.grid.runs() if study.of(run).finished]
    newest = max(records, key=_written, default=None)
    runs = summary.measured(study)
    if table.figure is None or not table.figure.losses:  # nobody draws them, and they would double the file
        runs = [replace(run, losses=()) for run in runs]
    return Results(
        title=table.title,
        runs=runs,
        environment=None if newest is None else newest.read_record()["environment"],
        date=None
        if newest is None
        else datetime.datetime.fromtimestamp(_written(newest), datetime.UTC).date().isoformat(),
        cores=os.cpu_count(),
        reduced=table.reduced,
    )


def _written(directory: RunDirectory) -> float:
    return directory.record.stat().st_mtime


def _together(table: Table, here: Results, before: Results) -> Results:
    """Every run of the table that either has, from `here` if both do; date and machine are those of the newest.

    In a table of attacks, a run that was not attacked here does not replace one that was.
    """
    cells = {labels: i for i, labels in enumerate(table.grid.cells())}
    old = {(run.seed, cells[run.labels]): run for run in _of_table(table, before)}
    places = {(run.seed, cells[run.labels]): run for run in here.runs}
    new = {place: run for place, run in places.items() if place not in old or _attacked(table, run)}
    both = old | new
    older = not new or (here.date or "") < (before.date or "")
    newest = before if older and old.keys() - new.keys() else here
    return replace(
        here,
        runs=[both[place] for place in sorted(both)],
        environment=newest.environment,
        date=newest.date,
        cores=newest.cores,
    )


def _of_table(table: Table, results: Results) -> list[Measured]:
    """The results that belong to the table: not those of labels or settings that it no longer has."""
    cells = set(table.grid.cells())
    return [
        run
        for run in results.runs
        if run.labels in cells and run.settings in (None, table.grid.run(run.labels, run.seed).decided)
    ]


def _attacked(table: Table, run: Measured) -> bool:
    """Whether it has the result of every attack of the table, which may have none."""
    return set(table.attack.get("attack", ())) <= run.attacks.keys()


def known(table: Table) -> frozenset[tuple[tuple[str, ...], int]]:
    """The runs, by labels and seed, that the results beside the TOML already have."""
    if not _json(table).exists():
        return frozenset()
    return frozenset((run.labels, run.seed) for run in _of_table(table, read(table)) if _attacked(table, run))


def write(table: Table, results: Results) -> tuple[Path, Path]:
    """Write JSON and Markdown beside the TOML.

    Args:
        table: The table.
        results: What was measured.

    Returns:
        The two files.
    """
    as_json, as_text = _json(table), table.stem.with_name(f"{table.stem.name}.md")
    replace_json(as_json, results.to_json())
    replace_text(as_text, render(table, results))
    return as_json, as_text


def _json(table: Table) -> Path:
    return table.stem.with_name(f"{table.stem.name}.json")


def read(table: Table) -> Results:
    """What was measured before. Files of early versions have neither date nor cores.

    Args:
        table: The table.

    Returns:
        The results.

    Raises:
        AssayError: There are none, or their file is damaged or of another version.
    """
    path = _json(table)
    if not path.exists():
        raise AssayError(f"{table.name} has not been measured at scale {table.scale}: there is no {path}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise AssayError(f"{path} is damaged: {error}") from error
    if data.get("schema", SCHEMA) != SCHEMA:
        raise AssayError(f"{path} has schema {data['schema']!r}; this version of Assay reads {SCHEMA!r}")
    return Results(
        title=data["title"],
        runs=[Measured.from_json(cell) for cell in data["cells"]],
        environment=data["environment"],
        date=data.get("date"),
        cores=data.get("cores"),
        reduced=data.get("reduced", ()),
    )


def render(table: Table, results: Results, grid: Grid | None = None) -> str:
    """The table in Markdown, with what a reader needs to judge it.

    Args:
        table: The table.
        results: What was measured.
        grid: Show only these cells and seeds; None for all.

    Returns:
        Markdown.
    """
    if grid is not None:
        cells = set(grid.cells())
        results = replace(results, runs=[run for run in results.runs if run.labels in cells and run.seed in grid.seeds])
    lines = [f"# {results.title}", ""]
    if results.reduced:
        lines += [f"**Reduced, not the paper's setting:** {'; '.join(results.reduced)}.", ""]
    if table.note:
        lines += [table.note.strip(), ""]
    seeds = sorted({run.seed for run in results.runs})
    lines += [
        rows(table, results, grid),
        "",
        f"{made_by(table, results)}. Measured: {results.date or 'date not kept'}. {commits(results)}. "
        f"Machine: {results.machine}. {cost(results)}. "
        f"Seeds: {', '.join(map(str, seeds)) or 'none yet'}. Accuracy is mean ± standard deviation over seeds; "
        "ε is rounded to the side that is true.",
        "",
    ]
    return "\n".join(lines)


def made_by(table: Table, results: Results) -> str:
    """The commands in words, for Markdown."""
    said = commands(table, results)
    return f"{'Command' if len(said) == 1 else 'Commands'}: {', '.join(f'`{command}`' for command in said)}"


def commits(results: Results) -> str:
    """The commits of Assay that trained the runs, in words. In Markdown their digits are code."""
    kept = sorted({"not kept" if run.commit is None else f"`{short(run.commit)}`" for run in results.runs})
    return f"{'Commits' if len(kept) > 1 else 'Commit'}: {', '.join(kept) or 'none yet'}"


def cost(results: Results) -> str:
    """How long all runs took, in words. A run is one process with one thread; others may have shared its core."""
    return f"The runs took {sum(run.seconds or 0.0 for run in results.runs) / 3600:.2g} hours of one process in all"


def short(commit: str) -> str:
    """The first digits of a commit, and whether the sources differed from it."""
    digits, dash, changed = commit.partition("-")
    return digits[:10] + dash + changed


def commands(table: Table, results: Results) -> list[str]:
    """The commands that measure exactly the runs in the results; the table's command if it has all or none."""
    depths: dict[int, list[tuple[str, ...]]] = {}
    for cell in summary.cells(results.runs, list(table.grid.cells())):
        there = {run.seed for run in cell.runs}
        depth = max((i for i, seed in enumerate(table.grid.seeds, start=1) if seed in there), default=0)
        depths.setdefault(depth, []).append(cell.labels)
    depths.pop(0, None)
    return [
        " ".join([table.command, *_narrowed(table, block), *_limited(table, depth)])
        for depth, cells in sorted(depths.items(), reverse=True)
        for block in _blocks(cells)
    ] or [table.command]


def _narrowed(table: Table, block: Sequence[Sequence[str]]) -> Iterable[str]:
    for (axis, labels), kept in zip(table.grid.axes.items(), block, strict=True):
        if len(kept) < len(labels):
            yield from (f"--only {shlex.quote(f'{axis}={label}')}" for label in kept)


def _limited(table: Table, depth: int) -> Iterable[str]:
    return [f"--seeds {depth}"] if depth < len(table.grid.seeds) else []


def _blocks(cells: Sequence[tuple[str, ...]]) -> list[list[list[str]]]:
    """Cells as full blocks, each a list of labels by axis, that have every cell once and no other.

    Labels of the first axis that have the same cells along the other axes are in one block.
    """
    if not cells[0]:
        return [[]]
    below: dict[str, list[tuple[str, ...]]] = {}
    for first, *others in cells:
        below.setdefault(first, []).append(tuple(others))
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for label, rest in below.items():
        alike.setdefault(tuple(rest), []).append(label)
    return [[labels, *block] for rest, labels in alike.items() for block in _blocks(rest)]


def rows(table: Table, results: Results, grid: Grid | None = None) -> str:
    """A line for each cell of the table, or of the grid; cells that are not measured yet say so."""
    shown = columns(table, results.runs)
    header = [*table.grid.axes, *(column.title for column in shown)]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for cell in summary.cells(results.runs, list((grid or table.grid).cells())):
        labels = [label.replace("|", r"\|") for label in cell.labels]  # a bar would end the cell
        lines.append(f"| {' | '.join([*labels, *(column.text(cell) for column in shown)])} |")
    return "\n".join(lines)
