"""What a user of tables might pick instead: diffprivlib on Adult, at the ε of our presets.

    python -m benchmarks.tables write adult.npz
    python -m venv rival && rival/bin/pip install diffprivlib==0.6.6 'scikit-learn<1.6'
    rival/bin/python benchmarks/tables.py measure adult.npz

diffprivlib 0.6.6 does not import with current scikit-learn, hence an environment of its own. Its models get the columns
that ours get: categories one-hot, numbers scaled to [0, 1] by public ranges. Their own setting is chosen as ours are,
on about a tenth of the training records (uncharged), with seed 0. Then five seeds are measured on the test records.
Their ε is pure (δ = 0), which is a stronger promise than (ε, 1e-5).

- Logistic regression: objective perturbation (Chaudhuri, Monteleoni and Sarwate: "Differentially Private Empirical Risk
  Minimization", JMLR 2011), by regularisation C. The norm of a row is at most √14: 8 categories and 6 numbers.
- Random forest (Fletcher and Islam: "Differentially private random decision forests using smooth sensitivity", 2017),
  by depth.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

EPSILONS = (0.5, 1.0, 3.0, 8.0)
SEEDS = range(5)
_NORM = 14**0.5

Make = Callable[[float, Any, int], Any]


def logistic(epsilon: float, c: Any, seed: int) -> Any:
    """Logistic regression with regularisation C."""
    models: Any = importlib.import_module("diffprivlib.models")
    return models.LogisticRegression(epsilon=epsilon, data_norm=_NORM, C=c, max_iter=500, random_state=seed)


def forest(epsilon: float, depth: Any, seed: int) -> Any:
    """Twenty trees of a depth."""
    models: Any = importlib.import_module("diffprivlib.models")
    return models.RandomForestClassifier(
        n_estimators=20, epsilon=epsilon, bounds=(0, 1), classes=[0, 1], max_depth=depth, random_state=seed
    )


RIVALS: Mapping[str, tuple[Make, tuple[Any, ...]]] = {
    "logistic regression": (logistic, (0.001, 0.003, 0.01, 0.03, 0.1, 1.0, 10.0)),
    "random forest": (forest, (4, 6, 8)),
}


def write(path: str) -> None:
    """Write Adult's columns as our models see them, and which rows are set aside."""
    from assay.data.sources import load

    adult = load("adult")
    np.savez(
        path,
        x=adult.train_x.numpy(),
        y=adult.train_y.numpy(),
        aside=adult.drawn("validation", 0.1).numpy(),
        test_x=adult.test_x.numpy(),
        test_y=adult.test_y.numpy(),
    )


def accuracy(model: Any, x: Any, y: Any) -> float:
    """In percent."""
    return 100 * float(np.mean(model.predict(x) == y))


def measure(path: str) -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    data = np.load(path)
    x, y, aside, test = data["x"], data["y"], data["aside"], (data["test_x"], data["test_y"])
    print(f"| ε | {' | '.join(RIVALS)} |\n|" + "---|" * (1 + len(RIVALS)))
    began = time.perf_counter()
    for epsilon in EPSILONS:
        cells = []
        for make, settings in RIVALS.values():
            tried = {s: accuracy(make(epsilon, s, 0).fit(x[~aside], y[~aside]), x[aside], y[aside]) for s in settings}
            best = max(tried, key=lambda setting: tried[setting])
            found = [accuracy(make(epsilon, best, seed).fit(x, y), *test) for seed in SEEDS]
            cells.append(f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f} ({best:g})")
        print(f"| {epsilon:g} | {' | '.join(cells)} |", flush=True)
    print(f"\n{time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    {"write": write, "measure": measure}[sys.argv[1]](sys.argv[2])
