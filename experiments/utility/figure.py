"""`python experiments/utility/figure.py`: accuracy against verified ε, with the published points.

Draws frontier.png beside this file, and prints what each row took on one core.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent
PANELS = {
    "MNIST": ["MNIST"],
    "Fashion-MNIST": ["Fashion-MNIST"],
    "CIFAR-10": [
        "CIFAR-10, generated pictures",
        "CIFAR-10, public features",
        "CIFAR-10, larger public network",
    ],
}
"""The rows of ours in each panel."""
PUBLISHED = {
    "MNIST": {"DPSUR (ε claimed)": {1: 97.93, 2: 98.70, 3: 98.88, 4: 98.95}},
    "Fashion-MNIST": {"DPSUR (ε claimed)": {1: 88.38, 2: 89.34, 3: 89.71, 4: 90.18}},
    "CIFAR-10": {
        "DPSUR (ε claimed)": {1: 64.41, 2: 69.40, 3: 70.83, 4: 71.45},
        "DP-RandP, synthetic images": {1: 72.3},
        "De et al., no other data": {8: 81.4},
        "ScaleNorm, no other data": {8: 82.5},
        "De et al., public photographs": {1: 94.8},
        "BEiT, more public photographs": {1: 96.7},
    },
}
"""From the papers: arXiv:2311.14056 (Table 2); abstracts of 2306.06076, 2204.13650 and 2203.00324; 94.8 and 96.7 are in
the abstract of 2205.10683."""


def measured() -> dict[str, list[tuple[float, float, float]]]:
    """ε verified, accuracy in percent and seconds of every row, by name."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for cell in json.loads((HERE / "frontier.json").read_text(encoding="utf-8"))["cells"]:
        runs[cell["labels"][0], cell["labels"][1]].append(cell)
    rows = defaultdict(list)
    for (name, _), cells in runs.items():
        verified = max(float(cell["verified"]) for cell in cells)
        accuracy = statistics.mean(cell["test_accuracy"] for cell in cells)
        rows[name].append((verified, 100 * accuracy, statistics.median(cell["seconds"] for cell in cells)))
    return {name: sorted(points) for name, points in rows.items()}


def main() -> None:
    """Draw and print."""
    rows = measured()
    figure = Figure(figsize=(12, 5.6), layout="constrained")
    for axes, (panel, ours) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for name in (name for name in ours if name in rows):
            points = rows[name]
            axes.plot([p[0] for p in points], [p[1] for p in points], "o-", label=f"ours: {name}")
        for name, theirs in PUBLISHED[panel].items():
            axes.plot(list(theirs), list(theirs.values()), "x--", label=name)
        axes.set(title=panel, xlabel="ε (δ = 1e-5)", ylabel="test accuracy (%)", xscale="log")
        axes.set_xticks([0.5, 1, 2, 3, 4, 8], labels=["0.5", "1", "2", "3", "4", "8"], minor=False)
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.14))  # below: it would hide points
    FigureCanvasAgg(figure).print_png(HERE / "frontier.png")
    print("| row | ε verified | accuracy (%) | seconds a run |\n|---|---|---|---|")
    for name, points in rows.items():
        for verified, accuracy, seconds in points:
            print(f"| {name} | {verified:.4g} | {accuracy:.2f} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
