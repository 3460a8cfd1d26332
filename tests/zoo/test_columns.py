"""Bugs in the estimate of a table's columns: an attack on one record shows each, and does not show its correct twin."""

import contextlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from assay import ConfigError, Plan
from assay.accounting.ledger import Ledger, read_ledger
from assay.audit.bounds import Errors, epsilon_lower
from assay.data.tables import cells, estimates
from assay.data.tables.drafts import read_draft, training_rows
from assay.data.tables.templates import from_sample
from assay.errors import DataError
from assay.methods.columns import Columns
from assay.presets import of_options
from assay.randomness.streams import Seeded
from assay.runs.directory import RunDirectory
from assay.training import estimating
from assay.training.from_names import begin_run
from assay.training.step import PrivateStep

from . import mutants

NOISE, TRIALS = 4.0, 400  # ε = 1.1 at δ = 1e-5
HOW = cells.Reading(missing=("",))
PLAN = Plan(records=100, batch_size=20, steps=50, noise_multiplier=1.0, delta=1e-3, columns=Columns(noise=4.0, count=2))


def counts_of(values, draw):
    """True counts, and those with noise."""
    exact = np.bincount([cells.cell_of(value, HOW) for value in values], minlength=cells.CELLS).astype(float)
    return exact, exact + draw.normal(0, NOISE, cells.CELLS)


def bounds_show(rows, draw, mutant):
    exact, noisy = counts_of(rows, draw)
    found = mutants.exact_bounds(exact, NOISE) if mutant else estimates.found_in(noisy, NOISE)
    return found.high > 1000


def level_shows(rows, draw, mutant):
    noisy = {text: rows.count(text) + draw.normal(0, NOISE) for text in sorted(set(rows))}
    kind = mutants.ListsEveryLevel if mutant else estimates.Levels
    return "rare" in kind(NOISE, draw.random).released(noisy)


@pytest.mark.parametrize(
    ("shows", "rows", "more"), [(bounds_show, ["40", "60"] * 200, "5000"), (level_shows, ["well"] * 400, "rare")]
)
@pytest.mark.parametrize("mutant", [True, False])
def test_what_one_record_shows_of_a_column(shows, rows, more, mutant):
    """The lower bound on ε is wrong with probability 1e-6 at most."""
    draw = np.random.default_rng(0)
    missed = sum(not shows([*rows, more], draw, mutant) for _ in range(TRIALS))
    false = sum(shows(rows, draw, mutant) for _ in range(TRIALS))
    errors = Errors(false_positives=false, excluded=TRIALS, false_negatives=missed, included=TRIALS)
    assert (epsilon_lower(errors, delta=1e-5, significance=1e-6) > 1.1) == mutant


@pytest.mark.parametrize("release", [mutants.same_noise_for_every_request, estimating.release])
def test_a_seed_gives_another_request_other_noise(release, tmp_path):
    """Thirty levels lie at the threshold, so that noise decides on each. By chance both answers agree once in 2^30."""
    path, columns = tmp_path / "t.csv", Columns(noise=1.0, count=3)
    often = round(estimates.threshold("level 10") * math.sqrt(estimates.ROUNDS) / 0.8)  # a fifth is for testing
    rows = [f"{i}{k},level {i},{k % 2}" for i in range(10, 40) for k in range(often)]
    path.write_text("age,ward,back\n" + "\n".join(rows) + "\n")
    draft = read_draft(path, "auto", "back", None)
    private = training_rows(path, draft, None)
    first, same, other = (release(private, draft, columns, Seeded(7), request) for request in ("a", "a", "b"))
    assert 0 < len(first["ward"].to_json()["levels"]) < 30
    assert first == same
    assert (first == other) == (release is mutants.same_noise_for_every_request)


def test_an_estimate_that_is_not_charged():
    plan = Plan(
        records=8, batch_size=4, steps=1, noise_multiplier=1.0, delta=1e-3, columns=Columns(noise=NOISE, count=2)
    )
    for kind, charged in ((mutants.NeverPays, False), (mutants.Ledger, True)):
        ledger = kind(None, delta=plan.delta, adjacency=plan.adjacency, ceiling=None)
        ledger.pay_once(plan.columns.event())
        if charged:
            PrivateStep(torch.nn.Linear(2, 2), plan, ledger=ledger).close()
        else:
            with pytest.raises(ConfigError, match="charged for what this method releases before"):
                PrivateStep(torch.nn.Linear(2, 2), plan, ledger=ledger)


@pytest.mark.parametrize("kind", [mutants.ForgetsEstimates, RunDirectory])
def test_a_run_that_takes_the_place_of_an_estimate(kind, tmp_path):
    """Somebody reads off an estimate, declares what it showed, and trains in the same directory."""
    run = kind(tmp_path / "run")
    run.path.mkdir()
    made = Ledger(run.estimate_ledger, delta=1e-3, adjacency=PLAN.adjacency, ceiling=None, run="request")
    made.pay(PLAN.columns.event())
    made.close()
    kind.create(run.path, {"plan": replace(PLAN, columns=None).to_json(), "training": {}, "names": {}})
    run.finish()
    counted = [read_ledger(file) for file in run.earlier.glob("*.jsonl")]
    assert [one.epsilon() for one in counted] == ([] if kind is mutants.ForgetsEstimates else [made.epsilon()])


@pytest.mark.parametrize("kind", [mutants.KeepsRows, RunDirectory])
def test_what_is_left_of_an_estimate_when_another_run_begins(kind, tmp_path):
    """A digest of the rows has no key: who knows all others tells by it whether a guess at the last one is right."""
    left = []
    for rows in (900, 910):  # whatever falls to the test part of ten rows
        path, run = tmp_path / f"{rows}.csv", kind(tmp_path / str(rows))
        path.write_text("age,back\n" + "".join(f"{i},{'yes' if i % 7 > 3 else 'no'}\n" for i in range(rows)))
        private = training_rows(path, draft := read_draft(path, "auto", "back", None), None)
        terms, columns = estimating.Terms(epsilon=8, delta=1e-3, adjacency=PLAN.adjacency), Columns(noise=4.0, count=2)
        estimating.estimate(private, draft, 700, columns, terms, Seeded(1), out=run.path, force=False)
        kind.create(run.path, {"plan": replace(PLAN, columns=None).to_json(), "training": {}, "names": {}})
        (asked,) = (json.loads(file.read_text()) for file in run.earlier.glob("*.json"))
        left.append((asked["request"], asked.get("rows"), read_ledger(run.earlier / "001.jsonl").heads))
    assert (left[0] == left[1]) == (kind is RunDirectory)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Runs on two tables of the same persons: in the second, some have a target that nobody else has."""
    folder, found = tmp_path_factory.mktemp("targets"), []
    for strange in (0, 40):
        path = folder / f"{strange}.csv"
        rows = [f"{i},{i % 7},{'rare' + str(i) if i < strange else 'yes' if i % 7 > 3 else 'no'}" for i in range(900)]
        path.write_text("who,age,back\n" + "\n".join(rows) + "\n")
        asked = {"data": str(path), "target": "back", "schema": "auto", "unit": "who", "epsilon": 8, "delta": 1e-3}
        found.append(begin_run(of_options(asked)))
    return found


@pytest.mark.parametrize("mutant", [True, False])
def test_how_many_targets_are_usable_does_not_show(begun, mutant):
    counts = [made.bundle.persons if mutant else made.plan.records for made in begun]
    assert (counts[0] != counts[1]) == mutant
    assert len(begun[1].bundle.train_x) < begun[1].plan.records


def test_a_plan_without_an_estimate_takes_no_fewer_records(begun):
    model, data, units = torch.nn.Linear(begun[1].bundle.input_shape[0], 2), begun[1].bundle.train, begun[1].units
    plan = replace(begun[1].plan, columns=None, epsilon_limit=None)
    with pytest.raises(ConfigError, match="persons that the plan was made for"):
        next(iter(PrivateStep(model, plan).batches(data, units=units)))


@pytest.mark.parametrize("bug", ["a copy", "its first rows", None])
def test_a_public_sample_of_private_rows(tmp_path, bug):
    """The bug: ranges and levels of the private rows, said to be public. The twin has rows of its own."""
    rows = [f"{20 + i % 60},{i},{'yes' if i % 3 else 'no'}" for i in range(300)]
    taken = {"a copy": rows[::-1], "its first rows": rows[:40], None: [f"{30 + i},-{i},no" for i in range(40)]}[bug]
    for name, lines in (("own.csv", rows), ("sample.csv", taken)):
        (tmp_path / name).write_text("\n".join(["age,stay,back", *lines]))
    with pytest.raises(DataError, match="different rows") if bug else contextlib.nullcontext():
        assert "high = 69" in from_sample(tmp_path / "own.csv", tmp_path / "sample.csv")
