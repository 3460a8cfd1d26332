"""A table of a paper: a TOML under `experiments/<paper>/` that says what to run, and what the paper reports.

- `[train]`: options of `assay train` that all runs share.
- `[axis.NAME.LABEL]`: the options that a label stands for.
- `[[where]]`: options for some cells only (labels by axis, and `train`).
- `seeds`: the seeds. `note`: what a reader must know.
- `[theirs]`: the paper's numbers by label.
- `[small]`: reductions for a table that takes minutes: `seeds`, `[small.train]` (options that override all others) and
  `[small.labels]` (the labels of an axis that stay).
- `[figure]`: how the paper draws it. `x` is an axis whose labels begin with numbers, or `epochs` for what happened
  while training. `series` is an axis with a line for each label; the other axes have a panel for each label. `y`, with
  `epochs` alone, lists what is drawn: `accuracy` (the default), `training loss` or `test loss`.
- `[pictures]`: PNG files beside the TOML, with captions.
- `[attack]`: options of `assay attack`, `attack` (a list of names) among them. Finished runs are attacked, and the
  table shows how often the attacks are right. In `[theirs]` the attack is the last label, or `average`.
- `recall = true`: the table shows the classes with the lowest recall.
- `times = true`: the table shows how long a run takes.
- `runs = "paper/table"`: a figure or a table of attacks about the runs of another table, which are measured once.

For federated runs, `federate` replaces `train` everywhere, with the options of `assay federate`, and `rounds` replaces
`epochs`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay.errors import AssayError, ConfigError, one_of
from assay.studies.grid import COMMANDS, Grid

SCALES = ("full", "small")
_SHOWN = {"figure", "pictures", "attack", "recall", "times"}
_KEYS = {"title", "seeds", "axis", "theirs", "small", "note", "where", *_SHOWN}
_FIGURE_KEYS = {"x", "series", "log", "y"}
_DRAWN = ("accuracy", "training loss", "test loss")
_BORROWING_KEYS = {"title", "note", "runs", "figure", "attack", "theirs"}
_TIMES = {"train": "epochs", "federate": "rounds"}
_SMALL_KEYS = {"seeds", "labels"}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Which axis (or `epochs`, or `rounds`) is `x`, and which one, `series`, has a line for each label."""

    x: str
    series: str
    log: bool = False
    y: Sequence[str] = ("accuracy",)
    """What is drawn, each in panels of its own."""

    @property
    def losses(self) -> bool:
        """Whether it shows losses."""
        return tuple(self.y) != ("accuracy",)

    @property
    def over_time(self) -> bool:
        """Whether it shows what happened while training."""
        return self.x in _TIMES.values()


@dataclass(frozen=True, kw_only=True)
class Table:
    """What to run at this scale, what the paper reports, and what was reduced."""

    name: str
    title: str
    scale: str
    folder: Path
    grid: Grid
    runs: str
    """The table whose runs these are: this one, unless it is about another one's."""
    theirs: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    reduced: tuple[str, ...] = ()
    figure: Figure | None = None
    pictures: Mapping[str, str] = field(default_factory=dict)
    attack: Mapping[str, Any] = field(default_factory=dict)
    """Options of `assay attack`, if it is a table of attacks."""
    recall: bool = False
    """Whether it shows the classes with the lowest recall."""
    times: bool = False
    """Whether it shows how long a run takes."""

    @property
    def stem(self) -> Path:
        """Where its results are, without the ending: small ones never replace full ones."""
        return self.folder / self._scaled(self.name)

    @property
    def command(self) -> str:
        """The command that measures it."""
        return f"assay reproduce {self.name}" + ("" if self.scale == "full" else f" --scale {self.scale}")

    @property
    def study(self) -> str:
        """Where its runs are, below the directory for runs."""
        return self._scaled(self.runs)

    def _scaled(self, name: str) -> str:
        return name if self.scale == "full" else f"{name}.small"

    def reported(self, labels: tuple[str, ...]) -> str:
        """The paper's number for a cell. One that is given for fewer axes is the same along the others."""
        value: Any = self.theirs
        for label in labels:
            if not isinstance(value, Mapping):
                break
            if label not in value:
                return "–"
            value = value[label]
        return "–" if isinstance(value, Mapping) else str(value)


def folder(given: Path | None) -> Path:
    """The folder of experiments: the one that was named, or `experiments` here or above.

    Raises:
        ConfigError: There is none.
    """
    if given is not None:
        if not given.is_dir():
            raise ConfigError("experiments", str(given), "a folder with a folder for each paper")
        return given
    here = Path.cwd()
    for place in (here, *here.parents):
        if any((place / "experiments").glob("*/*.toml")):
            return place / "experiments"
    raise ConfigError(
        "experiments",
        str(here),
        "a checkout of Assay as the working directory, or --experiments DIR to name the folder",
    )


def names(where: Path) -> list[str]:
    """The tables there are."""
    return sorted(path.relative_to(where).with_suffix("").as_posix() for path in where.glob("*/*.toml"))


def read(where: Path, name: str, scale: str = "full") -> Table:
    """Read a table.

    Args:
        where: The folder of experiments.
        name: `paper/table`.
        scale: `full` or `small`.

    Returns:
        The table.

    Raises:
        ConfigError: There is no such table or scale.
        AssayError: Its file is not right.
    """
    if scale not in SCALES:
        raise ConfigError("scale", scale, one_of(scale, SCALES))
    if name not in names(where):
        raise ConfigError("table", name, one_of(name, names(where)))
    path = where / f"{name}.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise AssayError(f"{path} is not valid TOML: {error}") from error
    if "runs" in data:
        return _borrowing(path, data, where, name, scale)
    _known(path, data, _KEYS | set(COMMANDS), {"title", "seeds", "axis"})
    named = [command for command in COMMANDS if command in data]
    if len(named) != 1:
        raise AssayError(f"{path} needs exactly one of {' and '.join(f'[{command}]' for command in COMMANDS)}")
    command = named[0]
    full = Grid(
        title=data["title"],
        command=command,
        shared=data[command],
        axes=data["axis"],
        where=data.get("where", []),
        seeds=data["seeds"],
    )
    small = data.get("small")
    _known(path, small or {}, _SMALL_KEYS | {command}, set())
    grid = full
    if scale == "small":
        if small is None:
            raise ConfigError("scale", scale, f"full for {name}: its TOML has no [small] section")
        grid = _smaller(path, full, small)
    return Table(
        name=name,
        title=data["title"],
        scale=scale,
        folder=where,
        grid=grid,
        runs=name,
        theirs=data.get("theirs", {}),
        note=data.get("note", ""),
        reduced=tuple(_reductions(full, grid)),
        figure=_figure(path, data.get("figure"), full),
        pictures=data.get("pictures", {}),
        attack=_attack(path, data["attack"]) if "attack" in data else {},
        recall=bool(data.get("recall", False)),
        times=bool(data.get("times", False)),
    )


def subset(table: Table, only: Sequence[str], seeds: int | None) -> Grid:
    """Some of the table's runs.

    Args:
        table: The table.
        only: Labels, each `AXIS=LABEL`. An axis that is not named has all its labels.
        seeds: How many of its seeds, from the first; None for all.

    Returns:
        The runs.

    Raises:
        ConfigError: There is no such label, or there are fewer seeds.
    """
    axes = table.grid.axes
    kept: dict[str, list[str]] = {}
    for text in only:
        axis, _, label = text.partition("=")
        if axis not in axes:
            raise ConfigError("only", text, f"AXIS=LABEL with an axis of {table.name}: {', '.join(axes)}")
        if label not in axes[axis]:
            raise ConfigError(
                "only", text, f"{axis}=LABEL with a label of {table.name}: {', '.join(map(repr, axes[axis]))}"
            )
        kept.setdefault(axis, []).append(label)
    there = table.grid.seeds
    if seeds is not None and not 1 <= seeds <= len(there):
        raise ConfigError("seeds", seeds, f"how many of the {len(there)} seeds of {table.name}, from 1 to {len(there)}")
    return table.grid.subset(kept, there[:seeds])


def _borrowing(path: Path, data: Mapping[str, Any], where: Path, name: str, scale: str) -> Table:
    """A figure, or a table of attacks, of the runs of another table."""
    _known(path, data, _BORROWING_KEYS, {"title"})
    if ("figure" in data) == ("attack" in data):
        raise AssayError(f"{path} needs either [figure] or [attack] beside `runs`")
    if data["runs"] == name:
        raise AssayError(f"{path}: runs must name another table")
    base = read(where, data["runs"], scale)
    if base.runs != data["runs"]:
        raise AssayError(f"{path}: {data['runs']} is about other runs itself; name {base.runs}, which has them")
    more = {"name": name, "title": data["title"], "note": data.get("note", ""), "pictures": {}}
    if "figure" in data:
        return replace(base, **more, figure=_figure(path, data["figure"], base.grid))
    return replace(base, **more, figure=None, theirs=data.get("theirs", {}), attack=_attack(path, data["attack"]))


def _known(path: Path, data: Mapping[str, Any], keys: set[str], needed: set[str]) -> None:
    if data.keys() - keys:
        raise AssayError(
            f"{path} has {', '.join(sorted(data.keys() - keys))}, which is none of {', '.join(sorted(keys))}"
        )
    if needed - data.keys():
        raise AssayError(f"{path} lacks {', '.join(sorted(needed - data.keys()))}")


def _attack(path: Path, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(settings.get("attack"), list) or not settings["attack"]:
        raise AssayError(f"{path}: [attack] needs `attack`, a list of names of attacks")
    return settings


def _figure(path: Path, data: Mapping[str, Any] | None, grid: Grid) -> Figure | None:
    if data is None:
        return None
    _known(path, data, _FIGURE_KEYS, {"x", "series"})
    axes = set(grid.axes)
    time = _TIMES[grid.command]
    if data["series"] not in axes or data["x"] not in axes - {data["series"]} | {time}:
        raise AssayError(f"{path}: [figure] needs series and x among {', '.join(sorted(axes))}, or {time} for x")
    figure = Figure(**data)
    if not set(figure.y) <= set(_DRAWN) or (figure.losses and not figure.over_time):
        raise AssayError(f"{path}: [figure] needs y, a list of {', '.join(_DRAWN)}; losses with {time} for x")
    return figure


def _smaller(path: Path, full: Grid, small: Mapping[str, Any]) -> Grid:
    kept = small.get("labels", {})
    for axis, labels in kept.items():
        for label in labels:
            if label not in full.axes.get(axis, {}):
                raise AssayError(f"{path}: [small.labels] names {axis} {label!r}, which the table does not have")
    return replace(full.subset(kept, small.get("seeds", full.seeds)), last=small.get(full.command, {}))


def _reductions(full: Grid, small: Grid) -> list[str]:
    """What was reduced, in words."""
    said = []
    if list(small.seeds) != list(full.seeds):
        said.append(f"{len(small.seeds)} of {len(full.seeds)} seeds")
    for axis, labels in small.axes.items():
        if len(labels) < len(full.axes[axis]):
            said.append(f"{axis}: only {', '.join(labels)} of {len(full.axes[axis])}")
    for key, value in small.last.items():
        before = {str(full.settings(labels).get(key, "the default")) for labels in full.cells()}
        said.append(f"{key.replace('_', ' ')} {value} instead of {', '.join(sorted(before))}")
    return said
