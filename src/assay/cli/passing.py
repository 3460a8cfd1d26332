"""Options of `assay train` or `assay federate` given to other commands: parsed by the command itself, so that none is listed twice."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer
import typer.main

from assay.cli import federate, runs
from assay.cli.preparing import Prepared, prepare
from assay.errors import AssayError, ConfigError
from assay.studies.grid import Grid, flags

_COMMANDS: Mapping[str, Callable[..., None]] = {"train": runs.train, "federate": federate.federate}


def _command(name: str) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(_COMMANDS[name])
    return typer.main.get_command(app)


def options(command: str) -> dict[str, Any]:
    """The command's options by name."""
    return {_named(parameter): parameter for parameter in _command(command).params}


def settings(command: str, words: Iterable[str], *, decided: Mapping[str, str]) -> dict[str, Any]:
    """What these words ask of the command, checked and converted by its own parser; only what was really given.

    `decided` names options that the caller decides, with what to use instead.
    """
    context = _command(command).make_context(command, [*words, "--out", "."])
    given = {
        _named(parameter): context.params[parameter.name]
        for parameter in context.command.params
        if parameter.name != "out" and context.get_parameter_source(parameter.name).name == "COMMANDLINE"
    }
    for name in given.keys() & decided.keys():
        raise ConfigError(name, given[name], decided[name])
    return {name: _plain(value) for name, value in given.items()}


def value(command: str, name: str, text: str) -> Any:
    """One value of an option, as the command's own parser takes it."""
    parameter = options(command)[name]
    try:
        return parameter.type.convert(text, parameter, None)
    except Exception as error:
        if not hasattr(error, "format_message"):  # not the parser's own complaint
            raise
        raise ConfigError(name, text, str(getattr(error, "message", error))) from error


def _named(parameter: Any) -> str:
    """A setting's name: that of its option, from which `flags` makes the option again."""
    return str(parameter.opts[0]).removeprefix("--").replace("-", "_")


def prepared(words: Iterable[str], like: Prepared | None = None) -> Prepared:
    """All that `assay train` with these words would train with; records that `like` has are not loaded again."""
    app = typer.Typer(add_completion=False)

    @app.command()
    @functools.wraps(runs.train)  # its options; what is done with them is not
    def only_prepare(**settings: Any) -> Prepared:
        return prepare(like=like, **settings)

    made: Prepared = typer.main.get_command(app).main([*words, "--out", "."], standalone_mode=False)
    return made


def rehearse(grid: Grid, named: Callable[[tuple[str, ...]], str]) -> None:
    """Ask the grid's command whether it takes the settings of every label, without training or writing anything."""
    for run in grid.rehearsals():
        words = [*flags(run.settings), "--seed", str(run.seed), "--out", "rehearsal", "--dry-run"]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                _command(grid.command).main(words, standalone_mode=False)
        except ConfigError as error:
            raise ConfigError("run", named(run.labels), f"{error}") from error
        except (AssayError, OSError):
            raise
        except Exception as error:
            # the parser's own complaint: an option that the command does not have, or a value that is no number
            if not hasattr(error, "format_message"):
                raise
            raise ConfigError("run", named(run.labels), error.format_message()) from error


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [str(one) for one in value]
    return str(value)
