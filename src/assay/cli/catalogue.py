"""`assay methods`, `assay models` and `assay data` list what there is; `assay data get` fetches a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from assay.cli import options
from assay.cli.output import console, say

if TYPE_CHECKING:
    from assay.federated.methods import FederatedMethod


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(methods)
    app.command()(models)
    data = typer.Typer(
        help="The data sets known by name; `assay data get NAME` fetches one.", invoke_without_command=True
    )
    data.callback()(list_data)
    data.command("get")(get_data)
    data.command("schema")(write_schema)
    app.add_typer(data, name="data")


def _print(*rows: tuple[str, ...], header: tuple[str, ...]) -> None:
    table = Table(*header, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console(wrap=True).print(table)


def methods(name: Annotated[str | None, typer.Argument(help="A method, for its options.")] = None) -> None:
    """The methods, and whether their published form is sound; for one method also its options."""
    from assay import methods as central
    from assay.federated import methods as federated

    if name is not None and name in federated.available():
        _print_federated(federated.get(name))
        return
    if name is not None:
        method = central.get(name)
        out = console()
        out.print(f"{method.name}: {method.summary}\nas published: {method.soundness}\nclipping: {method.clip}")
        for option in type(method).OPTIONS:
            out.print(f"--option {option}={getattr(method, option)}")
        return
    _print(
        *((m.name, m.summary, m.soundness) for m in central.available().values()),
        header=("name", "what it does", "as published"),
    )
    console(wrap=True).print("\nfederated (`assay federate`)")
    _print(
        *((m.name, m.summary, m.soundness, ", ".join(m.units)) for m in federated.available().values()),
        header=("name", "what it does", "as published", "units"),
    )


def _print_federated(method: FederatedMethod) -> None:
    out = console()
    out.print(f"{method.name}: {method.summary}\nas published: {method.soundness}")
    out.print(f"units: {', '.join(method.units)}\nnoise: {', '.join(method.noises)}")
    for option in type(method).OPTIONS:
        out.print(f"--option {option}={getattr(method, option)}")


def models() -> None:
    """The models known by name; own models are given as package.module:factory."""
    from assay import models as architectures

    _print(
        *((m.name, m.summary, m.accepts) for m in architectures.available()),
        header=("name", "what it is", "input"),
    )


def list_data(context: typer.Context) -> None:
    """The data sets known by name; own data are given as a table, a folder or a .npz file."""
    from assay import data as datasets
    from assay.data.catalog import VECTORS

    if context.invoked_subcommand is None:
        rows = (
            (d.name, d.description, f"{d.train_records:,} / {d.test_records:,}", "×".join(map(str, d.shape)))
            for d in datasets.available()
        )
        _print(*rows, header=("name", "what it is", "train / test", "record"))
        console(wrap=True).print("\npublic word vectors (`--features words`)")
        _print(*((v.name, v.description) for v in VECTORS.values()), header=("name", "what it is"))


def get_data(
    name: Annotated[str, typer.Argument(help="Name of the data set, or of public word vectors.")],
    data_dir: options.DataDir = None,
) -> None:
    """Fetch a data set, verify it, and put it where `--data NAME` finds it."""
    from assay import data as datasets

    told: set[str] = set()

    def progress(step: str, done: int, total: int | None) -> None:  # noqa: ARG001
        if step not in told:
            told.add(step)
            say(step)

    folder = datasets.get(name, data_dir, progress)
    console().print(f"{name} is in {folder}")


def write_schema(
    table: Annotated[Path, typer.Argument(help="The table to be trained on; only the names of its columns are read.")],
    public_sample: Annotated[
        Path | None,
        typer.Option(help="Another table, whose rows are public: types, ranges and levels are taken from it."),
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Between values of a CSV file. (default: a comma)")] = None,
    out: Annotated[Path | None, typer.Option(help="Write it there; without it, it is printed.")] = None,
) -> None:
    """Write a schema for a table: empty, for a person to fill in, or from a public sample."""
    from assay._util.files import replace_text
    from assay.data import tables
    from assay.errors import ConfigError

    if out is not None and out.exists():
        raise ConfigError("out", str(out), "a file that is not there yet")
    if public_sample is None:
        text = tables.template(table, delimiter=delimiter)
    else:
        text = tables.from_sample(table, public_sample, delimiter=delimiter)
    if out is None:
        console().print(text, end="")
        return
    replace_text(out, text)
    console().print(f"{out} is written; look it over before you train: --schema {out}")
