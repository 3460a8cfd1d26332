"""`python experiments/utility/gains.py`: what each ingredient adds on CIFAR-10, from `choose-cifar10-heads.json`.

A gain is the difference of two rows that differ in one thing, by seed. It prints the table of the README.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

MEASURED = Path(__file__).with_name("choose-cifar10-heads.json")
PLAIN, LITE0, LARGER = "DP-SGD, C 1, lr 0.5, 40 epochs", "Lite0 on 128, lr 0.5", "Lite0 on 224, lr 0.5"
GAINS = {
    "features of three layers": ("Lite0 on 128, three layers, lr 0.5", LITE0),
    "larger pictures: Lite0 on 224 in place of 128": (LARGER, LITE0),
    "a larger network: Lite2 in place of Lite0, both on 224": (PLAIN, LARGER),
    "whitened by generated pictures": ("preconditioned by noise, lr 0.5", PLAIN),
    "all records of one length after that": (
        "preconditioned by noise, then one length, lr 0.5",
        "preconditioned by noise, lr 0.5",
    ),
    "a rate of 1 in place of 0.5": ("DP-SGD, C 1, lr 1, 40 epochs", PLAIN),
    "Newton's coordinates": ("Newton, coordinates, lr 1", "DP-SGD, C 1, lr 1, 40 epochs"),
    "Newton's directions": ("Newton, directions, lr 1", "DP-SGD, C 1, lr 1, 40 epochs"),
    "class means in place of the mean": ("class means, lr 0.5", PLAIN),
    "least squares in place of DP-SGD": ("least squares", PLAIN),
}
"""The row with an ingredient, and the one without."""
EPSILONS = ("1", "3", "8")


def gains() -> dict[tuple[str, str], list[float]]:
    """The points that an ingredient adds at an ε, by seed; empty where one of its rows is not measured."""
    cells = json.loads(MEASURED.read_text(encoding="utf-8"))["cells"]
    found = {(*cell["labels"], cell["seed"]): 100 * cell["test_accuracy"] for cell in cells}
    seeds = sorted({cell["seed"] for cell in cells})
    return {
        (name, epsilon): [
            found[epsilon, row, seed] - found[epsilon, base, seed]
            for seed in seeds
            if {(epsilon, row, seed), (epsilon, base, seed)} <= found.keys()
        ]
        for name, (row, base) in GAINS.items()
        for epsilon in EPSILONS
    }


def shown(points: list[float]) -> str:
    """The mean and the spread over seeds, with a sign."""
    if not points:
        return "–"
    return f"{statistics.mean(points):+.2f}" + (f" ± {statistics.stdev(points):.2f}" if len(points) > 1 else "")


def table() -> str:
    """A line for each ingredient, a column for each ε."""
    found = gains()
    lines = [
        f"| ingredient | {' | '.join(f'points at ε = {e}' for e in EPSILONS)} |",
        "|" + "---|" * (1 + len(EPSILONS)),
    ]
    lines += [f"| {name} | {' | '.join(shown(found[name, e]) for e in EPSILONS)} |" for name in GAINS]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
