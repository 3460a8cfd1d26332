"""`assay reproduce`: a table of a paper run again, theirs and ours side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from assay.cli import options, passing
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
    experiments: Annotated[
        Path | None, typer.Option(help="The experiments folder. (default: `experiments` here or above)")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run directories go.")] = Path("runs"),
    workers: options.Workers = None,
    only_print: Annotated[bool, typer.Option("--print", help="Run nothing: print what was measured before.")] = False,
) -> None:
    """Run a paper's table, write its results beside its TOML (JSON and Markdown), and print it with theirs beside ours."""
    where = tables.folder(experiments)
    console = Console(soft_wrap=True, highlight=False)
    for asked in [tables.read(where, name, scale) for name in table]:
        if not only_print:
            _measure(asked, runs / asked.study, workers or os.cpu_count() or 1)
        console.print(results.render(asked, results.read(asked)), markup=False)


def _measure(table: tables.Table, out: Path, workers: int) -> None:
    if not (out / "study.json").exists():
        passing.rehearse(table.grid, ", ".join)
    study = Study.at(out, table.grid)
    try:
        with listening(study) as listener:
            running.complete(study, workers, listener)
        if table.attack:
            with listening(study, len(running.unattacked(study, table.attack))) as listener:
                running.attack(study, table.attack, workers, listener)
    finally:
        results.write(table, results.collect(table, study))
