"""Checks of a study's settings before its first run starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dp_accounting.dp_event import ComposedDpEvent, SelfComposedDpEvent

from assay import presets
from assay.accounting.budget import Budget
from assay.distributed.world import world
from assay.errors import ConfigError
from assay.federated import from_names as federated
from assay.runs.budgeted import unit_of
from assay.studies.grid import Grid, Run
from assay.training import from_names
from assay.training.options import Settings

_PRESET = {"preset": str}


def options(command: str) -> dict[str, Any]:
    """The settings that runs of a command accept, by name, with their types."""
    if command == "federate":
        return federated.FederatedSettings.options()
    return Settings.options() | _PRESET


def rehearse(grid: Grid, named: Callable[[tuple[str, ...]], str]) -> None:
    """Check the settings of every label, without training or writing anything.

    Args:
        grid: The runs.
        named: What a run is called in an error.

    Raises:
        ConfigError: The settings of a run are not accepted; it names the run.
        BudgetSpentError: Together they do not fit into their budget.
        AssayError: The data or the model cannot be used.
    """
    found: list[from_names.Prepared | federated.PreparedFederation] = []
    for run in grid.rehearsals():
        try:
            found.append(_check(grid.command, run))
        except ConfigError as error:
            raise ConfigError("run", named(run.labels), f"{error}") from error
    _check_budget(found, len(grid.seeds))


def _check_budget(found: Sequence[from_names.Prepared | federated.PreparedFederation], seeds: int) -> None:
    """Refuse runs that do not fit into their budgets together. Each one reserves by itself when it starts."""
    names = {made.budget for made in found if made.budget is not None}
    for name in names:
        under = [made for made in found if made.budget == name]
        budget = Budget(str(name), key=under[0].budget_key)
        for made in under:
            budget.check_terms(adjacency=made.plan.adjacency, unit=unit_of(made.plan))
        budget.check_records(under[0].contents())
        budget.check_fits(ComposedDpEvent([SelfComposedDpEvent(made.plan.event(), seeds) for made in under]))


def _check(command: str, run: Run) -> from_names.Prepared | federated.PreparedFederation:
    given: Mapping[str, Any] = {key: value for key, value in run.settings.items() if value is not None}
    given = {**given, **run.randomness}
    if command == "federate":
        return federated.prepare(federated.FederatedSettings.read(given))
    made = from_names.prepare(presets.of_options(given), rehearsal=True)
    made.check(world().size)
    return made
