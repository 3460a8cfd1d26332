"""Carriers by name. Each module has `check(reach)` and `open_carrier(settings, directory, reach)`.

`settings` is what `assay.federated.client.open_site` takes; `directory` is the run's folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import ConfigError, one_of
from assay.federated.transport.carrier import Carrier

ENGINES = {
    "serial": "in this process, one client after another",
    "simulation": "in many processes on this machine, by Flower",
    "deploy": "on other machines, by Flower",
}


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How `deploy` reaches its clients: the superlink's address, and the directory with its `ca.crt`."""

    superlink: str | None = None
    certificates: str | None = None


def check(engine: str, reach: Reach) -> None:
    """Refuse an engine that cannot run or cannot reach its clients, before anything is written.

    Raises:
        ConfigError: There is no such engine, or `reach` does not fit it.
        AssayError: Flower is not installed.
    """
    if engine not in ENGINES:
        raise ConfigError("engine", engine, one_of(engine, ENGINES))
    for field, value in vars(reach).items():
        if value is not None and engine != "deploy":
            raise ConfigError(field, value, f"nothing, unless the engine is deploy (it is {engine})")
    importlib.import_module(f"{__name__}.{engine}").check(reach)


def open_carrier(engine: str, settings: Mapping[str, Any], directory: Path, reach: Reach) -> Carrier:
    """The carrier of this name."""
    check(engine, reach)
    carrier: Carrier = importlib.import_module(f"{__name__}.{engine}").open_carrier(settings, directory, reach)
    return carrier
