"""The columns of a measured table after its axes: what they are called, and a cell's number and its text in each. The Markdown beside a
TOML and the page about the papers both show these.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay import presets
from assay.studies import summary
from assay.studies.summary import Cell, Measured
from assay.studies.tables import Table


@dataclass(frozen=True)
class Column:
    """A column of numbers: a cell's exact one, None where there is none, and how it is written."""

    title: str
    value: Callable[[Cell], float | None]
    text: Callable[[Cell], str]


def columns(table: Table, runs: Sequence[Measured]) -> list[Column]:
    """Ours beside the paper's, ε by claim and by ledger, and where there are any: ε by attack, what clients and server sent each other, how presets were chosen."""
    audited = any(run.audited is not None for run in runs)
    federated = table.grid.command == "federate"
    return [
        *_measured(table),
        _epsilon("ε claimed", lambda cell: cell.claimed),
        _epsilon("ε verified", lambda cell: cell.verified),
        *([_epsilon("ε audited", lambda cell: cell.audited, lower_bound=True)] if audited else []),
        *([_sent("up"), _sent("down")] if federated else []),
        *tried(runs),
        Column("seeds", lambda cell: len(cell.runs), lambda cell: str(len(cell.runs))),
    ]


def _measured(table: Table) -> list[Column]:
    """Test accuracy; of a table of attacks, the accuracy of each and of all on average, where 50 % is what guessing achieves."""
    if not table.attack:
        return _side_by_side(table, "ours", lambda cell: cell.accuracies, lambda cell: cell.labels)
    names: list[str] = table.attack["attack"]

    def attacked(title: str, asked: list[str]) -> list[Column]:
        return _side_by_side(table, title, lambda cell: cell.attacked(asked), lambda cell: (*cell.labels, title))

    return [column for name in names for column in attacked(name, [name])] + attacked("average", names)


def _side_by_side(
    table: Table, title: str, ours: Callable[[Cell], list[float]], labels: Callable[[Cell], tuple[str, ...]]
) -> list[Column]:
    """What we measured, in percent by seed, and what the paper reports, if it reports anything."""

    def mean(cell: Cell) -> float | None:
        values = ours(cell)
        return statistics.mean(values) if values else None

    def reported(cell: Cell) -> str:
        return table.reported(labels(cell))

    both = [Column(f"{title} (%)", mean, lambda cell: summary.spread(ours(cell)))]
    return [*both, Column("paper (%)", lambda cell: number_in(reported(cell)), reported)] if table.theirs else both


def _epsilon(title: str, value: Callable[[Cell], float | None], *, lower_bound: bool = False) -> Column:
    return Column(title, value, lambda cell: summary.epsilon(value(cell), lower_bound=lower_bound))


def _sent(way: str) -> Column:
    def text(cell: Cell) -> str:
        megabytes = cell.sent(way)
        return "–" if megabytes is None else f"{megabytes:.3g}" if megabytes < 100 else f"{megabytes:.0f}"

    return Column(f"MB {way}", lambda cell: cell.sent(way), text)


def tried(runs: Sequence[Measured]) -> list[Column]:
    """How many settings those of a cell were chosen from, whether ε has that choice in it, and what was changed; no column where nothing
    is known of any run. What results from before it was kept do not say is what the preset says now.
    """

    def origin(cell: Cell) -> Mapping[str, Any] | None:
        named = [run.settings for run in cell.runs if run.settings is not None and "preset" in run.settings]
        return cell.tuning or (presets.of(named[0]).origin() if named else None)

    if not any(run.tuning is not None or "preset" in (run.settings or {}) for run in runs):
        return []
    return [
        Column(
            "settings tried",
            lambda cell: None if (found := origin(cell)) is None else summary.settings_tried(found),
            lambda cell: summary.tried(origin(cell)),
        )
    ]


def number_in(text: str) -> float | None:
    """What a paper reports, if it is a number and nothing else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
