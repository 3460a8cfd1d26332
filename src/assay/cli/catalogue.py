"""`assay methods`, `assay models` and `assay data` list what there is; `assay data get` fetches a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from assay.cli import options
from assay.cli.output import console, say
from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.federated.methods import FederatedMethod


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(methods)
    models = typer.Typer(
        help="The models known by name; `assay models check MODEL` says which layers are fast.",
        invoke_without_command=True,
    )
    models.callback()(list_models)
    models.command("check")(check_model)
    models.command("patches")(write_patches)
    app.add_typer(models, name="models")
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


def list_models(context: typer.Context) -> None:
    """The models known by name; own models are given as package.module:factory."""
    from assay import models as architectures

    if context.invoked_subcommand is None:
        _print(
            *((m.name, m.summary, m.accepts) for m in architectures.available()),
            header=("name", "what it is", "input"),
        )


def check_model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A name, or package.module:factory.")],
    shape: Annotated[str, typer.Option(help="Shape of one record, as 3,32,32.")] = "3,32,32",
    classes: Annotated[int, typer.Option(min=1, help="How many classes.")] = 10,
    words: Annotated[int | None, typer.Option(min=2, help="Records are word ids below this number.")] = None,
) -> None:
    """Say how each layer's per-record gradients are computed, and whether private training accepts the model.

    The model is built and given one made-up batch. Nothing is trained.
    """
    import torch

    from assay import models as architectures
    from assay.gradients.check import check, summary

    sizes = _sizes(shape)
    model = architectures.build(name, input_shape=sizes, classes=classes).train()
    batch = torch.randn(4, *sizes) if words is None else torch.randint(1, words, (4, *sizes))
    two = getattr(getattr(model, "config", None), "is_encoder_decoder", False)  # it reads and writes
    found = check(model, batch, **({"decoder_input_ids": batch} if two else {}))
    _print(
        *((layer.path or "(the model)", layer.kind, f"{layer.parameters:,}", layer.how) for layer in found),
        header=("layer", "type", "parameters", "gradients"),
    )
    console(wrap=True).print(f"\n{summary(found)}")


def write_patches(
    out: Annotated[Path, typer.Option(help="The file to write, as safetensors.")],
    count: Annotated[int, typer.Option(help="How many patches.")] = 256,
    shape: Annotated[str, typer.Option(help="Shape of one picture, as 3,32,32.")] = "3,32,32",
) -> None:
    """Learn patches from generated pictures, for --features patches, and write them as a file with its recipe.

    No photograph and no private record takes part, so this costs no privacy.
    """
    import hashlib

    from assay._util.files import replace_file
    from assay.features import patches

    if out.exists():
        raise ConfigError("out", str(out), "a file that is not there yet")
    if any(sign in str(out) for sign in ",+"):
        raise ConfigError("out", str(out), "a name without commas and plus signs, which --features reads as its own")
    content = patches.weights(count, _sizes(shape))
    replace_file(out, lambda path: path.write_bytes(content))
    settings = [f"weights={out}", f"sha256={hashlib.sha256(content).hexdigest()}"]
    shown = ",".join([f"count={count}", *settings] if count != patches.Patches.count else settings)
    console().print(f"{out} is written, with its recipe. It serves as\n--features patches:{shown}")


def _sizes(shape: str) -> tuple[int, ...]:
    parts = shape.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError("shape", shape, "positive numbers, as 3,32,32")
    return tuple(map(int, parts))


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
    delimiter: Annotated[
        str | None, typer.Option(help="What separates the values of a CSV file. (default: as its row of names shows)")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; without one, the schema is printed.")] = None,
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
