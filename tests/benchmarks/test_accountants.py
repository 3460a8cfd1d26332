"""ε beside other accountants: the committed table holds, and is what the code says today."""

from __future__ import annotations

import json

import pytest
from benchmarks.oracles import settings, table

STORED = json.loads(table.RESULTS.read_text(encoding="utf-8"))
ROWS = {row["run"]: row for row in STORED["rows"]}


def test_the_table_covers_samplers_and_adjacencies():
    assert list(ROWS) == [run.key for run in settings.SETTINGS]
    assert len(ROWS) >= 40
    assert {(row["sampling"], row["adjacency"]) for row in ROWS.values()} >= {
        ("full", settings.ADDED),
        ("full", settings.REPLACED),
        ("poisson", settings.ADDED),
        ("poisson", settings.REPLACED),
        ("without-replacement", settings.REPLACED),
        ("shuffle", settings.ADDED),
        ("truncated-poisson", settings.ADDED),
        ("truncated-poisson", settings.REPLACED),
        ("permutation", settings.REPLACED),
    }
    asked = {"dp_accounting", "prv_accountant", "opacus", "jax_privacy", "PLD_accounting"}
    assert asked <= set(STORED["peers"]["versions"])


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_nothing_is_below_a_lower_bound_nor_above_the_best_peer_without_a_reason(row):
    assert all(row["assay"] >= lower for lower in row["lower"].values())
    if row["best"] is not None and row["over_best"] > table.MARGIN:
        assert table.REASONS[row["sampling"]]
        # the reason is that one peer is no upper bound: Assay is the least of the others
        assert all(row["assay"] <= upper for name, upper in row["upper"].items() if name != "jax_privacy")


@pytest.mark.parametrize("run", settings.SETTINGS[::4], ids=lambda run: run.key)
def test_the_table_is_what_the_code_says(run):
    assert table.ours(run) == pytest.approx(ROWS[run.key]["assay"], rel=1e-6)


@pytest.mark.parametrize(("records", "batch"), settings.CAPS)
def test_the_caps_are_those_of_the_sampler(records, batch):
    assert table.parse("truncated-poisson")(records, batch).cap == settings.CAPS[records, batch]
