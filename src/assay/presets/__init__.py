"""Settings of `assay train` that do well on a data set, by name; a TOML file a data set.

A preset says how its settings were found (`tried`, `on`, `charged`): settings chosen by looking at private records are a
release, and a statement must say whether that was paid for. What a user types goes before what a preset says.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from assay.data import catalog
from assay.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Options of `assay train`, and where they come from."""

    name: str
    settings: dict[str, Any]
    tried: int
    on: str
    charged: bool

    def origin(self, changed: Iterable[str] = ()) -> dict[str, Any]:
        """For the record; `changed` are the options for which something else was typed than the preset says."""
        return {
            "from": f"preset {self.name}",
            "changed": list(changed),
            "tried": self.tried,
            "on": self.on,
            "charged": self.charged,
        }


def of(asked: Mapping[str, Any]) -> Preset:
    """The preset that options of `assay train` name, for their data set and ε (for 1 without one)."""
    return get(asked["preset"], asked.get("data", catalog.DEFAULT), asked.get("epsilon") or 1.0)


def get(name: str, data: str, epsilon: float) -> Preset:
    """The preset of this name for a data set and a target ε: of settings given for several ε, those of the next higher one."""
    there = _file(data)
    if there is None:
        raise ConfigError("preset", name, f"a data set that has presets ({', '.join(available())}), not {data}")
    if name not in there:
        raise ConfigError("preset", name, f"one of {', '.join(there)} for {data}")
    found = there[name]
    levels = sorted(found["at"], key=lambda level: float(level["epsilon"]))
    level = next((level for level in levels if epsilon <= level["epsilon"]), levels[-1])
    return Preset(
        name=name,
        settings={**found["train"], **level["train"]},
        tried=found["tried"],
        on=found["on"],
        charged=found["charged"],
    )


def available() -> list[str]:
    """The data sets that have presets."""
    return sorted(
        entry.name.removesuffix(".toml") for entry in files(__name__).iterdir() if entry.name.endswith(".toml")
    )


@lru_cache(maxsize=16)
def _file(data: str) -> dict[str, Any] | None:
    return tomllib.loads((files(__name__) / f"{data}.toml").read_text("utf-8")) if data in available() else None
