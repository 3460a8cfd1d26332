"""`assay reproduce`: a table of a paper run again, theirs and ours side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options, passing
from assay.cli.output import console
from assay.cli.study_progress import listening
from assay.studies import results, running, tables
from assay.studies.directory import Study


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(reproduce)


def reproduce(
    table: Annotated[list[str], typer.Argument(help="Tables of the experiments folder, e.g. gredp/table1.")],
    scale: Annotated[
        str, typer.Option(help="full: the paper's settings; small: reduced as the table's file says.")
    ] = "full",
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=LABEL",
            help="Measure a part: this label of an axis. Several times for several labels. What was measured before stays.",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Measure a part: so many of its seeds, from the first.")] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Measure a part: only what the results do not have yet, from any machine.")
    ] = False,
    experiments: Annotated[
        Path | None, typer.Option(help="The experiments folder. (default: `experiments` here or above)")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run directories go.")] = Path("runs"),
    workers: options.Workers = None,
    only_print: Annotated[
        bool, typer.Option("--print", help="Run nothing: print what was measured before, or a part of it.")
    ] = False,
) -> None:
    """Run a paper's table, write its results beside its TOML (JSON and Markdown), and print it with theirs beside ours."""
    where = tables.folder(experiments)
    lines = console()
    wanted = [tables.read(where, name, scale) for name in table]
    parts = [tables.part(asked, only or [], seeds) for asked in wanted]  # refused before anything is trained
    for asked, part in zip(wanted, parts, strict=True):
        if not only_print:
            known = results.known(asked) if missing else frozenset()
            _measure(asked, Study(runs / asked.study, part, known), runs, workers or os.cpu_count() or 1)
        lines.print(results.render(asked, results.read(asked), part if only_print else None))


def _measure(table: tables.Table, asked: Study, runs: Path, workers: int) -> None:
    """Run a part in the directory of the whole: what other parts did there is not repeated, and they go on from here."""
    if not any(asked.of(run).spec.exists() for run in asked.grid.runs()):
        passing.rehearse(asked.grid, ", ".join)
    study = Study.at(asked.path, table.grid)
    try:
        with listening(asked) as listener:
            running.complete(asked, workers, listener, beside=runs)
        if table.attack:
            with listening(asked, len(running.unattacked(asked, table.attack))) as listener:
                running.attack(asked, table.attack, workers, listener)
    finally:
        results.write(table, results.collect(table, study))
