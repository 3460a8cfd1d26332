"""Compare methods at the same ε, over seeds: a grid of ordinary runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay import methods as central_methods
from assay.errors import ConfigError, check_above_zero, one_of
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
    """Train a grid of methods, ε and seeds, each run in a separate process, and summarise it.

        assay.studies.compare("studies/two", ["dpsgd", "lssgd:sigma=1"], epsilon=[1, 3], data="digits")

    The methods are all central, or all federated. The same call resumes a study that was stopped. Seeds are fixed: the
    runs are reproducible, not private. Under a budget they only number the runs, and each draws its own noise.

    Args:
        out: The study's directory: new, or one to resume.
        methods: Entries such as `dpsgd` or `lssgd:sigma=1`; options are those of the method or of its command.
        epsilon: Target ε, one or several.
        seeds: How many seeds; they are 0, 1, ...
        equal: Which ε is made equal: `verified`, or `claimed` (published variants, where a method has one).
        workers: Runs at a time; None for one on each core.
        listener: Told about the study's progress.
        **shared: Settings that all runs share (`assay.Settings`, or those of `assay.federated.federate`).

    Returns:
        A cell for each method and ε: `cells(Study.open(out))`.

    Raises:
        ConfigError: A setting is not accepted. Nothing was trained.
        UnfinishedStudyError: Runs failed, or the study was asked to stop.
    """
    study = prepare(out, methods, epsilon=epsilon, seeds=seeds, equal=equal, shared=shared)
    complete(study, workers, Silent() if listener is None else listener)
    return cells(study)


def prepare(
    out: Path | str,
    methods: str | Sequence[str],
    *,
    epsilon: float | Iterable[float] = 1.0,
    seeds: int = 3,
    equal: str = "verified",
    shared: Mapping[str, Any],
) -> Study:
    """Begin the study of `compare`: check every setting, make its directory, train nothing.

    Args:
        out: As for `compare`, and so the others.
        methods: Entries.
        epsilon: Target ε.
        seeds: How many seeds.
        equal: Which ε is made equal.
        shared: Settings that all runs share.

    Returns:
        The study.

    Raises:
        ConfigError: As `compare`.
    """
    path = Path(out)
    if equal not in _EQUAL:
        raise ConfigError("equal", equal, one_of(equal, _EQUAL))
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
    """Train the runs that are not finished."""
    running.complete(study, workers or os.cpu_count() or 1, listener)


def cells(study: Study) -> list[dict[str, Any]]:
    """The results of a study, cell by cell, as JSON."""
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
    """Warn where methods have different default bounds or optimizers: accuracies then differ by these, too."""
    used = {}
    for label, settings in grid.axes["method"].items():
        method = central_methods.get(settings["method"])
        given = {**grid.shared, **settings}
        used[label] = f"--clip {given.get('clip', method.clip)}, {given.get('optimizer', method.optimizer)}"
    if len(set(used.values())) > 1:
        said = "; ".join(f"{label}: {settings}" for label, settings in used.items())
        LOG.warning(
            f"these are not compared at the same bound and optimizer ({said})."
            " To give one its own: METHOD:clip=...,optimizer=..."
        )


def method_axis(text: str, equal: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """The command that the methods belong to, and the settings of each entry.

    Entries are such as `lssgd:sigma=1,over=tensor`; an option without a method belongs to the entry before.
    """
    entries: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        if entries and "=" in piece and ":" not in piece.partition("=")[0]:
            entries[-1] += ("," if ":" in entries[-1] else ":") + piece
        else:
            entries.append(piece)
    if not entries or len(set(entries)) < len(entries):
        raise ConfigError("methods", text, "at least one method, each entry once")
    command = _command(text, [entry.partition(":")[0] for entry in entries])
    return command, {entry: _method(command, entry, equal) for entry in entries}


_METHODS: Mapping[str, Any] = {"train": central_methods, "federate": federated_methods}


def _command(text: str, names: list[str]) -> str:
    known = {name: command for command, package in _METHODS.items() for name in package.available()}
    for name in names:
        if name not in known:
            raise ConfigError("method", name, one_of(name, known))
    if len({known[name] for name in names}) > 1:
        raise ConfigError(
            "methods",
            text,
            "methods of assay train only, or of assay federate only: what an ε protects there is not the same",
        )
    return known[names[0]]


def _method(command: str, entry: str, equal: str) -> dict[str, Any]:
    name, _, rest = entry.partition(":")
    package = _METHODS[command]
    known = type(package.get(name)).OPTIONS
    passed = rehearsal.options(command)
    options: dict[str, str] = {}
    settings: dict[str, Any] = {"method": name}
    for option in rest.split(",") if rest else []:
        key, equals, value = option.partition("=")
        key = key.replace("-", "_")
        if not equals or key in options or key in settings:
            raise ConfigError("methods", entry, "options as key=value, each once")
        if key in known:
            options[key] = value
        elif key in passed and key not in DECIDED:
            settings[key] = value
        else:
            raise ConfigError(
                "methods",
                entry,
                f"options of {name} ({', '.join(known) or 'it has none'}) or of assay {command}; not {key}",
            )
    if equal == "claimed" and "variant" in known:
        options.setdefault("variant", "published")
    package.get(name, **options)
    return settings | ({"option": [f"{key}={value}" for key, value in options.items()]} if options else {})


def _epsilon_axis(given: float | Iterable[float]) -> dict[str, dict[str, Any]]:
    axis: dict[str, dict[str, Any]] = {}
    values = list(given) if isinstance(given, Iterable) else [given]
    for value in values:
        check_above_zero("epsilon", value)
        if f"{value:g}" in axis:
            raise ConfigError("epsilon", ",".join(f"{one:g}" for one in values), "each number once")
        axis[f"{value:g}"] = {"epsilon": float(value)}
    return axis
