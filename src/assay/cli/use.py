"""`assay predict` and `assay export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from assay.cli import options
from assay.cli.output import console, note, print_json


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(predict)
    app.command()(export)


def predict(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    records: Annotated[
        Path,
        typer.Argument(
            help="New records: a .csv, .tsv, .parquet or .npz file (array x), a picture or a folder of them."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="A new .csv file; without one, predictions are printed.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data sets are; only for runs of versions before 0.2.")
    ] = None,
) -> None:
    """Predict new records with the model of a finished run: classes with probabilities, or numbers.

    The privacy statement of the model is written beside the file.
    """
    from assay._util.files import replace_text
    from assay.inference import load
    from assay.inference.exporting import beside_of
    from assay.inference.predicting import free

    if out is not None:
        for file in (out, beside_of(out)):
            free(file, force=force)
    model = load(run, data_dir=data_dir)
    found = model.predict(records)
    if out is None:
        sys.stdout.write(found.to_csv())
    else:
        statement = model.statement  # refuses a run whose files do not agree
        console().print(f"predictions    {found.write(out, force=force)} ({len(found)} records)")
        replace_text(beside_of(out), statement)
        console().print(f"statement      {beside_of(out)}")
    note(f"ε protects the records that {run} was trained on, not the records predicted here")


def export(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    out: Annotated[Path, typer.Option(help="A new file: .pt2 for torch, .onnx for ONNX.")],
    format: Annotated[
        str | None, typer.Option(help="torch (a torch.export program) or onnx. (default: as the name ends)")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    json: options.Json = False,
) -> None:
    """Write the model as a program that runs without Assay, with its privacy statement in it and beside it."""
    from assay.inference import export as write
    from assay.inference.exporting import beside_of

    described = write(run, out, format=format, force=force)
    if json:
        print_json(described)
        return
    lines = console()
    lines.print(f"program        {out}")
    lines.print(f"statement      {beside_of(out)}")
    lines.print(f"takes          {_shape(described['input'])}")
    lines.print(f"gives          {described['output']['name']}, {_shape(described['output'])}")


def _shape(said: dict[str, list[object]]) -> str:
    return " × ".join(map(str, said["shape"]))
