"""A grid of ordinary runs: settings that all share, axes whose labels each stand for a few settings, and seeds.

A run is one label of each axis and one seed. One command trains them all, `assay train` or `assay federate`, and
settings are the names and values of its options. Wherever a grid is written (TOML, study.json), the settings are under
the name of that command.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay import presets
from assay.errors import ConfigError

Settings = Mapping[str, Any]

COMMANDS = ("train", "federate")


@dataclass(frozen=True)
class Run:
    """One cell of the grid with one seed."""

    labels: tuple[str, ...]
    seed: int
    settings: Settings
    preset: Settings = field(default_factory=dict)
    """What the preset among the settings stands for."""

    @property
    def decided(self) -> dict[str, Any]:
        """Everything that identifies the run. What was asked for overrides its preset."""
        return {**self.preset, **self.settings}

    @property
    def randomness(self) -> dict[str, int]:
        """The setting that seeds it. Under a budget there is none: two runs with one seed have the same noise."""
        return {} if self.decided.get("budget") else {"seed": self.seed}

    @property
    def name(self) -> str:
        """Its name for people."""
        return f"{', '.join(self.labels)}, seed {self.seed}"

    def directory(self, root: Path) -> Path:
        """Where it is under the study's directory."""
        return root.joinpath(*map(_folder, self.labels), f"seed{self.seed}")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The runs of a study.

    Attributes:
        title: For people.
        shared: Settings of all runs.
        axes: By axis and label, the settings that a label stands for.
        seeds: The seeds.
        where: Settings for some cells only.
        last: Settings that override all others.
        command: `train` or `federate`.
    """

    title: str
    shared: Settings
    axes: Mapping[str, Mapping[str, Settings]]
    seeds: Sequence[int]
    where: Sequence[Settings] = ()
    last: Settings = field(default_factory=dict)
    command: str = "train"
    presets: Mapping[str, Settings] | None = field(default=None, compare=False)
    """What presets stood for when a study was begun; None for what they stand for now."""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError("seeds", list(self.seeds), "at least one seed, each once")
        for axis, labels in self.axes.items():
            if not labels:
                raise ConfigError(f"axis {axis}", [], "at least one label")
            if len({_folder(label).casefold() for label in labels}) < len(labels):
                raise ConfigError(f"axis {axis}", list(labels), "labels that differ in their letters and digits")
        for rule in self.where:
            for axis in rule.keys() - {self.command}:
                if axis not in self.axes or not set(label_list(rule[axis])) <= self.axes[axis].keys():
                    raise ConfigError("where", dict(rule), f"labels of the table's axes, and `{self.command}`")

    def cells(self) -> Iterator[tuple[str, ...]]:
        """Every combination of labels, the last axis running fastest."""
        return itertools.product(*self.axes.values())

    def runs(self) -> Iterator[Run]:
        """Every run, all cells with the first seed before any with the second."""
        for seed in self.seeds:
            for labels in self.cells():
                yield self.run(labels, seed)

    def run(self, labels: tuple[str, ...], seed: int) -> Run:
        """This cell with this seed."""
        settings = self.settings(labels)
        return Run(labels, seed, settings, self._preset(settings) if "preset" in settings else {})

    def _preset(self, settings: Settings) -> Settings:
        return presets.of(settings).settings if self.presets is None else self.presets.get(_named(settings), {})

    def settings(self, labels: tuple[str, ...]) -> dict[str, Any]:
        """The options of the command in this cell. Lists of an axis add to lists; an empty text removes a setting."""
        settings = dict(self.shared)
        here = dict(zip(self.axes, labels, strict=True))
        for axis, label in here.items():
            for key, value in self.axes[axis][label].items():
                both = isinstance(value, list) and isinstance(settings.get(key), list)
                settings[key] = [*settings[key], *value] if both else value
        for rule in self.where:
            if all(here[axis] in label_list(rule[axis]) for axis in rule if axis != self.command):
                settings |= rule.get(self.command, {})
        return {key: value for key, value in (settings | dict(self.last)).items() if value != ""}

    def subset(self, labels: Mapping[str, Sequence[str]], seeds: Sequence[int]) -> Grid:
        """The runs with these labels of some axes and these seeds. Their names and settings do not change."""
        axes = dict(self.axes) | {
            axis: {label: self.axes[axis][label] for label in kept} for axis, kept in labels.items()
        }
        where = [
            {
                key: value if key == self.command else [label for label in label_list(value) if label in axes[key]]
                for key, value in rule.items()
            }
            for rule in self.where
        ]
        return replace(self, axes=axes, where=where, seeds=seeds)

    def rehearsals(self) -> Iterator[Run]:
        """As few runs as have every label once: an error in a label's settings shows in one of them."""
        axes = [list(labels) for labels in self.axes.values()]
        for i in range(max(map(len, axes), default=1)):
            labels = tuple(axis[i % len(axis)] for axis in axes)
            yield self.run(labels, self.seeds[0])

    def to_json(self) -> dict[str, Any]:
        """The grid as `from_json` reads it."""
        axes = {
            axis: {label: dict(settings) for label, settings in labels.items()} for axis, labels in self.axes.items()
        }
        named = [settings for settings in map(self.settings, self.cells()) if "preset" in settings]
        stood_for = {_named(settings): dict(self._preset(settings)) for settings in named}
        return {
            "title": self.title,
            self.command: dict(self.shared),
            "axes": axes,
            "where": [dict(rule) for rule in self.where],
            "last": dict(self.last),
            "seeds": list(self.seeds),
            **({"presets": stood_for} if stood_for else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Grid:
        """The grid that `to_json` described."""
        command = next(name for name in COMMANDS if name in data)
        kept = {key: data[key] for key in ("title", "axes", "where", "last", "seeds")}
        return cls(command=command, shared=data[command], presets=data.get("presets", {}), **kept)


def flags(settings: Settings) -> list[str]:
    """Settings as the words of a command line; a list is an option given several times."""
    words: list[str] = []
    for name, value in settings.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is True:
                words.append(option)
            elif one is not None and one is not False:
                words += [option, str(one)]
    return words


def arguments(settings: Settings) -> frozenset[tuple[str, ...]]:
    """Settings for comparison: equal where the command lines have the same options, in any order."""
    return frozenset(filter(None, (tuple(flags({name: value})) for name, value in settings.items())))


def _named(settings: Settings) -> str:
    """A preset, with everything that decides what it stands for."""
    return ", ".join(str(settings[key]) for key in ("preset", "data", "epsilon") if key in settings)


def label_list(value: Any) -> list[Any]:
    """One label or several."""
    return value if isinstance(value, list) else [value]


def _folder(label: str) -> str:
    """A label as the name of a folder on any system."""
    return re.sub(r'[<>:"/\\|?*\x00-\x1f]', "-", label).strip(" .") or "-"
