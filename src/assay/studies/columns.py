"""The columns of a measured table after its axes, for the Markdown beside a TOML and for the page about the papers."""

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
    """A column: its title, a cell's exact number (None where there is none), and how it is written."""

    title: str
    value: Callable[[Cell], float | None]
    text: Callable[[Cell], str]


def columns(table: Table, runs: Sequence[Measured]) -> list[Column]:
    """The columns of a table: accuracies beside the paper's, ε, and what else its runs have.

    Audited ε, bytes sent and how presets were chosen have columns only where some run has them.
    """
    audited = any(run.audited is not None for run in runs)
    federated = table.grid.command == "federate"
    return [
        *_measured(table),
        *([_lowest_recalls()] if table.recall and any(run.recalls for run in runs) else []),
        _epsilon("ε claimed", lambda cell: cell.claimed),
        _epsilon("ε verified", lambda cell: cell.verified),
        *([_epsilon("ε audited", lambda cell: cell.audited, lower_bound=True)] if audited else []),
        *([_sent("up"), _sent("down")] if federated else []),
        *tried(runs),
        Column("seeds", lambda cell: len(cell.runs), lambda cell: str(len(cell.runs))),
        *([_seconds()] if table.times else []),
    ]


def _measured(table: Table) -> list[Column]:
    """Test accuracy. In a table of attacks, the accuracy of each attack and of all on average; guessing gives 50 %."""
    if not table.attack:
        return _side_by_side(table, "ours", lambda cell: cell.accuracies, lambda cell: cell.labels)
    names: list[str] = table.attack["attack"]

    def attacked(title: str, asked: list[str]) -> list[Column]:
        return _side_by_side(table, title, lambda cell: cell.attacked(asked), lambda cell: (*cell.labels, title))

    return [column for name in names for column in attacked(name, [name])] + attacked("average", names)


def _side_by_side(
    table: Table, title: str, ours: Callable[[Cell], list[float]], labels: Callable[[Cell], tuple[str, ...]]
) -> list[Column]:
    """What we measured, in percent, and what the paper reports, if anything."""

    def mean(cell: Cell) -> float | None:
        values = ours(cell)
        return statistics.mean(values) if values else None

    def reported(cell: Cell) -> str:
        return table.reported(labels(cell))

    both = [Column(f"{title} (%)", mean, lambda cell: summary.spread(ours(cell)))]
    return [*both, Column("paper (%)", lambda cell: number_in(reported(cell)), reported)] if table.theirs else both


def _lowest_recalls() -> Column:
    """The three classes with the lowest recall: an average does not show that whole classes are lost."""

    def text(cell: Cell) -> str:
        lowest = sorted(enumerate(cell.recalls), key=lambda pair: pair[1])[:3]
        return ", ".join(f"{label}: {recall:.0f}" for label, recall in lowest) or "–"

    return Column("lowest recalls (class: %)", lambda cell: min(cell.recalls, default=None), text)


def _seconds() -> Column:
    """Of one process with one thread. The median: the first run of all may have computed features for the others."""

    def median(cell: Cell) -> float | None:
        return statistics.median(run.seconds for run in cell.runs) if cell.runs else None

    return Column("seconds a run", median, lambda cell: "–" if (found := median(cell)) is None else f"{found:.0f}")


def _epsilon(title: str, value: Callable[[Cell], float | None], *, lower_bound: bool = False) -> Column:
    return Column(title, value, lambda cell: summary.epsilon(value(cell), lower_bound=lower_bound))


def _sent(way: str) -> Column:
    def text(cell: Cell) -> str:
        megabytes = cell.sent(way)
        return "–" if megabytes is None else f"{megabytes:.3g}" if megabytes < 100 else f"{megabytes:.0f}"

    return Column(f"MB {way}", lambda cell: cell.sent(way), text)


def tried(runs: Sequence[Measured]) -> list[Column]:
    """From how many settings those of a cell were chosen, whether ε covers that choice, and what was changed.

    There is no column where nothing is known of any run. For old results that do not say it, the preset of today does.
    """

    def origin(cell: Cell) -> Mapping[str, Any] | None:
        named = [run.settings for run in cell.runs if run.settings is not None and "preset" in run.settings]
        return cell.tuning or (presets.of(named[0]).origin() if named else None)

    if not any(run.tuning is not None or "preset" in (run.settings or {}) for run in runs):
        return []
    return [
        Column(
            "settings tried",
            lambda cell: None if (tuning := origin(cell)) is None else summary.settings_tried(tuning),
            lambda cell: summary.tried(origin(cell)),
        )
    ]


def number_in(text: str) -> float | None:
    """The number that a paper reports, if the text is a finite number or begins with one and a comma."""
    try:
        value = float(text.partition(",")[0])
    except ValueError:
        return None
    return value if math.isfinite(value) else None
