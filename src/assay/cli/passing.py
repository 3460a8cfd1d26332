"""Options of `assay train` or `assay federate` that other commands accept, parsed by the command itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer
import typer.main

from assay.cli import federate, runs
from assay.errors import ConfigError

_COMMANDS: Mapping[str, Callable[..., None]] = {"train": runs.train, "federate": federate.federate}


def _command(name: str) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(_COMMANDS[name])
    return typer.main.get_command(app)


def options(command: str) -> dict[str, Any]:
    """The command's options by name."""
    return {_named(parameter): parameter for parameter in _command(command).params}


def settings(command: str, words: Iterable[str], *, decided: Mapping[str, str]) -> dict[str, Any]:
    """The options in these words, checked and converted by the command's parser; only those that were typed.

    Args:
        command: `train` or `federate`.
        words: What was typed.
        decided: Options that the caller decides, and what to use instead.

    Returns:
        Values by name.

    Raises:
        ConfigError: One of the options is among `decided`.
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


def _named(parameter: Any) -> str:
    """A setting's name: that of its option."""
    return str(parameter.opts[0]).removeprefix("--").replace("-", "_")


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [str(one) for one in value]
    return str(value)
