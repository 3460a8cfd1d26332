"""What several runs on the same records spend together, without a budget.

The settings of a later run may have been chosen after seeing earlier results, and when to stop may have been too.
Adding up privacy losses as if all settings had been fixed beforehand is not proven for that. Here the Rényi divergences
of all releases are added up and turned into ε by weights that were fixed before any run (`assay.accounting.filters`,
"what has been spent so far"), which is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from assay.accounting.recognition import one_for_both
from assay.errors import AssayError, ConfigError
from assay.runs.budgeted import FIELD, unit_in
from assay.runs.directory import RunDirectory, no_run


@dataclass(frozen=True, kw_only=True)
class Part:
    """One run of a total.

    Attributes:
        name: Its directory.
        data: What its data set was called.
        records: How many records it had.
        unit: What ε protects (`unit_in`); None where no run was begun, and its files do not say.
        event: Everything that its ledger was charged with.
        delta: The run's own δ.
        adjacency: Which data sets are neighbours.
        replaced: How many earlier runs in the same directory, replaced with --force, are part of it.
        whole: Whether it is one run that ended in order, or one estimate: what it released was fixed beforehand.
        unproven: Why its releases cannot be added up one by one; None if they can.
        draws: The random numbers of its segments that can be drawn again, of each ledger: those of a seed.
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
    whole: bool
    unproven: str | None
    draws: tuple[frozenset[tuple[str, int]], ...] = ()
    budget: str | None = None
    begun: bool = True

    @cached_property
    def epsilon(self) -> float:
        """The verified ε of the run by itself, with those that were replaced in its directory."""
        if self.whole:
            return epsilon(self.event, self.delta, self.adjacency)
        return ANY.epsilon(ANY.costs(self.event, self.adjacency), self.delta)


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
        ConfigError: A run is named twice, or the runs differ in unit or adjacency, or in δ and none is given, or what
            one of them released cannot be added up.
        AssayError: A ledger is damaged.
    """
    if not runs or isinstance(runs, str | Path):
        raise ConfigError("run", runs, "at least one run: a list of their directories")
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
    units = [part.unit for part in parts]
    unit = _same("unit", units, f"the same unit of privacy in all runs{one_for_both(*units)}") or "not known"
    adjacency = _same("adjacency", [part.adjacency for part in parts], "the same adjacency in all runs")
    if delta is None:
        delta = _same("delta", [part.delta for part in parts], "the same δ in all runs, or one for the total (--delta)")
    if not 0 < delta < 1:
        raise ConfigError("delta", delta, "a number above 0 and below 1")
    events = [part.event for part in parts]
    fixed = epsilon(ComposedDpEvent(events), delta, adjacency)
    alone = len(parts) == 1 and parts[0].whole
    if not alone:
        for part in parts:
            if part.unproven is not None:
                raise ConfigError("run", part.name, part.unproven)
        ledgers = [draws for part in parts for draws in part.draws]
        if sum(map(len, ledgers)) > len(frozenset().union(*ledgers)):
            raise ConfigError("run", [part.name for part in parts], "another seed in each run: one seed is one noise")
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
    ledgers, unit = _ledgers(run), unit_in(spec)
    replaced = sum(file.parent == run.earlier for file in ledgers)
    planned = Adjacency(plan.get("adjacency", Adjacency.ADD_OR_REMOVE_ONE))
    return Part(
        name=str(path),
        data=str(names.get("data", "unnamed")),
        records=plan.get("records") or names.get("records"),
        unit=unit,
        event=ComposedDpEvent([ledger.event() for ledger in ledgers.values()]),
        delta=plan["delta"],
        adjacency=next((ledger.adjacency for ledger in ledgers.values()), planned),
        replaced=replaced,
        whole=run.finished and not replaced,
        unproven=_SHARED if _shares_noise(spec) else _unproven(run, ledgers, unit),
        draws=tuple(ledger.draws for ledger in ledgers.values()),
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
        raise no_run(run.path)
    about: dict[str, Any] = (run.read_estimate() or {}).get("about") or {}
    replaced = sum(file.parent == run.earlier for file in ledgers)
    first = next(iter(run.replaced().values()), {})
    unit = about.get("unit") if run.estimate_ledger in ledgers else unit_in(first)
    return Part(
        name=str(run.path),
        data=str(about.get("data", "unnamed")),
        records=about.get("records"),
        unit=unit,
        event=ComposedDpEvent([ledger.event() for ledger in ledgers.values()]),
        delta=max(ledger.delta for ledger in ledgers.values()),
        adjacency=next(iter(ledgers.values())).adjacency,
        replaced=replaced,
        whole=not replaced,
        unproven=_unproven(run, ledgers, unit),
        draws=tuple(ledger.draws for ledger in ledgers.values()),
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
        ledger = read_ledger(file, own)
        if ledger is not None and not (ledger.is_empty and file.parent == run.earlier):
            found[file] = ledger
    adjacencies = dict.fromkeys(ledger.adjacency.value for ledger in found.values())
    _same("adjacency", list(adjacencies) or [None], f"one adjacency in all ledgers of {run.path}")
    return found


_SHARED = "a run whose steps have noise of their own: with noise that is correlated no total is proven"


def _unproven(run: RunDirectory, ledgers: Mapping[Path, Ledger], unit: str | None) -> str | None:
    """Why runs that were replaced in a directory cannot be added up step by step, for this unit; None if they can."""
    asked = run.replaced()
    for file, ledger in ledgers.items():
        if file.parent != run.earlier:
            continue
        spec = asked.get(ledger.run or "")
        if spec is None:
            return f"one whose replaced runs are known: what {file.name} in ledgers/ is the ledger of was not kept"
        if _shares_noise(spec):
            return _SHARED
        if (was := unit_in(spec)) != unit:
            return f"one unit in all runs of the directory: a replaced one has {was}, and not {unit}"
    return None


def _shares_noise(spec: Mapping[str, Any]) -> bool:
    said = spec.get("plan", {}).get("noise_schedule", "constant")
    return schedules.parse(str(said)).correlated


def _same(field: str, values: Sequence[Any], accepted: str) -> Any:
    if len(different := list(dict.fromkeys(values))) > 1:
        raise ConfigError(field, ", ".join(str(one) for one in different), accepted)
    return different[0]
