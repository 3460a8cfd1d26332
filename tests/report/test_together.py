"""What the page says of several runs on the same records."""

import dataclasses
import re

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import assay
from assay.report.collect import Collector
from assay.report.groups import Tone, group_runs, verdict
from assay.report.page import render

PLAN = assay.Plan(records=40, batch_size=10, steps=4, noise_multiplier=2.0, delta=1e-3)
RECORDS = TensorDataset(torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2)


def fit(out, names=None, **given):
    return assay.fit(nn.Linear(2, 2), RECORDS, plan=PLAN, out=out, names={"data": "patients", **(names or {})}, **given)


def text(root):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", render(Collector(root).collect())))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two runs under a budget; and beside a third one without."""
    root = tmp_path_factory.mktemp("together")
    budget = assay.Budget.create(root / "b", epsilon=4, delta=1e-3, contents=assay.data.contents(RECORDS))
    for name in ("one", "two"):
        fit(root / "runs" / name, budget=budget)
    under = text(root / "runs")
    fit(root / "runs" / "three")
    return budget, under, text(root / "runs"), root


def test_a_budget_is_drawn_with_its_runs(pages):
    budget, page, _, _ = pages
    assert f"all 2 runs together had spent or reserved ε = {assay.at_most(budget.spent())} of at most 4" in page
    assert "Runs under the budget b" in page
    assert "ε of all runs under b, and the ceiling" in page
    assert "together ε ≤" not in page  # the budget says it


def test_runs_without_a_common_budget_are_added_up(pages):
    *_, page, root = pages
    total = assay.runs.total([root / "runs" / name for name in ("one", "two", "three")])
    assert f"3 runs on patients (unit: record, add-or-remove-one): together ε ≤ {assay.at_most(total.epsilon)}" in page


def test_runs_that_protect_different_units_have_no_total_and_the_page_says_so(tmp_path):
    fit(tmp_path / "one")
    other = dataclasses.replace(PLAN, adjacency=assay.Adjacency.REPLACE_ONE)
    names = {"data": "patients"}
    assay.fit(nn.Linear(2, 2), RECORDS, plan=other, out=tmp_path / "two", names=names)
    assert "Runs on patients protect different units (record, add-or-remove-one; record, replace-one)." in text(
        tmp_path
    )


def test_settings_that_were_tried_and_not_charged_take_the_green_tick_away(tmp_path):
    tuning = {"from": "a preset", "tried": 5, "on": "these records", "charged": False}
    fit(tmp_path / "run", names={"tuning": tuning})
    (group,) = group_runs(Collector(tmp_path).collect().finished)
    assert verdict(group).tone is Tone.NOTE
    assert "5 settings were tried on these records and not charged" in verdict(group).detail
