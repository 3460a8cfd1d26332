"""`assay compare`: methods against each other at the same ε, over seeds; a grid of ordinary runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from assay.cli import options, passing
from assay.cli.output import console, print_json
from assay.cli.study_progress import listening
from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.studies.directory import Study


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(compare)


def compare(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The study's directory: new, or one to resume.")],
    methods: Annotated[
        str,
        typer.Option(
            help="Methods, separated by commas; an entry may carry options of the method or of its command: "
            "dpsgd,lssgd:sigma=1,gredp:clip=per-layer:1.0"
        ),
    ],
    epsilon: Annotated[str, typer.Option(help="Target ε, separated by commas.")] = "1",
    seeds: Annotated[int, typer.Option(help="How many seeds; they are 0, 1, ...")] = 3,
    equal: Annotated[
        str,
        typer.Option(help="Which ε is made equal: verified, or claimed (published variants, where a method has one)."),
    ] = "verified",
    workers: options.Workers = None,
    json: options.Json = False,
) -> None:
    """Train a grid of methods, ε and seeds, and print accuracy (mean ± standard deviation) with claimed and verified ε.

    The methods are all of `assay train`, or all of `assay federate` (fedavg,fedags,...): an ε for a client cannot be
    compared with one for a record. Every other option of that command may be added (--data, --model, --clip, ...) and
    goes to all runs. The same command resumes a study that was stopped or killed. Seeds are fixed: runs are
    reproducible, not private. Under a --budget runs have no seed, because one seed is one noise.
    """
    from assay.studies import comparing

    command, _ = comparing.method_axis(methods, equal)
    shared = passing.settings(command, context.args, decided=comparing.DECIDED)
    study = comparing.prepare(out, methods, epsilon=_numbers(epsilon), seeds=seeds, equal=equal, shared=shared)
    try:
        with listening(study) as listener:
            comparing.complete(study, workers, listener)
    finally:
        _print(study, json)


def _numbers(text: str) -> list[float]:
    try:
        return [float(value) for value in text.split(",")]
    except ValueError:
        raise ConfigError("epsilon", text, "numbers above 0, separated by commas") from None


def _print(study: Study, as_json: bool) -> None:
    from assay.studies import columns, comparing, summary

    if as_json:
        rows = comparing.cells(study)
        print_json({"study": str(study.path), "title": study.grid.title, "cells": rows})
        return
    runs = summary.measured(study)
    planned = len(study.grid.seeds)
    table = Table(*study.grid.axes, box=None, pad_edge=False)
    tried = columns.tried(runs)
    titles = [column.title for column in tried]
    accuracy = "validation accuracy (%)" if study.grid.shared.get("validation") else "accuracy (%)"
    for heading in (accuracy, "ε claimed", "ε verified", "ε audited", *titles, "seeds"):
        table.add_column(heading, justify="right")
    cells = summary.cells(runs, list(study.grid.cells()))
    for cell in cells:
        table.add_row(
            *cell.labels,
            cell.accuracy,
            summary.epsilon(cell.claimed),
            summary.epsilon(cell.verified),
            summary.epsilon(cell.audited, lower_bound=True),
            *(column.text(cell) for column in tried),
            f"{len(cell.runs)} of {planned}",
        )
    out = console(wrap=True)
    if not out.is_terminal:
        out.width = 200  # a pipe has no width: nothing is cut off
    out.print(table)
    if any(cell.claimed == math.inf for cell in cells):
        out.print("ε claimed ∞: the paper's accountant finds no finite ε for that run")
    seeded = "" if study.grid.shared.get("budget") else "; fixed seeds: reproducible, not private"
    out.print(f"{study.grid.title}{seeded}. A page with charts: assay report {study.path}")
