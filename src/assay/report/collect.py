"""The runs below a directory, in whatever state: finished, unfinished, damaged. None is dropped silently.

Collecting only reads. The ledger of a run that may be at work is copied before it is opened, because opening one
repairs a torn last line.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay._util.files import is_part
from assay.accounting.ledger import read_ledger
from assay.attacks.storage import read_attacks
from assay.audit.aside import read_aside
from assay.errors import AssayError, ConfigError
from assay.federated.kinds import epsilon_if_ended, kind_of
from assay.runs import checkpoint, schema
from assay.runs.directory import RunDirectory
from assay.runs.statement import scored
from assay.runs.totals import Part, part_of
from assay.runs.verification import check_epsilon, check_statement
from assay.studies.directory import Study
from assay.studies.summary import tried
from assay.training.inputs import is_choice

_PNG = b"\x89PNG\r\n\x1a\n"
_LARGEST_PICTURE = 4_000_000  # bytes; larger ones would make the page too slow to open
_BEGINNING = ".run.json."  # a run.json that was never completed
_WATCHED = (
    "run.json",
    "record.json",
    "statement.md",
    "attacks.json",
    "audits.json",
    "ledger.jsonl",
    "checkpoint.safetensors",
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A PNG in a run's directory; `data` is empty for one that is not shown, and `why` says why."""

    name: str
    data: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run with its record."""

    name: str
    record: Mapping[str, Any]
    spec: Mapping[str, Any]
    statement: str
    attacks: tuple[Mapping[str, Any], ...] = ()
    aside: tuple[Mapping[str, Any], ...] = ()
    pictures: tuple[Picture, ...] = ()
    trouble: str = ""
    part: Part | None = None
    """What it spent, for the total of several; None where its ledger is not beside its record."""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A run without a record: what is charged so far, by its ledger, and the ε that holds if it ends here."""

    name: str
    method: str
    data: str
    model: str
    planned: int | None
    charged: int | None
    epsilon: float | None
    delta: float | None
    history: tuple[Mapping[str, Any], ...]
    changed: str
    scored: str
    trouble: str = ""
    part: Part | None = None


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """Something that should be a run and cannot be read."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Collected:
    """All runs below a directory; `waiting` are those that a study has not begun."""

    title: str
    finished: tuple[Finished, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()
    damaged: tuple[Damaged, ...] = ()
    waiting: tuple[str, ...] = ()


Entry = Finished | Unfinished | Damaged


@dataclass
class Collector:
    """Collects repeatedly (`--serve`), reading only what has changed.

    Args:
        root: The directory.
        uncovered: Include figures that no ε covers: results of attacks, and audits that trained again.

    Raises:
        ConfigError: There is no such directory.
    """

    root: Path
    uncovered: bool = False
    _kept: dict[Path, tuple[str, Entry]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.root.is_dir():
            raise ConfigError("directory", str(self.root), "a directory: a run, a study, or one with runs below it")

    def collect(self) -> Collected:
        """The runs as they are now."""
        entries: list[Entry] = []
        damaged: list[Damaged] = []
        waiting: list[str] = []
        title = self.root.resolve().name
        runs, studies = _find(self.root)
        for path in runs:
            state = _state(path)
            known = self._kept.get(path)
            if known is None or known[0] != state:
                self._kept[path] = state, _read(path, self._name(path), self.uncovered)
            entries.append(self._kept[path][1])
        for path in studies:
            try:
                study = Study.open(path)
            except (AssayError, OSError, KeyError, TypeError) as error:
                damaged.append(Damaged(name=self._name(path), why=f"study.json: {error}"))
                continue
            waiting += [self._name(study.of(run).path) for run in study.unfinished() if not study.of(run).spec.exists()]
            if path == self.root:
                title = study.grid.title
        return Collected(
            title=title,
            finished=tuple(e for e in entries if isinstance(e, Finished)),
            unfinished=tuple(e for e in entries if isinstance(e, Unfinished)),
            damaged=(*(e for e in entries if isinstance(e, Damaged)), *damaged),
            waiting=tuple(waiting),
        )

    def fingerprint(self) -> str:
        """Changes whenever the page would."""
        runs, studies = _find(self.root)
        files = [path / "study.json" for path in studies]
        return hashlib.sha256(repr([*((run, _state(run)) for run in runs), *map(_stamp, files)]).encode()).hexdigest()

    def _name(self, path: Path) -> str:
        relative = path.relative_to(self.root).as_posix()
        return self.root.resolve().name if relative == "." else relative


def _find(root: Path) -> tuple[list[Path], list[Path]]:
    runs, studies = [], []
    for folder, below, files in os.walk(root):
        below[:] = sorted(name for name in below if not is_part(name))  # a copy that was killed is not a run
        if "study.json" in files:
            studies.append(Path(folder))
        if "run.json" in files or "record.json" in files or any(name.startswith(_BEGINNING) for name in files):
            runs.append(Path(folder))
            below.clear()
    return runs, studies


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), stat.st_mtime_ns, stat.st_size


def _state(run: Path) -> str:
    return repr([_stamp(run / name) for name in _WATCHED] + [_stamp(path) for path in _png_files(run)])


def _png_files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*.png") if path.is_file())


def _read(path: Path, name: str, uncovered: bool) -> Entry:
    directory = RunDirectory(path)
    try:
        if directory.finished:
            return _finished(directory, name, uncovered)
        if not directory.spec.exists():
            return Damaged(name=name, why="killed before it had begun: there is no run.json, and nothing was charged")
        return _unfinished(directory, name)
    except (AssayError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = str(error).replace(str(path), name)
        if not isinstance(error, AssayError | OSError):
            why = f"a file does not have the form it should have: {error!r}"
        return Damaged(name=name, why=why)


def _finished(directory: RunDirectory, name: str, uncovered: bool) -> Finished:
    record = directory.read_record()
    for key in ("method", "data"):
        if not isinstance(record[key], str):
            raise ValueError(f"{key} in record.json")
    for key in ("claimed", "verified", "audited"):
        number(record["epsilon"].get(key))
    if number(record["epsilon"]["verified"]) is None or not 0 < float(record["epsilon"]["delta"]) < 1:
        raise ValueError("epsilon in record.json")
    tried(record.get("tuning"))  # raises if it has another form
    trouble: list[str] = []
    spec = _optional(directory.read_spec, "run.json", {}, trouble) if directory.spec.exists() else {}
    statement = (
        _optional(lambda: _statement(directory, record), "statement.md", "", trouble)
        if directory.statement.exists()
        else ""
    )
    if not statement and not trouble:
        trouble.append("statement.md is missing")
    if directory.ledger.exists():
        directory.check_files(record, directory.ledger.name)
    if not check_epsilon(directory, record):  # a run that says less than its ledger counts nowhere
        trouble.append("ε was not recomputed: there is no ledger")
    attacks: Iterable[Mapping[str, Any]] = ()
    aside: Iterable[Mapping[str, Any]] = ()
    if uncovered:
        attacks = _optional(lambda: read_attacks(directory), "attacks.json", (), trouble)
        aside = _optional(lambda: read_aside(directory), "audits.json", (), trouble)
    return Finished(
        name=name,
        record=record,
        spec=spec,
        statement=statement,
        attacks=tuple(attacks),
        aside=tuple(aside),
        pictures=tuple(_picture(path, directory.path) for path in _png_files(directory.path)),
        trouble="; ".join(trouble),
        part=_part(directory),
    )


def _statement(directory: RunDirectory, record: Mapping[str, Any]) -> str:
    text = directory.read_statement(record)
    check_statement(directory, record, text)
    return text


def _part(directory: RunDirectory) -> Part | None:
    """What a run spent by its ledger, if it is there and whole; what is wrong with it is said elsewhere."""
    found: Part | None = _optional(lambda: part_of(directory.path), "ledger.jsonl", None, [])
    return found


def _optional(read: Callable[[], Any], what: str, otherwise: Any, trouble: list[str]) -> Any:
    try:
        return read()
    except (AssayError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        trouble.append(str(error) if isinstance(error, AssayError) else f"{what} cannot be read ({error})")
        return otherwise


def _unfinished(directory: RunDirectory, name: str) -> Unfinished:
    spec = directory.read_spec()
    plan, names = spec.get("plan", {}), spec.get("names", {})
    trouble: list[str] = []
    charged, epsilon, delta = _optional(lambda: _charged(directory, spec), "ledger.jsonl", (None, None, None), trouble)
    history: Iterable[Mapping[str, Any]] = ()
    if directory.checkpoint.exists():
        state = _optional(lambda: _progress(directory, spec), "the checkpoint", {}, trouble)
        history = state.get("history", ())
    latest = max(path.stat().st_mtime for path in (directory.spec, directory.ledger) if path.exists())
    return Unfinished(
        name=name,
        method=str(plan.get("method", "unnamed")),
        data=str(names.get("data", "unnamed")),
        model=str(names.get("model", "unnamed")),
        planned=plan.get("steps", plan.get("rounds")),
        charged=charged,
        epsilon=epsilon,
        delta=delta,
        history=tuple(history),
        changed=datetime.datetime.fromtimestamp(latest, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        scored=scored(names),
        trouble="; ".join(trouble),
        part=_part(directory),
    )


def _charged(directory: RunDirectory, spec: Mapping[str, Any]) -> tuple[int, float, float | None]:
    """Steps charged so far, and the ε and δ that hold if the run ends here."""
    ledger = read_ledger(directory.ledger, directory.digest())
    if ledger is None:
        return 0, 0.0, None
    if is_choice(spec):
        return ledger.total_steps, ledger.epsilon(), ledger.delta
    return ledger.total_steps, epsilon_if_ended(kind_of(spec).plan(spec["plan"]), ledger), ledger.delta


def _progress(directory: RunDirectory, spec: Mapping[str, Any]) -> dict[str, Any]:
    state = checkpoint.state(directory.checkpoint, directory.digest())
    schema.check(directory.checkpoint, state, schema.checkpoint_of(spec), "state")
    return state


def _picture(path: Path, run: Path) -> Picture:
    name = path.relative_to(run).as_posix()
    size = path.stat().st_size
    if size > _LARGEST_PICTURE:
        return Picture(name=name, why=f"{size / 1e6:.1f} MB, too large for this page")
    data = path.read_bytes()
    if not data.startswith(_PNG):
        return Picture(name=name, why="not a PNG picture")
    return Picture(name=name, data=base64.b64encode(data).decode())


def number(value: object) -> float | None:
    """A number of a record: "inf" is infinity, None and NaN are unknown.

    Raises:
        ValueError: It is anything else.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number")
    if isinstance(value, str) and value != "inf":
        raise ValueError(f"{value!r} is not a number")
    return None if math.isnan(float(value)) else float(value)
