"""`assay reproduce`: run a paper's table, theirs and ours side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options
from assay.cli.output import console
from assay.cli.study_progress import listening


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
            help="Measure only this label of an axis; may be repeated. What was measured before stays.",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Measure only this many of its seeds, from the first.")] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Measure only what the results do not have yet, from any machine.")
    ] = False,
    experiments: Annotated[
        Path | None, typer.Option(help="The experiments folder. (default: `experiments` here or above)")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run directories go.")] = Path("runs"),
    workers: options.Workers = None,
    only_print: Annotated[bool, typer.Option("--print", help="Run nothing: print what was measured before.")] = False,
) -> None:
    """Run a paper's table, write the results beside its TOML (JSON and Markdown), and print theirs beside ours."""
    from assay.studies import reproducing

    printed = reproducing.reproduce(
        table,
        scale=scale,
        only=only or (),
        seeds=seeds,
        missing=missing,
        experiments=experiments,
        runs=runs,
        workers=workers,
        measure=not only_print,
        listening=listening,
    )
    out = console()
    for text in printed:
        out.print(text)
