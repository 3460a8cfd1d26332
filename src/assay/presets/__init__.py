"""Settings of `assay train` that do well on a data set, one TOML file per data set.

A preset says how its settings were chosen (`tried`, `on`, `charged`). Choosing settings by results on private records
is a release, and the statement must say whether that was paid for. Options that a user gives override a preset.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.data import catalog
from assay.data.tables.names import is_table
from assay.data.tables.schema import Schema, as_schema
from assay.errors import ConfigError, one_of

if TYPE_CHECKING:
    from assay.training.options import Settings

_TABLE = "table"  # the file for tables of one's own
_HUB = "hf:"  # data sets of Hugging Face, which may be tables
_BEST, _NUMBER = "best", "number"  # its presets


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Options of `assay train`, and where they come from.

    Attributes:
        name: the name of the preset.
        settings: the options.
        tried: how many settings were tried.
        on: the data on which they were compared.
        charged: whether that comparison was charged to a privacy budget.
    """

    name: str
    settings: dict[str, Any]
    tried: int
    on: str
    charged: bool

    def origin(self, changed: Iterable[str] = ()) -> dict[str, Any]:
        """The origin of the settings for the record; `changed` names the options that the user overrode."""
        return {
            "from": f"preset {self.name}",
            "changed": list(changed),
            "tried": self.tried,
            "on": self.on,
            "charged": self.charged,
        }


def settings(data: str, *, epsilon: float | None = None, name: str = "best", **changes: Any) -> Settings:
    """The settings of a preset, for `assay.train`.

    Args:
        data: a data set that has presets.
        epsilon: the target ε. None means 1, or no ceiling where `noise_multiplier` is among the changes.
        name: the preset.
        **changes: other settings by name (`assay.Settings`). They override those of the preset, and the record says so.

    Returns:
        Settings that name their origin. `assay.training.from_names.prepare` turns them into a model, records, a plan
        and `Training`.

    Raises:
        ConfigError: the data set has no such preset, or a change is not a setting.

    >>> best = settings("mnist", epsilon=1)
    >>> best.model, best.features
    ('scatter-linear', 'deskew+scatter')
    >>> settings("mnist", epsilon=1, model="lenet5").model
    'lenet5'
    """
    from assay.data.tables.drafts import is_draft
    from assay.training.options import Settings, read_options  # presets are listed without torch

    preset = get(name, data, epsilon or 1.0)
    given = read_options(Settings.options(), changes, "assay train")
    advised = dict(preset.settings)
    if given.get("unit") is not None:
        advised.pop("center", None)  # a mean over rows is released for rows: it says nothing of a person with several
    filled = {**advised, **given, "data": data, "epsilon": epsilon}
    other = None
    if name == _BEST and is_table(data) and is_draft(given.get("schema")):
        other = settings(data, epsilon=epsilon, name=_NUMBER, **changes)  # what the target is will be known later
    return Settings(**filled, origin=preset.origin(), preset=advised, given=frozenset(given), if_number=other)


def of_options(given: Mapping[str, Any]) -> Settings:
    """Settings from options of `assay train` by name. If `preset` is among them, the others override it.

    Args:
        given: the options that a person gave; numbers may be texts.

    Raises:
        ConfigError: a name is not known, a value is not of its type, or there is no such preset.
    """
    from assay.training.options import Settings

    rest = {name: value for name, value in given.items() if name != "preset"}
    chosen = given.get("preset") or default_of(rest)
    if chosen is None:
        return Settings.read(rest)
    read = Settings.read({name: value for name, value in rest.items() if name in ("data", "epsilon")})
    others = {name: value for name, value in rest.items() if name not in ("data", "epsilon")}
    return settings(read.data, epsilon=read.epsilon, name=chosen, **others)


def default_of(given: Mapping[str, Any]) -> str | None:
    """The preset that a run has without being asked: a table without a model gets a linear one that is known to do
    well.

    Args:
        given: Only what a person gave.

    Returns:
        A preset's name, or None.
    """
    data, declared = str(given.get("data", "")), _declared(given.get("schema"), given.get("target"))
    on_hub = data.startswith(_HUB) and declared is not None  # and not pictures
    if given.get("model") is not None or not (is_table(data) or on_hub):
        return None
    return _NUMBER if declared is not None and declared.predicts_number else _BEST


def _declared(schema: Path | str | None, target: str | None) -> Schema | None:
    """The schema of a table; one that cannot be read is refused when the table is."""
    if schema is None:
        return None
    try:
        return as_schema(schema, target)
    except ConfigError:
        return None


def of(asked: Mapping[str, Any]) -> Preset:
    """The preset that options of `assay train` name, for their data set and ε (1 if they have none)."""
    return get(asked["preset"], asked.get("data", catalog.DEFAULT), asked.get("epsilon") or 1.0)


def get(name: str, data: str, epsilon: float) -> Preset:
    """The preset of this name for a data set and a target ε.

    A preset may have settings for several ε. Those for the smallest ε at or above the target apply, or else the last.

    Raises:
        ConfigError: the data set has no such preset.
    """
    presets = contents(_TABLE if is_table(data) or data.startswith(_HUB) else data)
    if presets is None:
        raise ConfigError("preset", name, f"a data set that has presets ({', '.join(available())}), not {data}")
    if name not in presets:
        raise ConfigError("preset", name, f"{one_of(name, presets)} for {data}")
    preset = presets[name]
    levels = sorted(preset["at"], key=lambda level: float(level["epsilon"]))
    level = next((level for level in levels if epsilon <= level["epsilon"]), levels[-1])
    return Preset(
        name=name,
        settings={**preset["train"], **level["train"]},
        tried=preset["tried"],
        on=preset["on"],
        charged=preset["charged"],
    )


def available() -> list[str]:
    """The data sets that have presets."""
    return sorted(
        name
        for entry in files(__name__).iterdir()
        if entry.name.endswith(".toml") and (name := entry.name.removesuffix(".toml")) != _TABLE
    )


@lru_cache(maxsize=16)
def contents(data: str) -> dict[str, Any] | None:
    """The presets of a data set by name, as its TOML file has them; None if it has none."""
    return (
        tomllib.loads((files(__name__) / f"{data}.toml").read_text("utf-8")) if data in (*available(), _TABLE) else None
    )
