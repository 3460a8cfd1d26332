"""Figures in the tables of README and experiments are those of committed results."""

import fnmatch
import importlib.util
import json
import re
import statistics
import sys
from functools import cache
from pathlib import Path

import pytest

from assay.studies import results, tables
from docs.pages import DOCS

ROOT = DOCS.parent
EXPERIMENTS = ROOT / "experiments"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(EXPERIMENTS.glob("*/*.md"))]
MEASURED = ("ours (%)", "average (%)")  # accuracies; how often attacks are right, on average


@cache
def measured() -> list[tuple[list[str], list[list[str]]]]:
    """The header and the rows of every committed result."""
    found = []
    for name in tables.names(EXPERIMENTS):
        for table in (tables.read(EXPERIMENTS, name), _small(name)):
            if table is not None and table.stem.with_name(f"{table.stem.name}.json").exists():
                header, _, *rows = results.rows(table, results.read(table)).splitlines()
                found.append((cells(header), [cells(row) for row in rows]))
    return found


def known(columns: list[str]) -> set[tuple[str, ...]]:
    """The rows of all results that have these columns, in this order, perhaps with others between them."""
    rows = set()
    for header, whole in measured():
        left = iter(enumerate(header))
        places = [next((i for i, title in left if title == column), None) for column in columns]
        if None not in places:
            rows |= {tuple(row[i] for i in places) for row in whole}
    return rows


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _small(name: str) -> tables.Table | None:
    path = EXPERIMENTS / f"{name}.small.json"
    return tables.read(EXPERIMENTS, name, "small") if path.exists() else None


def tables_of(page: Path) -> list[list[str]]:
    """The lines of each table of measured accuracies."""
    found = re.findall(r"((?:^\|.*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [table.splitlines() for table in found if set(MEASURED) & set(cells(table.splitlines()[0]))]


@pytest.mark.parametrize("page", [p for p in PAGES if tables_of(p)], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_row_of_a_measured_table_is_in_a_committed_result(page):
    for header, _, *rows in tables_of(page):
        there = known(cells(header))  # a page may leave out columns
        wrong = [row for row in rows if tuple(cells(row)) not in there]
        assert not wrong, f"{page}: not what the committed JSON gives: {wrong}"


def test_every_table_that_the_page_about_experiments_names_is_there():
    page = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    folders = "|".join(sorted({name.split("/")[0] for name in tables.names(EXPERIMENTS)}))
    named = set(re.findall(rf"`((?:{folders})/[\w*-]+)`", page))
    there = tables.names(EXPERIMENTS)
    assert named
    assert [name for name in sorted(named) if not fnmatch.filter(there, name)] == []


def test_the_parts_of_epsilon_that_accuracy_with_noisy_inputs_costs_are_those_that_were_measured():
    table = tables.read(EXPERIMENTS, "afrrs/input-noise")
    page = (EXPERIMENTS / "afrrs/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \+ ([\d.]+) \+ ([\d.]+) = ([\d.]+) \|$", page, re.MULTILINE)
    runs = {run.labels[0]: run for run in results.read(table).runs}
    assert [row[0] for row in rows] == list(runs)
    for claim, accuracy, *shown, whole in rows:
        parts = [float(runs[claim].parts[name]) for name in ("relevance", "features", "labels")]
        assert f"{100 * runs[claim].test_accuracy:.2f}" == accuracy
        assert [float(number) for number in shown] == pytest.approx(parts, rel=6e-3)
        assert float(whole) == pytest.approx(sum(parts), rel=6e-3)


def script(name):
    """A script of the experiments, which is in no package."""
    where = EXPERIMENTS / name
    spec = importlib.util.spec_from_file_location(where.stem, where)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_every_table_and_figure_of_the_papers_is_measured_or_priced():
    prices = script("prices.py")
    kept = json.loads((EXPERIMENTS / "prices.json").read_text(encoding="utf-8"))
    page = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    assert prices.overview(kept["seconds"]) in page, "run: python experiments/prices.py"
    assert "not timed" not in page
    assert kept["left"] == {name: pytest.approx(of) for name, of in prices.left(kept["seconds"]).items()}
    listed = set(re.findall(r"^\| [^|]* \| \[?`([\w./-]+)`", page, re.MULTILINE))
    papers = ("afrrs/", "discrete-denoise/", "dp-fedags/", "dp-lssgd/", "gredp/")
    assert {name for name in tables.names(EXPERIMENTS) if name.startswith(papers)} == listed


def test_papers_are_cited_by_name_and_not_by_a_file_of_ours():
    """Papers' texts are not in the repository."""
    pattern = re.compile(r"\b(gredp|afrrs|dp-lssgd|dp-fedags|discrete-denoise|spectral-dp)\.txt\b")
    named = [
        path
        for folder in ("src", "docs", "experiments", "examples")
        for kind in ("*.py", "*.md", "*.toml")
        for path in (ROOT / folder).rglob(kind)
        if pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert not named


def test_what_a_charged_choice_costs_is_what_was_measured():
    runs = json.loads((EXPERIMENTS / "utility/tuned.json").read_text(encoding="utf-8"))["runs"]
    assert all(run["verified"] <= run["epsilon"] for run in runs)
    found = [100 * run["accuracy"] for run in runs]
    shown = f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f} %"
    for page in (DOCS / "utility.md", EXPERIMENTS / "utility/README.md"):
        assert shown in page.read_text(encoding="utf-8")


def test_what_each_ingredient_adds_is_what_was_measured():
    shown = script("utility/gains.py").table()
    assert shown in (EXPERIMENTS / "utility/README.md").read_text(encoding="utf-8"), "run: utility/gains.py"
