"""`python experiments/afrrs/figure.py`: accuracy against claimed and verified epsilon (Fig. 4 and 5), from what was
measured.

Draws accuracy.png beside this file and prints what each part cost. Infinite epsilon has no place on the axis and is
left out.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent
TABLES = {"published": 0, "input-noise": None, "sound": 1, "sound-cifar10": 1}
"""Each table and the axis whose labels are lines of their own."""
PAPER = {"the paper, MNIST, claimed": (0.6, 98.8), "the paper, CIFAR-10, claimed": (2.0, 76.0)}
"""Its ε and accuracy, Tables 3 and 4."""


def cells(table: str) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """The runs of a table by cell, at small scale if it was measured at no other; none if it was not measured."""
    path = next((p for p in (HERE / f"{table}.json", HERE / f"{table}.small.json") if p.exists()), HERE / table)
    found: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    if path.exists():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            found[tuple(cell["labels"])].append(cell)
    return found


def verified(cell: dict[str, Any]) -> float:
    """As recorded; beyond 1000 the sum of the parts, which are then all that is left."""
    whole = float(cell["verified"])
    return whole if math.isfinite(whole) else sum(float(value) for value in cell["parts"].values()) or math.inf


def main() -> None:
    """Draw and print."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for table, line in TABLES.items():
        lines: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        for labels, runs in cells(table).items():
            accuracy = 100 * statistics.mean(run["test_accuracy"] for run in runs)
            name = table if line is None else f"{table}: {labels[line]}"
            lines[name].append((float(runs[0]["claimed"]), verified(runs[0]), accuracy))
            parts = ", ".join(f"{part} {float(value):.4g}" for part, value in runs[0]["parts"].items())
            print(
                f"{' '.join((table, *labels))}: {accuracy:.2f} %, claimed {float(runs[0]['claimed']):.3g},"
                f" {parts or 'no parts'}"
            )
        for name, points in lines.items():
            for kind, place, style in (("claimed", 0, "--"), ("verified", 1, "-")):
                if kind == "claimed" and table.startswith("sound"):
                    continue  # a sound run stands by its verified epsilon
                shown = sorted((p[place], p[2]) for p in points if math.isfinite(p[place]))
                if shown:
                    axes.plot(*zip(*shown, strict=True), style, marker="o", label=f"{name}, {kind}")
    for (name, point), shape in zip(PAPER.items(), "s^", strict=True):
        axes.plot(*point, shape, color="black", markerfacecolor="none", label=name)
    axes.set_xscale("log")
    axes.set_xlabel("ε")
    axes.set_ylabel("test accuracy (%)")
    if axes.lines:
        axes.legend(fontsize="small")
    FigureCanvasAgg(figure).print_png(str(HERE / "accuracy.png"))


if __name__ == "__main__":
    main()
