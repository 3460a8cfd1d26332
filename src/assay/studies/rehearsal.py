"""Checks of a study's settings before its first run starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from assay import presets
from assay.distributed.world import world
from assay.errors import ConfigError
from assay.federated import from_names as federated
from assay.studies.grid import Grid, Run
from assay.training import from_names

_PRESET = {"preset": str}


def options(command: str) -> dict[str, Any]:
    """The settings that runs of a command accept, by name, with their types."""
    if command == "federate":
        return federated.FederatedSettings.options()
    return from_names.Settings.options() | _PRESET


def rehearse(grid: Grid, named: Callable[[tuple[str, ...]], str]) -> None:
    """Check the settings of every label, without training or writing anything.

    Args:
        grid: The runs.
        named: What a run is called in an error.

    Raises:
        ConfigError: The settings of a run are not accepted; it names the run.
        AssayError: The data or the model cannot be used.
    """
    for run in grid.rehearsals():
        try:
            _check(grid.command, run)
        except ConfigError as error:
            raise ConfigError("run", named(run.labels), f"{error}") from error


def _check(command: str, run: Run) -> None:
    given: Mapping[str, Any] = {key: value for key, value in run.settings.items() if value is not None}
    given = {**given, "seed": run.seed}
    if command == "federate":
        federated.prepare(federated.FederatedSettings.read(given))
        return
    from_names.prepare(presets.of_options(given), rehearsal=True).check(world().size)
