"""A measured table in Markdown: ours (mean ± standard deviation over seeds) beside theirs, with claimed and verified ε."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from typing import Any

from experiments.grid import Table


def render(table: Table) -> str:
    """One line a cell."""
    data = json.loads(table.results.read_text(encoding="utf-8"))
    cells: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for cell in data["cells"]:
        cells[tuple(cell["labels"])].append(cell)
    theirs = bool(table.theirs)
    header = [*table.axes, "accuracy (%)", *(["paper (%)"] if theirs else []), "ε claimed", "ε verified", "seeds"]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for labels, runs in cells.items():
        row = [*labels, _spread([100 * r["test_accuracy"] for r in runs])]
        if theirs:
            row.append(_theirs(table.theirs, labels))
        row += [_epsilon(runs[0]["claimed"]), _epsilon(runs[0]["verified"]), str(len(runs))]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def _theirs(theirs: Any, labels: tuple[str, ...]) -> str:
    for label in labels:
        if not isinstance(theirs, dict) or label not in theirs:
            break
        theirs = theirs[label]
    return "–" if isinstance(theirs, dict) else str(theirs)


def _epsilon(value: float | str | None) -> str:
    if value is None:
        return "–"
    return "∞" if value == "inf" else f"{float(value):.3g}"
