"""`python experiments/prices.py`: what it would cost to run what the committed results do not have.

For every run of a paper's table that is missing, the price is the number of records that it processes (or its rounds)
times the processor time of one. A few steps of each kind of run are timed, with one thread and batches of at most 128.
Runs of one kind have the same data, model and method. Evaluation on test records, and what a method does before its
first step, are not in the price.

Writes prices.json beside this file and the table of `experiments/README.md`. Kinds of runs that prices.json has are not
timed again: delete the file to time all of them. `--print` times nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import textwrap
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from assay import presets
from assay._util.files import replace_json, replace_text
from assay._util.process import commit
from assay.errors import AssayError
from assay.federated import from_names as federated
from assay.runs.callbacks import Callback
from assay.runs.result import Progress
from assay.studies import results, tables
from assay.studies.grid import Run, Settings
from assay.studies.results import short
from assay.studies.tables import Table
from assay.training import from_names

HERE = Path(__file__).parent
PRICES, ITEMS, PAGE = HERE / "prices.json", HERE / "papers.toml", HERE / "README.md"
BEGIN, END = "<!-- what there is: python experiments/prices.py -->", "<!-- end -->"
STEPS = 5
FIRST = 2  # the first steps also check the model and warm up
BATCH, SMALL_BATCH = 128, 32
_SLOW = {"densenet40", "afrrs"}  # models and methods that are timed on small batches
_KIND = ("data", "model", "method", "variant", "circulant")
# Not here: CIFAR-100, whose records are as large as CIFAR-10's, and public weights, without which a step takes as long.
_INSTEAD = {"data": {"cifar100": "cifar10"}, "init": {"resnet18-f37072fd.pth": ""}}


class _EnoughSeenError(Exception):
    """Ends a run that is only timed."""


@dataclass
class _Clock(Callback):
    """Notes the processor time after every step, and ends the run after a few."""

    times: list[float] = field(default_factory=list)

    def on_step(self, progress: Progress) -> bool | None:  # noqa: ARG002
        """Note the time."""
        self.times.append(time.process_time())
        if len(self.times) == STEPS:
            raise _EnoughSeenError
        return None

    @property
    def seconds(self) -> float:
        """Of one step: the median, because a check of the model may fall into one."""
        return statistics.median(b - a for a, b in zip(self.times[FIRST:-1], self.times[FIRST + 1 :], strict=True))


def missing(table: Table) -> list[Run]:
    """The runs that the committed results do not have. Tables about another table's runs have none of their own."""
    if table.runs != table.name:
        return []
    known = results.known(table)
    return [run for run in table.grid.runs() if (run.labels, run.seed) not in known]


def kind(command: str, settings: Settings) -> str:
    """What decides the time of a record, in words."""
    said = [f"{key}={_instead(key, settings[key])}" for key in _KIND if settings.get(key)]
    return " ".join([command, *said, *(["domain=full"] if "domain=full" in settings.get("option", []) else [])])


def price(table: Table, runs: Iterable[Run], timed: dict[str, float]) -> float:
    """The hours of these runs; times what `timed` does not have, and adds it."""
    return sum(_length(table, run) * _seconds(table, run, timed) for run in runs) / 3600


def _length(table: Table, run: Run) -> float:
    """How many records a run processes, or how many rounds it has."""
    settings = run.decided
    if table.grid.command == "federate":
        return float(settings["rounds"])
    records = settings.get("records", 50_000 if settings["data"].startswith("cifar") else 60_000)
    return float(settings["epochs"] * records * (0.9 if settings.get("validation") else 1))


def _seconds(table: Table, run: Run, timed: dict[str, float]) -> float:
    """The processor time of a record, or a round, of this kind of run."""
    name = kind(table.grid.command, run.decided)
    if name not in timed:
        print(f"timing {name}", file=sys.stderr)
        timed[name] = _time(table.grid.command, run.settings)
        _keep(timed)
    return timed[name]


def _keep(timed: Mapping[str, float]) -> None:
    """Write what is timed, so that the script can be stopped at any time."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    replace_json(PRICES, {"commit": commit(), "date": today, "seconds": dict(sorted(timed.items())), "left": {}})


def _time(command: str, settings: Settings) -> float:
    given = {key: _instead(key, value) for key, value in settings.items()} | {"seed": 0}
    clock, size = _Clock(), 1
    try:
        if command == "federate":
            with tempfile.TemporaryDirectory() as out:
                asked = federated.FederatedSettings.read(given)
                federated.federate(asked, out=Path(out) / "run", callbacks=[clock])
        else:
            size = min(given["batch_size"], SMALL_BATCH if {given.get("model"), given["method"]} & _SLOW else BATCH)
            given |= {"batch_size": size, "noise_multiplier": 1.0, "epsilon": "", "epochs": 1, "records": 2000}
            given = {key: value for key, value in given.items() if value != ""}
            from_names.train(presets.of_options(given), callbacks=[clock], progress=False)
    except _EnoughSeenError:
        pass
    return clock.seconds / size


def _instead(key: str, value: Any) -> Any:
    return value if isinstance(value, list) else _INSTEAD.get(key, {}).get(value, value)


def main() -> None:
    """Time, write and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="time nothing, and use the times of before")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    known: Mapping[str, Any] = json.loads(PRICES.read_text(encoding="utf-8")) if PRICES.exists() else {}
    timed: dict[str, float] = dict(known.get("seconds", {}))
    for table in _papers():
        runs = missing(table)
        if asked.print:
            runs = [run for run in runs if kind(table.grid.command, run.decided) in timed]
        try:
            price(table, runs, timed)
        except AssayError as error:
            print(f"{table.name} cannot be timed here: {error}", file=sys.stderr)
    whole = json.loads(PRICES.read_text(encoding="utf-8"))
    replace_json(PRICES, {**whole, "left": left(timed)})
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    replace_text(PAGE, "\n".join([f"{before}{BEGIN}", "", overview(timed), "", f"{END}{after}"]))


def _papers() -> Iterator[Table]:
    """Every table of a paper that is listed."""
    for paper in tomllib.loads(ITEMS.read_text(encoding="utf-8"))["paper"]:
        for item in paper["items"]:
            for name in item.get("tables", []):
                yield tables.read(HERE, name)


def overview(timed: dict[str, float]) -> str:
    """Every table and figure of every paper: what is measured, and what the rest would cost.

    Args:
        timed: The seconds of a record (or a round), by kind of run.

    Returns:
        Markdown.
    """
    lines = []
    for paper in tomllib.loads(ITEMS.read_text(encoding="utf-8"))["paper"]:
        lines += [*textwrap.wrap(f"**{paper['name']}**", 100), ""]
        lines.append("| in the paper | ours | measured | commit | left: runs, CPU-hours |")
        lines.append("|---|---|---|---|---|")
        for item in paper["items"]:
            named = [tables.read(HERE, name) for name in item.get("tables", [])]
            lines += [_row(item, table, timed) for table in named] or [_plain(item)]
        lines.append("")
    return "\n".join(lines).rstrip()


def _plain(item: Mapping[str, Any]) -> str:
    return f"| {item['item']} | {item['note']} | – | – | – |"


def _row(item: Mapping[str, Any], table: Table, timed: dict[str, float]) -> str:
    path = table.stem.with_name(f"{table.stem.name}.json")
    found = results.read(table) if path.exists() else None
    done = [] if found is None else [run for run in found.runs if (run.labels, run.seed) in results.known(table)]
    seeds = len({run.seed for run in done})
    commits = sorted({"not kept" if run.commit is None else f"`{short(run.commit)}`" for run in done})
    total = len(list(table.grid.runs()))
    link = f"[`{table.name}`]({table.name}.md)" if done else f"`{table.name}`"
    note = f": {item['note']}" if "note" in item else ""
    measured = f"{len(done)} of {total} runs, {seeds} seed{'s' if seeds != 1 else ''}" if done else "–"
    return f"| {item['item']} | {link}{note} | {measured} | {', '.join(commits) or '–'} | {_left(table, timed)} |"


def left(timed: dict[str, float]) -> dict[str, dict[str, float]]:
    """By table, how many runs it lacks and how many hours these would take; tables that lack none, or cannot be timed,
    are not there.
    """
    found = {table.name: (table, missing(table)) for table in _papers()}
    return {
        name: {"runs": len(runs), "hours": price(table, runs, timed)}
        for name, (table, runs) in found.items()
        if runs and {kind(table.grid.command, run.decided) for run in runs} <= timed.keys()
    }


def _left(table: Table, timed: dict[str, float]) -> str:
    runs = missing(table)
    if not runs:
        return "–" if table.runs == table.name else f"with `{table.runs}`"
    unknown = {kind(table.grid.command, run.decided) for run in runs} - timed.keys()
    if unknown:
        return f"{len(runs)}, not timed"
    hours = price(table, runs, timed)
    return f"{len(runs)}, {hours:.2g}" if hours < 100 else f"{len(runs)}, {hours:.0f}"


if __name__ == "__main__":
    main()
