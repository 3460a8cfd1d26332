"""Carriers by name: what runs the clients. Each module offers `open_carrier(settings, directory)`.

`settings` is what `assay.federated.site.open_site` takes; `directory` is the run's folder, or None.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.errors import ConfigError
from assay.federated.carrier import Carrier

ENGINES = {
    "serial": "in this process, one client after another",
    "simulation": "in many processes on this machine, by Flower",
    "deploy": "on other machines, by Flower",
}


def check(engine: str) -> None:
    """Refuse an engine that is not there, before anything is written."""
    if engine not in ENGINES:
        raise ConfigError("engine", engine, "one of " + ", ".join(ENGINES))
    name = f"{__name__}.{engine}"
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (
            "this version does not have it" if error.name == name else f"it needs {error.name}, which is not installed"
        )
        raise ConfigError("engine", engine, f"serial, or install what this one needs ({missing})") from error


def open_carrier(engine: str, settings: Mapping[str, Any], directory: Path | None) -> Carrier:
    """The carrier of this name."""
    check(engine)
    carrier: Carrier = importlib.import_module(f"{__name__}.{engine}").open_carrier(settings, directory)
    return carrier
