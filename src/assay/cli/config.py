"""`--config run.toml` and `--save-config`: options from a file, and back into one. What is typed wins."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from assay._util.files import replace_text
from assay.errors import ConfigError

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
        help="A TOML file with options by name (epsilon = 3); options typed go before it.",
        callback=_read,
        is_eager=True,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option("--save-config", help="Write the options of this call, but --out, to a TOML file for --config."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print warnings and errors only; with --json the record.")]


def given(context: typer.Context) -> set[str]:
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
    wanted = {name: context.params[name] for name in given(context) - {*_NOT_OPTIONS, "out"}}
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
