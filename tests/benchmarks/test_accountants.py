"""ε beside other accountants: the committed table holds, and is what the code says today."""

from __future__ import annotations

import json

import pytest
from benchmarks.oracles import auditors, settings, table

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


def test_bounds_of_random_allocation_close_in_on_what_assay_says():
    """`grids.json`: PLD_accounting's bounds on finer and finer grids. Each refinement halves their errors, so the exact
    value is a last change further. Assay's is not below it, and at most 0.1 % above.
    """
    stored = json.loads(table.RESULTS.with_name("grids.json").read_text(encoding="utf-8"))
    (run,) = (run for run in settings.SETTINGS if run.key == stored["run"])
    ours, rows = table.ours(run), stored["rows"]
    uppers, lowers = ([row[kind] for row in rows] for kind in ("upper", "lower"))
    assert uppers == sorted(uppers, reverse=True)
    assert lowers == sorted(lowers)
    assert lowers[-1] < ours < uppers[-1]
    exact = [values[-1] + (values[-1] - values[-2]) for values in (uppers, lowers)]
    assert exact[0] == pytest.approx(exact[1], rel=2e-4)
    assert max(exact) < ours < 1.001 * max(exact)


def test_the_auditors_table_is_what_the_code_says_and_nothing_in_it_is_above_the_exact_value():
    """The peers' columns were computed where they are installed; Assay's are computed again here, but for sums."""
    stored = json.loads(auditors.RESULTS.read_text(encoding="utf-8"))
    for row in stored["rows"]:
        assert all(value < row["exact"] for name, value in row.items() if name not in ("exact", "kind"))
    for kind in ("guesses", "independent"):
        (row,) = (row for row in stored["rows"] if row["kind"] == kind and row["exact"] == pytest.approx(10, rel=0.01))
        assert auditors.mean_bound(2.0, auditors.ours()[kind]) == pytest.approx(row["assay"], abs=1e-3)
