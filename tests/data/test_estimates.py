"""What is estimated of columns: the grid is public, and one record or person moves the counts by at most the bound."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.tables import cells, estimates
from assay.data.tables.columns import Category, Date, Flag, Number, Skip
from assay.data.tables.drafts import read_draft, training_rows
from assay.errors import ConfigError

HOW = cells.Reading(missing=("", "NA"))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_lies_in_its_cell(value: float) -> None:
    low, high = cells.NUMBERS[cells.cell_of(repr(value), HOW)]
    largest = cells.NUMBERS[-1][1]
    clamped = 0.0 if abs(value) < 2.0**-20 else max(-largest, min(largest, value))
    assert low <= clamped <= high


def write(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    path.write_text("who,a,b\n" + "".join(f"{who},{a},{b}\n" for who, a, b in rows))
    return path


TEXTS = st.sampled_from(["", "1", "0", "-3.5", "2021-01-05", "red", "blue", "a text of many words", "1e30"])


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6))
def test_one_person_moves_the_counts_of_a_column_by_at_most_one(tmp_path_factory, rows) -> None:
    """Whatever the number of their rows: this is the sensitivity that the noise is relative to."""
    folder = tmp_path_factory.mktemp("persons")
    others = [(f"p{i}", "2", "red") for i in range(20)]
    who = next(
        f"q{i}"
        for i in range(99)
        if training_of(folder, [*others, (f"q{i}", "1", "x")]) == 1 + training_of(folder, others)
    )
    without, with_one = (
        counts_of(write(folder / f"{n}.csv", table))
        for n, table in enumerate((others, [*others, *((who, *r) for r in rows)]))
    )
    for name in ("a", "b"):
        assert np.linalg.norm(with_one[name] - without[name]) <= 1 + 1e-9


def training_of(folder: Path, rows: list[tuple[str, str, str]]) -> int:
    path = write(folder / "some.csv", rows)
    return training_rows(path, read_draft(path, "auto", "a", "who"), "who").units


def counts_of(path: Path) -> dict[str, np.ndarray]:
    draft = read_draft(path, "auto", "a", "who")
    private = training_rows(path, draft, "who")
    return {name: cells.count_cells(private.table, name, private.weights, draft.reading) for name in ("a", "b")}


def noisy(values: list[str], noise: float = 10.0) -> np.ndarray:
    found = np.bincount([cells.cell_of(v, HOW) for v in values], minlength=cells.CELLS).astype(float)
    return found + np.random.default_rng(0).normal(0, noise, cells.CELLS)


def test_columns_are_what_their_noisy_counts_show() -> None:
    draw = np.random.default_rng(1)
    ages = [str(a) for a in draw.integers(18, 90, 3000)]
    assert estimates.found_in(noisy(ages), 10.0) == Number(low=16.0, high=96.0)
    assert estimates.found_in(noisy(["0", "1"] * 500), 10.0) == Flag()
    assert estimates.found_in(noisy(["red", "blue"] * 500), 10.0) is None
    assert estimates.found_in(noisy([]), 10.0) == Skip()
    dates = estimates.found_in(noisy([f"20{y:02}-03-01" for y in range(10, 20)] * 100), 10.0)
    assert isinstance(dates, Date)
    assert (dates.first.year, dates.last.year) == (2010, 2019)


def test_a_level_of_one_person_does_not_show() -> None:
    """A text passes by noise alone with the probability that its threshold allows, present or not."""
    rule = estimates.Levels(10.0, lambda n: np.full(n, 0.5))
    assert rule.released({"rare disease": 1.0, "common": 900.0}) == ("common",)
    assert estimates.category(()) == Skip()
    assert isinstance(estimates.category(("common",)), Category)


def test_thresholds_bound_the_texts_that_pass_without_a_row() -> None:
    for text in ("a", "abc", "x" * 64):
        count = len(text) * math.log(95)
        tail = -(estimates.threshold(text) ** 2) / 2  # log of the normal tail, from above
        assert tail + count < 0


def test_types_of_a_file_are_public_and_all_else_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [("p", "1", "2")])
    partial = tmp_path / "t.toml"
    bounds = 'type = "number"\nlow = "auto"\nhigh = "auto"'
    partial.write_text(f'[columns.a]\n{bounds}\n[columns.b]\ntype = "flag"\n[columns.who]\ntype = "skip"\n')
    draft = read_draft(path, partial, "b", None)
    assert dict(draft.wanted) == {"a": "number"}
    partial.write_text('[columns.a]\ntype = "labels"\nlevels = "auto"\n[columns.b]\ntype = "flag"\n')
    with pytest.raises(ConfigError, match="a type whose values can be estimated"):
        read_draft(path, partial, "b", "who")
    with pytest.raises(ConfigError, match="share"):
        read_draft(path, "auto:share=2", "b", "who")
