"""The page about a folder of experiments."""

import json
import re
from pathlib import Path

import pytest

from assay.errors import AssayError, ConfigError
from assay.report import papers
from assay.studies import results, tables

ROOT = Path(__file__).parents[2]
TOML = """
title = "A <b>table</b>"
note = "A note about `code`."
seeds = [0, 1]
[train]
data = "digits"
[axis.epsilon."1.0"]
epsilon = 1.0
[axis.epsilon."2.0 (more)"]
epsilon = 2.0
[axis.method.ours]
method = "dpsgd"
[axis.method.other]
method = "lssgd"
variant = "published"
[figure]
x = "{x}"
series = "method"
[theirs."1.0"]
ours = 77.5
[small]
seeds = [0]
"""


def cell(epsilon, method, seed, accuracy, claimed=1.0, verified=1.0):
    return {
        "labels": [epsilon, method],
        "seed": seed,
        "test_accuracy": accuracy,
        "claimed": claimed,
        "verified": verified,
        "audited": None,
        "noise_multiplier": 1.0,
        "steps": 2,
        "seconds": 1.0,
        "history": [[1.0, accuracy - 0.1], [2.0, accuracy]],
    }


@pytest.fixture
def folder(tmp_path):
    def make(x="epsilon", name="paper/table.json", cells=(), **more):
        (tmp_path / "paper").mkdir(exist_ok=True)
        (tmp_path / "paper/table.toml").write_text(TOML.format(x=x))
        (tmp_path / "paper/other.toml").write_text(TOML.format(x=x))
        results = {"title": "A <b>table</b>", "environment": None, "cells": list(cells), **more}
        (tmp_path / name).write_text(json.dumps(results))
        return tmp_path

    return make


def test_ours_stand_beside_theirs_with_claimed_and_verified(folder):
    cells = [cell("1.0", "ours", 0, 0.7), cell("1.0", "ours", 1, 0.8), cell("1.0", "other", 0, 0.6, verified="inf")]
    page = papers.render(folder(cells=cells))
    assert "A &lt;b&gt;table&lt;/b&gt;" in page
    assert "<b>table" not in page, "text from files is never markup"
    assert "A note about <code>code</code>." in page
    assert "75.00 ± 7.07" in page
    assert "77.5" in page
    assert "∞" in page
    assert "1 of 2 measured settings spend more" in page
    part = "assay reproduce paper/table --only epsilon=1.0 --only method="
    assert f"<code>{part}ours</code>, <code>{part}other --seeds 1</code>" in page, "what measures what is there"
    assert "Not measured: paper/other." in page
    assert "1.0, ours: 75.00 ± 7.07 %" in page, "a mark in the chart"
    assert "1.0, ours: 77.5 % in the paper" in page


def test_curves_are_means_at_the_epochs_that_all_seeds_have(folder):
    cells = [cell("1.0", "ours", 0, 0.7), cell("1.0", "ours", 1, 0.8)]
    cells[1]["history"].append([3.0, 0.9])
    page = papers.render(folder(x="epochs", cells=cells))
    assert "1.0, ours: 65.00 % after 1" in page
    assert "1.0, ours: 75.00 % after 2" in page
    assert "after 3" not in page
    assert "epsilon 1.0. Hollow marks are the paper&#x27;s final numbers." in page
    assert "1.0, ours: 77.5 % in the paper" in page


def test_losses_are_drawn_where_the_figure_asks_for_them(folder):
    seeds = [cell("1.0", "ours", seed, 0.7) | {"losses": [[1.0, 2.0 + seed, None], [2.0, 1.0, 0.5]]} for seed in (0, 1)]
    where = folder(x="epochs", cells=seeds)
    toml = where / "paper/table.toml"
    asked = toml.read_text().replace('x = "epochs"', 'x = "epochs"\ny = ["training loss", "test loss"]')
    toml.write_text(asked)
    page = papers.render(where)
    assert "1.0, ours: 2.5 after 1" in page
    assert page.count("1.0, ours: 0.5 after 2") >= 1, "one panel for each loss"
    assert "% after" not in page, "accuracies were not asked for"
    toml.write_text(asked.replace('"test loss"', '"gain"'))
    with pytest.raises(AssayError, match="a list of accuracy, training loss, test loss"):
        papers.render(where)


def test_the_page_has_the_columns_and_the_texts_of_the_markdown(folder):
    where = folder(
        cells=[cell("1.0", "ours", 0, 0.7, verified="inf") | {"audited": 0.5, "bytes_up": 1234, "bytes_down": 5e9}]
    )
    toml = where / "paper/table.toml"
    toml.write_text(TOML.format(x="epsilon").replace("[train]", "[federate]").replace("77.5", '"about 78"'))
    asked = tables.read(where, "paper/table")
    header, _, first, *_ = results.rows(asked, results.read(asked)).splitlines()
    assert first == "| 1.0 | ours | 70.00 | about 78 | 1 | ∞ | ≥ 0.5 | 0.00123 | 5000 | 1 |"
    page = papers.render(where)
    shown = re.search(r"<thead>(.*?)</thead><tbody><tr>(.*?)</tr>", page[page.index("paper/table: ours") :])
    texts = [re.findall(r">([^<>]+)<", part) for part in shown.groups()]
    assert texts == [line.strip("| ").split(" | ") for line in (header, first)]


def test_reduced_results_say_so_and_give_way_to_full_ones(folder):
    where = folder(name="paper/table.small.json", cells=[cell("1.0", "ours", 0, 0.5)], reduced=["1 of 2 seeds"])
    page = papers.render(where)
    assert "1 of 2 seeds" in page
    assert "assay reproduce paper/table --scale small --only epsilon=1.0 --only method=ours<" in page
    page = papers.render(folder(cells=[cell("1.0", "ours", 0, 0.9)]))
    assert "90.00" in page
    assert "50.00" not in page


def test_what_cannot_be_drawn_is_an_error(folder):
    where = folder(x="colour", cells=[cell("1.0", "ours", 0, 0.5)])
    with pytest.raises(AssayError, match="needs series and x among epsilon, method, or epochs"):
        papers.render(where)
    where = folder(cells=[cell("1.0", "ours", 0, 0.5)])
    with (where / "paper/table.toml").open("a") as file:
        file.write('[pictures]\n"gone.png" = "A picture"\n')
    with pytest.raises(AssayError, match=r"gone\.png"):
        papers.render(where)


def test_a_folder_without_results_is_refused(folder, tmp_path):
    where = folder()
    (where / "paper/table.json").unlink()
    with pytest.raises(ConfigError, match="assay reproduce"):
        papers.render(where)


def test_the_command_knows_an_experiments_folder(assay, folder):
    where = folder(cells=[cell("1.0", "ours", 0, 0.7)])
    code, out, err = assay("report", where)
    assert code == 0, err
    assert out.strip() == str(where / "report.html")
    assert (where / "report.html").read_text() == papers.render(where)
    code, _, err = assay("report", where, "--serve")
    assert code == 2
    assert "serve" in err


def test_the_page_in_the_repository_is_that_of_its_records():
    """`assay report experiments` after a table was measured."""
    kept = ROOT / "experiments" / "report.html"
    assert kept.read_text(encoding="utf-8") == papers.render(ROOT / "experiments"), "run: assay report experiments"
