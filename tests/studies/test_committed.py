"""The committed results of `experiments/` are those of today's tables and of today's code."""

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from tools import repeat

from assay import data, features, models, presets
from assay.errors import DataError
from assay.studies import results, summary, tables
from assay.studies.columns import columns
from assay.training.from_names import Settings, train

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
RECORDS = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000, "digits": 1437}
SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


def committed():
    """The tables with results at the paper's scale."""
    named = (tables.read(EXPERIMENTS, name) for name in tables.names(EXPERIMENTS))
    return [table for table in named if table.stem.with_name(f"{table.stem.name}.json").exists()]


def central():
    """Those of central runs whose ε follows from noise alone (no stage, no preset), on data of known size."""
    return [table for table in committed() if table.grid.command == "train" and _plain(table)]


def _plain(table):
    settings = [table.grid.settings(labels) for labels in table.grid.cells()]
    return all(
        {"preset", "center"}.isdisjoint(s) and s.get("method") != "afrrs" and s.get("data") in RECORDS for s in settings
    )


def plan_today(settings, run):
    """The plan that these settings give, with the noise and the steps of a run that was measured."""
    asked = Settings.read({key: value for key, value in settings.items() if key != "seed"})
    layers = 1
    if asked.data in SHAPES:
        network = models.build(asked.model, input_shape=SHAPES[asked.data], classes=10)
        layers = sum(any(True for _ in module.parameters(recurse=False)) for module in network.modules())
    count = asked.records or RECORDS[asked.data]
    plan = asked.plan(count - math.ceil(0.1 * count) if asked.validation else count)
    return replace(
        plan,
        steps=run.steps,
        noise_multiplier=run.noise_multiplier,
        method=plan.method.for_layers([str(i) for i in range(layers)]),
    )


@pytest.mark.parametrize("table", committed(), ids=lambda table: table.name)
def test_every_run_has_the_labels_and_settings_that_its_table_has_today(table):
    assert len(results.known(table)) == len(results.read(table).runs)


@pytest.mark.parametrize("table", [t for t in committed() if not t.name.startswith("utility/")], ids=lambda t: t.name)
def test_the_markdown_of_a_paper_s_table_is_that_of_its_results(table):
    shown = table.stem.with_name(f"{table.stem.name}.md").read_text(encoding="utf-8")
    assert shown == results.render(table, results.read(table)), f"run: assay reproduce {table.name} --missing"


@pytest.mark.parametrize("table", central(), ids=lambda table: table.name)
def test_a_cell_for_each_method_of_a_table_has_the_epsilon_that_the_code_gives_today(table):
    found = {run.labels[-1]: run for run in results.read(table).runs}
    about = 1e-2 if table.grid.shared.get("validation") else 2e-3  # a hash decides how many records are set aside
    for run in found.values():
        plan = plan_today(table.grid.settings(run.labels), run)
        assert run.claimed == pytest.approx(plan.claimed(), rel=about), run.labels
        assert run.verified == pytest.approx(plan.epsilon(), rel=about), run.labels


def test_a_table_with_times_has_the_median_of_each_cell_and_the_paper_s_number_with_its_name():
    table = tables.read(EXPERIMENTS, "utility/frontier")
    runs = results.read(table).runs
    shown = {column.title: column for column in columns(table, runs)}
    for cell in summary.cells(runs, [("MNIST", "3"), ("Adult", "1")]):
        seconds = sorted(run.seconds for run in cell.runs)
        assert shown["seconds a run"].text(cell) == f"{seconds[len(seconds) // 2]:.0f}"
    mnist, adult = (shown["paper (%)"].value(cell) for cell in summary.cells(runs, [("MNIST", "3"), ("Adult", "1")]))
    assert (mnist, adult) == (98.88, None)
    plain = tables.read(EXPERIMENTS, "utility/text")
    assert "seconds a run" not in {column.title for column in columns(plain, results.read(plain).runs)}


@pytest.mark.parametrize(
    ("name", "label"), [("utility/frontier", "digits of scikit-learn"), ("dp-lssgd/verified", "0.10")]
)
def test_a_cheap_run_trained_today_has_the_accuracy_of_its_table(name, label):
    table = tables.read(EXPERIMENTS, name)
    run = next(run for run in results.read(table).runs if run.labels[0] == label)
    settings = table.grid.run(run.labels, run.seed).settings
    try:
        data.load(settings["data"])
    except DataError:
        pytest.skip(f"{settings['data']} is not on this machine")
    found = train(presets.of_options({**settings, "seed": run.seed}), progress=False)
    assert found.record["result"]["test_accuracy"] == pytest.approx(run.test_accuracy, abs=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "dp-lssgd/figure4",
        "dp-lssgd/table2",
        "dp-lssgd/table2-authors",
        "dp-fedags/verified",
        "dp-fedags/verified-record",
    ],
)
def test_a_run_of_a_cheap_table_begins_today_as_it_did_when_it_was_measured(name):
    """`python -m tools.repeat` does the same for all tables."""
    table = tables.read(EXPERIMENTS, name)
    run = next(repeat.begins(table))
    try:
        data.load(table.grid.shared["data"])
    except DataError:
        pytest.skip(f"{table.grid.shared['data']} is not on this machine")
    assert repeat.first_accuracy(table, run) == run.history[0][1]


STUDIES = {
    ("mnist", "best"): ("choose-mnist", 6000),
    ("fashion-mnist", "best"): ("choose-fashion-mnist", 6000),
    ("cifar10", "best"): ("choose-cifar10", 5000),
    ("cifar10", "scratch"): ("choose-cifar10-scratch", 5000),
    ("cifar10", "lite2"): ("choose-cifar10-heads", 2500),
    ("adult", "best"): ("choose-adult", 3256),
    ("digits", "best"): ("choose-digits", 144),
    ("imdb", "best"): ("choose-imdb", 1985),
}
"""The study that a preset was chosen by, and about how many records it measures on."""


def decisive(settings):
    """What tells settings of a study or a preset apart."""
    named = ("model", "center", "clip", "lr", "epochs", "batch_size", "method", "option", "schedule", "momentum")
    asked = settings.get("features")
    kept = {key: settings.get(key) for key in named}
    kept["model"] = kept["model"].replace("scatter-linear", "linear-head")  # the same layer, by two names
    return kept | {"features": asked and features.describe(features.parse(asked))}


def epsilons(table):
    """Those at which a study has measured anything."""
    return sorted({run.labels[0] for run in results.read(table).runs}, key=float)


@pytest.mark.parametrize(
    ("data", "preset", "study", "records"), [(*chosen, *study) for chosen, study in STUDIES.items()]
)
def test_a_preset_is_the_best_of_its_study_or_within_a_standard_error(data, preset, study, records):
    table = tables.read(EXPERIMENTS, f"utility/{study}")
    cells = summary.cells(results.read(table).runs, list(table.grid.cells()))
    for epsilon in epsilons(table):
        asked = decisive(presets.get(preset, data, float(epsilon)).settings)
        there = [cell for cell in cells if cell.labels[0] == epsilon and cell.runs]
        found = {cell.labels[1]: statistics.mean(cell.accuracies) / 100 for cell in there}
        own = [cell.labels[1] for cell in there if decisive(table.grid.settings(cell.labels)) == asked]
        assert own, f"{study} has not measured what {preset} of {data} does at {epsilon}"
        best = max(found.values())
        assert found[own[0]] >= best - math.sqrt(best * (1 - best) / records), (epsilon, own[0], found)
