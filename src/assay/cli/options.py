"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.privacy.accounting import Adjacency

Method = Annotated[str, typer.Option(help="The method; `assay methods` lists them.")]
Delta = Annotated[float, typer.Option(help="δ of (ε, δ)-differential privacy.")]
Records = Annotated[int, typer.Option(help="Number of training records.")]
BatchSize = Annotated[float, typer.Option(help="Expected batch size, a public constant.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the records.")]
Steps = Annotated[int | None, typer.Option(help="Steps, instead of epochs.")]
Noise = Annotated[
    float | None, typer.Option("--noise-multiplier", help="Noise standard deviation over the clipping bound.")
]
Sampling = Annotated[str, typer.Option(help="poisson, without-replacement, shuffle or full.")]
Adjacent = Annotated[Adjacency, typer.Option("--adjacency", help="Which data sets are neighbours.")]
MicroBatch = Annotated[
    int,
    typer.Option("--micro-batch", help="Records averaged before clipping; above 1 a record counts for 2C."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="A folder that holds data sets, looked in first.")]
