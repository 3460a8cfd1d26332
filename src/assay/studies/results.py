"""A measured table: JSON beside its TOML, run by run, and Markdown with ours and theirs side by side.

Who reads it learns when and on what it was measured, with which seeds, and what was reduced. The machine is described by what
matters to a figure (cores, system, versions), never by its name.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.files import replace_json, replace_text
from assay.studies import summary
from assay.studies.directory import Study
from assay.studies.summary import Cell, Measured
from assay.studies.tables import Table

SCHEMA = "assay.table/1"


@dataclass(frozen=True, kw_only=True)
class Results:
    """What was measured for a table, when, and with what."""

    title: str
    runs: Sequence[Measured]
    environment: Mapping[str, Any] | None = None
    date: str | None = None
    cores: int | None = None
    reduced: Sequence[str] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """Run by run."""
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
    """The results so far, from the records of the finished runs."""
    records = [study.of(run) for run in table.grid.runs() if study.of(run).finished]
    latest = max((directory.record.stat().st_mtime for directory in records), default=None)
    return Results(
        title=table.title,
        runs=summary.measured(study),
        environment=records[-1].read_record()["environment"] if records else None,
        date=None if latest is None else datetime.datetime.fromtimestamp(latest, datetime.UTC).date().isoformat(),
        cores=os.cpu_count(),
        reduced=table.reduced,
    )


def write(table: Table, results: Results) -> tuple[Path, Path]:
    """Write both forms beside the TOML."""
    as_json, as_text = table.stem.with_name(f"{table.stem.name}.json"), table.stem.with_name(f"{table.stem.name}.md")
    replace_json(as_json, results.to_json())
    replace_text(as_text, render(table, results))
    return as_json, as_text


def read(table: Table) -> Results:
    """What was measured before. Files from before there was a schema have neither date nor cores."""
    path = table.stem.with_name(f"{table.stem.name}.json")
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


def render(table: Table, results: Results) -> str:
    """The table in Markdown, with what a reader needs to judge it."""
    lines = [f"# {results.title}", ""]
    if results.reduced:
        lines += [f"**Reduced, not the paper's setting:** {'; '.join(results.reduced)}.", ""]
    if table.note:
        lines += [table.note.strip(), ""]
    seeds = sorted({run.seed for run in results.runs})
    lines += [
        rows(table, results),
        "",
        f"Command: `{table.command}`. Measured: {results.date or 'date not kept'}. Machine: {results.machine}. "
        f"Seeds: {', '.join(map(str, seeds)) or 'none yet'}. Accuracy is mean ± standard deviation over seeds; "
        "ε is rounded to the side that is true.",
        "",
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class Column:
    """A pair of columns: what we measured, in percent by seed, and what the paper reports."""

    title: str
    values: Callable[[Cell], list[float]]
    reported: Callable[[Cell], str]


def columns(table: Table) -> list[Column]:
    """Test accuracy; of a table of attacks, the accuracy of each and of all on average, where 50 % is what guessing achieves."""
    if not table.attack:
        return [Column("ours (%)", lambda cell: cell.accuracies, lambda cell: table.reported(cell.labels))]
    names: list[str] = table.attack["attack"]

    def column(title: str, asked: list[str]) -> Column:
        return Column(
            f"{title} (%)",
            lambda cell: cell.attacked(asked),
            lambda cell: table.reported((*cell.labels, title)),
        )

    return [*(column(name, [name]) for name in names), column("average", names)]


def rows(table: Table, results: Results) -> str:
    """One line a cell; cells that are not measured yet are there and say so."""
    theirs, audited = bool(table.theirs), any(run.audited is not None for run in results.runs)
    sent = table.grid.command == "federate"
    measured = columns(table)
    header = [
        *table.grid.axes,
        *(heading for pair in measured for heading in [pair.title, *(["paper (%)"] if theirs else [])]),
        "ε claimed",
        "ε verified",
        *(["ε audited"] if audited else []),
        *(["MB up", "MB down"] if sent else []),
        "seeds",
    ]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for cell in summary.cells(results.runs, list(table.grid.cells())):
        row = [*cell.labels]
        for pair in measured:
            row += [summary.spread(pair.values(cell)), *([pair.reported(cell)] if theirs else [])]
        row += [summary.epsilon(cell.claimed), summary.epsilon(cell.verified)]
        if audited:
            row.append(summary.epsilon(cell.audited, lower_bound=True))
        if sent:
            row += [cell.sent("up"), cell.sent("down")]
        lines.append(f"| {' | '.join([*row, str(len(cell.runs))])} |")
    return "\n".join(lines)
