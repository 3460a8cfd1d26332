"""What several runs on the same records spend together, without a budget.

The settings of a later run may have been chosen after seeing earlier results, and when to stop may have been too.
Adding up privacy losses as if all settings had been fixed beforehand is not proven for that. Here the Rényi divergences
of all releases are added up and turned into ε by weights that were fixed before any run (`assay.accounting.filters`,
"what has been spent so far"), which is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from assay.accounting import schedules
from assay.accounting.adjacency import Adjacency
from assay.accounting.epsilon import epsilon
from assay.accounting.filters import ANY
from assay.accounting.ledger import Ledger, read_ledger
from assay.errors import AssayError, ConfigError
from assay.runs.budgeted import FIELD
from assay.runs.directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Part:
    """One run of a total.

    Attributes:
        name: Its directory.
        data: What its data set was called.
        records: How many records it had.
        unit: What ε protects: `record`, `client`, or a column that says whose a record is; None where no run was
            begun, and its files do not say.
        event: Everything that its ledger was charged with.
        delta: The run's own δ.
        adjacency: Which data sets are neighbours.
        replaced: How many earlier runs in the same directory, replaced with --force, are part of it.
        shared_noise: Whether steps have noise in common.
        budget: The id of the budget that it is under; None without one.
        begun: Whether there is a run; if not, its columns were estimated and it never began.
    """

    name: str
    data: str
    records: int | None
    unit: str | None
    event: DpEvent
    delta: float
    adjacency: Adjacency
    replaced: int
    shared_noise: bool
    budget: str | None = None
    begun: bool = True

    @cached_property
    def epsilon(self) -> float:
        """The verified ε of the run by itself."""
        return epsilon(self.event, self.delta, self.adjacency)


@dataclass(frozen=True, kw_only=True)
class Total:
    """What runs spend together.

    Attributes:
        epsilon: Holds although each run was chosen after seeing those before it.
        fixed: What would hold if all settings had been fixed before the first run; smaller, and rarely true.
        delta: The δ of both.
        adjacency: Which data sets are neighbours.
        unit: What ε protects.
        parts: The runs.
    """

    epsilon: float
    fixed: float
    delta: float
    adjacency: Adjacency
    unit: str
    parts: tuple[Part, ...]

    @property
    def same_records(self) -> bool:
        """Whether all runs call their data the same and have as many records.

        No proof: only a budget compares content.
        """
        return len({(part.data, part.records) for part in self.parts}) == 1


def total(runs: Sequence[Path | str], *, delta: float | None = None) -> Total:
    """What these runs spend together if they were on the same records: `assay total` as a call.

    Unfinished runs count for what their ledgers hold, and so do runs that were replaced with --force.

    Args:
        runs: Directories of runs, each once.
        delta: The δ of the total; that of the runs by default.

    Returns:
        The total, with each run's own ε.

    Raises:
        ConfigError: A run is named twice, or the runs differ in unit or adjacency, or in δ and none is given.
        AssayError: A ledger is damaged.
    """
    if not runs:
        raise ConfigError("run", [], "at least one run")
    parts = tuple(part_of(Path(run)) for run in runs)
    places = [Path(run).resolve() for run in runs]
    for place in places:
        if places.count(place) > 1:
            raise ConfigError("run", str(place), "each run once")
    return compose(parts, delta=delta)


def compose(parts: Sequence[Part], *, delta: float | None = None) -> Total:
    """The total of runs that were read (`part_of`).

    Raises:
        ConfigError: As `total`.
    """
    units = [part.unit for part in parts if part.unit is not None]
    unit = _same("unit", units, "the same unit of privacy in all runs") if units else "not known"
    adjacency = _same("adjacency", [part.adjacency for part in parts], "the same adjacency in all runs")
    if delta is None:
        delta = _same("delta", [part.delta for part in parts], "the same δ in all runs, or one for the total (--delta)")
    if not 0 < delta < 1:
        raise ConfigError("delta", delta, "a number above 0 and below 1")
    events = [part.event for part in parts]
    fixed = epsilon(ComposedDpEvent(events), delta, adjacency)
    alone = len(parts) == 1 and not parts[0].replaced
    if not alone:
        for part in parts:
            if part.shared_noise:
                raise ConfigError(
                    "run",
                    part.name,
                    "a run whose steps have noise of their own: with noise that is correlated no total is proven",
                )
    spent = fixed if alone else ANY.epsilon(np.sum([ANY.costs(event, adjacency) for event in events], axis=0), delta)
    return Total(epsilon=spent, fixed=fixed, delta=delta, adjacency=adjacency, unit=unit, parts=tuple(parts))


def part_of(path: Path) -> Part:
    """What one run has spent, by its ledgers.

    Raises:
        ConfigError: It is not the directory of a run, or runs in it differ in adjacency.
        AssayError: A ledger is damaged.
    """
    run = RunDirectory(path)
    if not run.spec.exists() and (run.estimate_ledger.exists() or run.earlier.exists()):
        return _begun_no_run(run)
    run = RunDirectory.open(path)
    spec = run.read_spec()
    if run.finished:
        run.check_files(run.read_record(), run.spec.name, run.ledger.name)
        if not run.ledger.exists():
            raise AssayError(f"{run.ledger} is missing: without it the ε of this run is not known")
    plan, names = spec["plan"], spec["names"]
    ledgers = _ledgers(run)
    planned = Adjacency(plan.get("adjacency", Adjacency.ADD_OR_REMOVE_ONE))
    return Part(
        name=str(path),
        data=str(names.get("data", "unnamed")),
        records=plan.get("records") or names.get("records"),
        unit=_unit(plan, names),
        event=ComposedDpEvent([ledger.event() for ledger in ledgers.values()]),
        delta=plan["delta"],
        adjacency=next((ledger.adjacency for ledger in ledgers.values()), planned),
        replaced=sum(file.parent == run.earlier for file in ledgers),
        shared_noise=schedules.parse(str(plan.get("noise_schedule", "constant"))).correlated,
        budget=(spec.get(FIELD) or {}).get("id"),
    )


def _begun_no_run(run: RunDirectory) -> Part:
    """What was spent in a directory where no run has begun: an estimate of columns, or runs that were replaced.

    Raises:
        ConfigError: Nothing was.
        AssayError: A ledger is damaged.
    """
    ledgers = _ledgers(run)
    if not ledgers:
        raise ConfigError("run", str(run.path), "the directory of a run (it holds a run.json)")
    about: dict[str, Any] = (run.read_estimate() or {}).get("about") or {}
    return Part(
        name=str(run.path),
        data=str(about.get("data", "unnamed")),
        records=about.get("records"),
        unit=about.get("unit"),
        event=ComposedDpEvent([ledger.event() for ledger in ledgers.values()]),
        delta=max(ledger.delta for ledger in ledgers.values()),
        adjacency=next(iter(ledgers.values())).adjacency,
        replaced=sum(file.parent == run.earlier for file in ledgers),
        shared_noise=False,
        begun=False,
    )


def _ledgers(run: RunDirectory) -> dict[Path, Ledger]:
    """Every ledger in the directory of a run whose charges count, by its file.

    Raises:
        ConfigError: They differ in adjacency.
    """
    found: dict[Path, Ledger] = {}
    unpaid = [] if run.unpaid_estimate() is None else [run.estimate_ledger]
    for file in (run.ledger, *unpaid, *sorted(run.earlier.glob("*.jsonl"))):
        own = run.digest() if file == run.ledger and run.spec.exists() else None
        if (ledger := read_ledger(file, own)) is not None:
            found[file] = ledger
    adjacencies = dict.fromkeys(ledger.adjacency.value for ledger in found.values())
    _same("adjacency", list(adjacencies) or [None], f"one adjacency in all ledgers of {run.path}")
    return found


def _unit(plan: dict[str, Any], names: dict[str, Any]) -> str:
    """What ε protects, as budgets call it."""
    said = plan.get("unit")
    if isinstance(said, dict):
        return str(said.get("name"))
    return str(said or "record") if "clients" in plan or said else str(names.get("unit_column") or "record")


def _same(field: str, values: Sequence[Any], accepted: str) -> Any:
    if len(different := list(dict.fromkeys(values))) > 1:
        raise ConfigError(field, ", ".join(str(one) for one in different), accepted)
    return different[0]
