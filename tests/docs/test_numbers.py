"""Figures in the tables of README and experiments are those of committed results."""

import re
from functools import cache
from pathlib import Path

import pytest

from assay.studies import results, tables
from docs.pages import DOCS

ROOT = DOCS.parent
EXPERIMENTS = ROOT / "experiments"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(EXPERIMENTS.glob("*/*.md"))]
MEASURED = "ours (%)"


@cache
def measured() -> list[dict[str, str]]:
    """The rows of every committed result, each by its columns."""
    found = []
    for name in tables.names(EXPERIMENTS):
        for table in (tables.read(EXPERIMENTS, name), _small(name)):
            if table is not None and table.stem.with_name(f"{table.stem.name}.json").exists():
                header, _, *rows = results.rows(table, results.read(table)).splitlines()
                found += [dict(zip(cells(header), cells(row), strict=True)) for row in rows]
    return found


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _small(name: str) -> tables.Table | None:
    path = EXPERIMENTS / f"{name}.small.json"
    return tables.read(EXPERIMENTS, name, "small") if path.exists() else None


def tables_of(page: Path) -> list[list[str]]:
    """The lines of each table of measured accuracies."""
    found = re.findall(r"((?:^\|.*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [table.splitlines() for table in found if MEASURED in table.splitlines()[0]]


@pytest.mark.parametrize("page", [p for p in PAGES if tables_of(p)], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_row_of_a_measured_table_is_in_a_committed_result(page):
    for header, _, *rows in tables_of(page):
        columns = cells(header)  # a page may leave out columns
        known = {tuple(row.get(column) for column in columns) for row in measured()}
        wrong = [row for row in rows if tuple(cells(row)) not in known]
        assert not wrong, f"{page}: not what the committed JSON gives: {wrong}"


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
