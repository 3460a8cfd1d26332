"""Options that several commands share, and those of `--config run.toml`, a file of options. What is typed wins."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from assay._util.files import replace_text
from assay.accounting.adjacency import Adjacency
from assay.errors import ConfigError

DEFAULT_DATA = "mnist"  # catalog.DEFAULT, which help does not wait for; a test keeps them equal
Method = Annotated[str, typer.Option(help="The method; `assay methods` lists them.")]
Delta = Annotated[float, typer.Option(help="δ of (ε, δ)-differential privacy.")]
Records = Annotated[int, typer.Option(help="Number of training records.")]
BatchSize = Annotated[float, typer.Option(help="Expected batch size, a public constant.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the records.")]
Steps = Annotated[int | None, typer.Option(help="Steps, instead of epochs.")]
Noise = Annotated[
    float | None, typer.Option("--noise-multiplier", help="Noise standard deviation over the clipping bound.")
]
Schedule = Annotated[
    str,
    typer.Option(
        "--noise-schedule",
        help="constant; decay:levels=4,last=0.5: noise that falls over the run, charged exactly; or"
        " banded:bands=4,momentum=0.9: later steps take some of the noise back, and a record is in at most one of that"
        " many consecutive batches; toeplitz:bands=4: the same, optimised for the length of the run;"
        " blt:buffers=4: all later steps take noise back, and an epoch has as many batches as there are groups of"
        " records that take turns.",
    ),
]
Sampling = Annotated[
    str, typer.Option(help="poisson, truncated-poisson, without-replacement, shuffle, permutation or full.")
]
Adjacent = Annotated[Adjacency, typer.Option("--adjacency", help="Which data sets are neighbours.")]
MicroBatch = Annotated[
    int,
    typer.Option("--micro-batch", help="Records averaged before clipping; above 1 a record counts for 2C."),
]
Center = Annotated[
    str | None,
    typer.Option(
        help="Subtract the mean of the inputs, released with noise before training and part of ε: mean:noise=40."
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Runs at a time, one thread each. (default: as many as there are cores)")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check the settings, say what they would spend, and train nothing.")
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace an earlier run in the same directory; its ledger stays, in ledgers/."),
]
Seed = Annotated[int | None, typer.Option(help="Fixes all randomness: reproducible, and therefore not private.")]
SecureRng = Annotated[
    bool,
    typer.Option("--secure-rng", help="Every random number from SHAKE-256 and 64 bits, on every device; slower."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="A folder that holds data sets, looked in first.")]
Clip = Annotated[
    str | None,
    typer.Option(help="flat:C, per-layer:C, auto:C or adaptive:C; a bare number is flat. (default: the method's)"),
]
Data = Annotated[
    str,
    typer.Option(
        help="A data set's name (`assay data`), a table (.csv, .tsv, .parquet), a folder of pictures with a folder"
        " for each class, hf:path-or-name, a .npz file with x and y, or package.module:factory."
    ),
]
Unit = Annotated[
    str | None,
    typer.Option(
        help="The column (or array) that says whose a row is: ε then protects a person with all of their rows."
    ),
]
UnitRows = Annotated[
    int | None,
    typer.Option("--unit-rows", help="The most rows of a person that are used, chosen by a hash of their content."),
]
UnitSampling = Annotated[
    str,
    typer.Option(
        "--unit-sampling",
        help="persons: persons are sampled and clipped as one; rows: rows are, and ε counts a person's rows together.",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(help="The column of a table to predict; several yes-or-no columns with commas between them."),
]
Schema = Annotated[
    Path | None,
    typer.Option(
        help="What is publicly known of a table's columns, a .toml file; `assay data schema` writes one to fill in."
        " auto has types, bounds and levels estimated from the rows, for a part of ε."
    ),
]
Variant = Annotated[
    str | None,
    typer.Option(help="sound (default), published (by the paper's text) or authors (by their code)."),
]
NoiseForm = Annotated[
    str | None,
    typer.Option(help="gredp and spectral: complex, real, hermitian or a/b, the noise of a Fourier coefficient."),
]
Groups = Annotated[int | None, typer.Option(help="gredp and spectral: how many layers are clipped separately.")]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--option", help="An option of the method, key=value; `assay methods NAME` lists them. May be repeated."
    ),
]
Encode = Annotated[
    list[str] | None,
    typer.Option(help="Before clipping: sign:tau=0.001 or spectral:domain=kernel,rho=0.5. May be repeated."),
]
Denoise = Annotated[
    list[str] | None,
    typer.Option(
        help="After the noise: laplacian:sigma=1, bayes:nu=0.01 or lowpass:rho=0.5. May be repeated, in order."
    ),
]

Budget = Annotated[
    str | None,
    typer.Option(
        help="The budget of these records (`assay budget`): the run reserves there first, and is refused if it would"
        " pass it."
    ),
]
BudgetKey = Annotated[
    Path | None, typer.Option("--budget-key", help="The private key of a budget that is signed (`assay keys new`).")
]
Operator = Annotated[
    str | None, typer.Option(help="Who runs this, for the statement and the budget. (default: left blank there)")
]


def given(settings: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The values of a command that are fields of a class of settings."""
    return {name: asked[name] for name in settings.options() if name in asked}


_NOT_OPTIONS = ("config", "save_config", "json", "quiet", "dry_run", "force")  # of one call, and not of a run
_GIVEN = ("COMMANDLINE", "DEFAULT_MAP")


def _read(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of the file as defaults of this call: click converts and checks them as if they were typed."""
    if path is not None:
        known = {str(option.name) for option in context.command.params} - {*_NOT_OPTIONS}
        context.default_map = {**(context.default_map or {}), **_options(path, known)}
    return path


def _options(path: Path, known: set[str]) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_bytes().decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError("config", str(path), f"a TOML file with options of assay train: {error}") from error
    found = {name.replace("-", "_"): value for name, value in content.items()}
    for name, value in found.items():
        if name not in known:
            raise ConfigError(f"{path}: {name}", value, f"an option of assay train: {', '.join(sorted(known))}")
        each = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str | int | float) for one in each):
            raise ConfigError(f"{path}: {name}", value, "a text, a number, true or false, or a list of texts")
    return found


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A TOML file with options by name (epsilon = 3); options on the command line override it.",
        callback=_read,
        is_eager=True,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option("--save-config", help="Write the options of this call, but --out, to a TOML file for --config."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print warnings and errors only; with --json the record.")]


def typed(context: typer.Context) -> set[str]:
    """The names of the options that a person gave, typed or in a file."""
    source = context.get_parameter_source
    return {name for name in context.params if getattr(source(name), "name", "") in _GIVEN}


def check_free(path: Path | None, force: bool) -> None:
    """Refuse to write over a file, unless `--force` says so.

    Raises:
        ConfigError: There is a file or a directory of that name.
    """
    if path is not None and (path.is_dir() or (path.exists() and not force)):
        raise ConfigError("save_config", str(path), "the name of a new file, or --force")


def save(path: Path, context: typer.Context) -> None:
    """Write what a person gave in this call to a file.

    Args:
        path: The file.
        context: The call.
    """
    wanted = {name: context.params[name] for name in typed(context) - {*_NOT_OPTIONS, "out"}}
    replace_text(path, "".join(_lines(wanted)))


def _lines(options: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(options):
        value = options[name]
        if value is not None and value != [] and value != ():
            yield f"{name} = {_written(value)}\n"


def _written(value: Any) -> str:
    """A value as TOML writes it; a JSON string is one of TOML's, too."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_written(one) for one in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and not isinstance(value, Enum):
        return repr(value)
    return json.dumps(str(value.value if isinstance(value, Enum) else value), ensure_ascii=False)
