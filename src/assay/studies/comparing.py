"""Methods against each other at the same ε, over seeds: a grid of ordinary runs, as a call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay import methods as methods_room
from assay.errors import ConfigError, check_above_zero
from assay.federated import methods as federated_methods
from assay.runs.record import number
from assay.studies import rehearsal, running, summary
from assay.studies.directory import Study
from assay.studies.grid import Grid
from assay.studies.running import Listener, Silent
from assay.training.inputs import LOG

_EQUAL = ("verified", "claimed")
DECIDED = {
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


def compare(
    out: Path | str,
    methods: str | Sequence[str],
    *,
    epsilon: float | Iterable[float] = 1.0,
    seeds: int = 3,
    equal: str = "verified",
    workers: int | None = None,
    listener: Listener | None = None,
    **shared: Any,
) -> list[dict[str, Any]]:
    """Train a grid of methods, ε and seeds, each run in a process of its own, and sum it up.

        assay.studies.compare("studies/two", ["dpsgd", "lssgd:sigma=1"], epsilon=[1, 3], data="digits", model="linear-head")

    The methods are all central, or all federated. A study that was stopped goes on with the same call. Seeds are fixed: the runs
    are reproducible, not private.

    Args:
        out: The study's directory: new, or one to go on with.
        methods: Entries such as `dpsgd` or `lssgd:sigma=1`; options are those of the method or of its command.
        epsilon: Target ε, one or several.
        seeds: How many seeds; they are 0, 1, ...
        equal: Which ε is made equal: `verified`, or `claimed` (published variants, where a method has one).
        workers: Runs at a time; None for one on each core.
        listener: Is told how the study goes on.
        **shared: Settings that all runs share (`assay.Settings`, or those of `assay.federated.federate`).

    Returns:
        One cell for each method and ε: `cells(Study.open(out))`.

    Raises:
        ConfigError: A setting is not accepted. Nothing was trained.
        UnfinishedStudyError: Runs failed, or the study was asked to stop.
    """
    study = prepared(out, methods, epsilon=epsilon, seeds=seeds, equal=equal, shared=shared)
    complete(study, workers, Silent() if listener is None else listener)
    return cells(study)


def prepared(
    out: Path | str,
    methods: str | Sequence[str],
    *,
    epsilon: float | Iterable[float] = 1.0,
    seeds: int = 3,
    equal: str = "verified",
    shared: Mapping[str, Any],
) -> Study:
    """The study of `compare`, with every setting checked and nothing trained; its directory is begun.

    Raises:
        ConfigError: As `compare`.
    """
    path = Path(out)
    if equal not in _EQUAL:
        raise ConfigError("equal", equal, "one of " + ", ".join(_EQUAL))
    if seeds < 1:
        raise ConfigError("seeds", seeds, "a whole number, 1 or above")
    command, axis = method_axis(methods if isinstance(methods, str) else ",".join(methods), equal)
    for name in shared.keys() & DECIDED.keys():
        raise ConfigError(name, shared[name], DECIDED[name])
    grid = Grid(
        title=f"Methods at equal {equal} ε",
        command=command,
        shared=shared,
        axes={"method": axis, "epsilon": _epsilon_axis(epsilon)},
        seeds=range(seeds),
    )
    if not (path / "study.json").exists():
        rehearsal.rehearse(grid, lambda labels: labels[0])
    study = Study.at(path, grid)
    if command == "train":
        _note_defaults(grid)
    return study


def complete(study: Study, workers: int | None, listener: Listener) -> None:
    """Do all that is not done."""
    running.complete(study, workers or os.cpu_count() or 1, listener)


def cells(study: Study) -> list[dict[str, Any]]:
    """What the runs of a study came to, a cell at a time, as JSON."""
    runs = summary.measured(study)
    return [
        {
            **dict(zip(study.grid.axes, cell.labels, strict=True)),
            "accuracies": [run.test_accuracy for run in cell.runs],
            "claimed": number(cell.claimed),
            "verified": number(cell.verified),
            "audited": number(cell.audited),
            "tuning": cell.tuning,
            "finished": len(cell.runs),
            "planned": len(study.grid.seeds),
        }
        for cell in summary.cells(runs, list(study.grid.cells()))
    ]


def _note_defaults(grid: Grid) -> None:
    """Say it where methods bring bounds or optimizers of their own: accuracies then differ by these, too."""
    own = {}
    for label, settings in grid.axes["method"].items():
        method = methods_room.get(settings["method"])
        given = {**grid.shared, **settings}
        own[label] = f"--clip {given.get('clip', method.clip)}, {given.get('optimizer', method.optimizer)}"
    if len(set(own.values())) > 1:
        said = "; ".join(f"{label}: {settings}" for label, settings in own.items())
        LOG.warning(
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
    passed = rehearsal.options(command)
    own: dict[str, str] = {}
    settings: dict[str, Any] = {"method": name}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        key = key.replace("-", "_")
        if not equals or key in own or key in settings:
            raise ConfigError("methods", entry, "options as key=value, each once")
        if key in known:
            own[key] = value
        elif key in passed and key not in DECIDED:
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


def _epsilon_axis(given: float | Iterable[float]) -> dict[str, dict[str, Any]]:
    axis: dict[str, dict[str, Any]] = {}
    values = list(given) if isinstance(given, Iterable) else [given]
    for value in values:
        check_above_zero("epsilon", value)
        if f"{value:g}" in axis:
            raise ConfigError("epsilon", ",".join(f"{one:g}" for one in values), "each number once")
        axis[f"{value:g}"] = {"epsilon": float(value)}
    return axis
