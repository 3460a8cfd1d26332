"""`assay compare`: methods against each other at the same ε, over seeds; a grid of ordinary runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from assay import methods as methods_room
from assay.cli import options, passing
from assay.cli.output import console, note
from assay.cli.show import print_json
from assay.cli.study_progress import listening
from assay.errors import ConfigError, check_above_zero
from assay.federated import methods as federated_methods
from assay.runs.record import number
from assay.studies import columns, running, summary
from assay.studies.directory import Study
from assay.studies.grid import Grid

_EQUAL = ("verified", "claimed")
_DECIDED = {
    "out": "the study's --out",
    "method": "--methods",
    "variant": "--equal, or the entry's own, e.g. gredp:variant=published",
    "option": "options in a method's entry, e.g. lssgd:sigma=1",
    "noise_form": "options in a method's entry, e.g. gredp:noise_form=real",
    "groups": "options in a method's entry, e.g. gredp:groups=5",
    "epsilon": "--epsilon of the study",
    "noise_multiplier": "nothing: a study finds the noise for its --epsilon",
    "seed": "--seeds, how many",
    "force": "nothing: finished runs are kept",
    "json": "--json of the study",
    "dry_run": "nothing: settings are checked before the first run starts",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(compare)


def compare(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The study's directory: new, or one to go on with.")],
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

    The methods are all of `assay train`, or all of `assay federate` (fedavg,fedags,...): an ε for a client is none for a record.
    Every other option of that command may be added (--data, --model, --clip, ...) and goes to all runs.
    A study that was stopped or killed goes on with the same command. Seeds are fixed: runs are reproducible, not private.
    """
    if equal not in _EQUAL:
        raise ConfigError("equal", equal, "one of " + ", ".join(_EQUAL))
    if seeds < 1:
        raise ConfigError("seeds", seeds, "a whole number, 1 or above")
    command, axis = method_axis(methods, equal)
    grid = Grid(
        title=f"Methods at equal {equal} ε",
        command=command,
        shared=passing.settings(command, context.args, decided=_DECIDED),
        axes={"method": axis, "epsilon": _epsilon_axis(epsilon)},
        seeds=range(seeds),
    )
    if not (out / "study.json").exists():
        passing.rehearse(grid, lambda labels: labels[0])
    study = Study.at(out, grid)
    if command == "train":
        _note_defaults(grid)
    try:
        with listening(study) as listener:
            running.complete(study, workers or os.cpu_count() or 1, listener)
    finally:
        _print(study, json)


def _note_defaults(grid: Grid) -> None:
    """Say it where methods bring bounds or optimizers of their own: accuracies then differ by these, too."""
    own = {}
    for label, settings in grid.axes["method"].items():
        method = methods_room.get(settings["method"])
        given = {**grid.shared, **settings}
        own[label] = f"--clip {given.get('clip', method.clip)}, {given.get('optimizer', method.optimizer)}"
    if len(set(own.values())) > 1:
        said = "; ".join(f"{label}: {settings}" for label, settings in own.items())
        note(
            f"these are not compared at the same bound and optimizer ({said}). To give one its own: METHOD:clip=...,optimizer=..."
        )


def method_axis(text: str, equal: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """The command that the methods belong to, and what their entries stand for.

    Entries are such as `lssgd:sigma=1,over=tensor`; a part with = and no name before it belongs to the entry before.
    """
    entries: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if entries and "=" in part and ":" not in part.partition("=")[0]:
            entries[-1] += ("," if ":" in entries[-1] else ":") + part
        else:
            entries.append(part)
    if not entries or len(set(entries)) < len(entries):
        raise ConfigError("methods", text, "at least one method, each entry once")
    command = _command(text, [entry.partition(":")[0] for entry in entries])
    return command, {entry: _method(command, entry, equal) for entry in entries}


_ROOMS: Mapping[str, Any] = {"train": methods_room, "federate": federated_methods}


def _command(text: str, names: list[str]) -> str:
    known = {name: command for command, room in _ROOMS.items() for name in room.available()}
    for name in names:
        if name not in known:
            raise ConfigError("method", name, "one of " + ", ".join(known))
    if len({known[name] for name in names}) > 1:
        raise ConfigError(
            "methods",
            text,
            "methods of assay train only, or of assay federate only: what an ε protects there is not the same",
        )
    return known[names[0]]


def _method(command: str, entry: str, equal: str) -> dict[str, Any]:
    name, _, rest = entry.partition(":")
    room = _ROOMS[command]
    known = type(room.get(name)).OPTIONS
    passed = passing.options(command)
    own: dict[str, str] = {}
    settings: dict[str, Any] = {"method": name}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        key = key.replace("-", "_")
        if not equals or key in own or key in settings:
            raise ConfigError("methods", entry, "options as key=value, each once")
        if key in known:
            own[key] = value
        elif key in passed and key not in _DECIDED:
            settings[key] = value
        else:
            raise ConfigError(
                "methods",
                entry,
                f"options of {name} ({', '.join(known) or 'it has none'}) or of assay {command}; not {key}",
            )
    if equal == "claimed" and "variant" in known:
        own.setdefault("variant", "published")
    room.get(name, **own)
    return settings | ({"option": [f"{key}={value}" for key, value in own.items()]} if own else {})


def _epsilon_axis(text: str) -> dict[str, dict[str, Any]]:
    axis: dict[str, dict[str, Any]] = {}
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            raise ConfigError("epsilon", text, "numbers above 0, separated by commas") from None
        check_above_zero("epsilon", value)
        if f"{value:g}" in axis:
            raise ConfigError("epsilon", text, "each number once")
        axis[f"{value:g}"] = {"epsilon": value}
    return axis


def _print(study: Study, as_json: bool) -> None:
    runs = summary.measured(study)
    found = summary.cells(runs, list(study.grid.cells()))
    planned = len(study.grid.seeds)
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                **dict(zip(study.grid.axes, cell.labels, strict=True)),
                "accuracies": [run.test_accuracy for run in cell.runs],
                "claimed": number(cell.claimed),
                "verified": number(cell.verified),
                "audited": number(cell.audited),
                "tuning": cell.tuning,
                "finished": len(cell.runs),
                "planned": planned,
            }
            for cell in found
        ]
        print_json({"study": str(study.path), "title": study.grid.title, "cells": rows})
        return
    table = Table(*study.grid.axes, box=None, pad_edge=False)
    found_by = columns.tried(runs)
    titles = [column.title for column in found_by]
    accuracy = "validation accuracy (%)" if study.grid.shared.get("validation") else "accuracy (%)"
    for heading in (accuracy, "ε claimed", "ε verified", "ε audited", *titles, "seeds"):
        table.add_column(heading, justify="right")
    for cell in found:
        table.add_row(
            *cell.labels,
            cell.accuracy,
            summary.epsilon(cell.claimed),
            summary.epsilon(cell.verified),
            summary.epsilon(cell.audited, lower_bound=True),
            *(column.text(cell) for column in found_by),
            f"{len(cell.runs)} of {planned}",
        )
    out = console(wrap=True)
    if not out.is_terminal:
        out.width = 200  # a pipe has no width: nothing is cut off
    out.print(table)
    out.print(
        f"{study.grid.title}; fixed seeds: reproducible, not private. A page with charts: assay report {study.path}"
    )
