"""Bugs in the estimate of a table's columns: an attack on one record shows each, and does not show its correct twin."""

import numpy as np
import pytest
import torch

from assay import ConfigError, Plan
from assay.audit.bounds import Errors, epsilon_lower
from assay.data.tables import cells, estimates
from assay.methods.columns import Columns
from assay.training.step import PrivateStep

from . import mutants

NOISE, TRIALS = 4.0, 400  # ε = 1.1 at δ = 1e-5
HOW = cells.Reading(missing=("",))


def counts_of(values, draw):
    """True counts, and those with noise."""
    exact = np.bincount([cells.cell_of(value, HOW) for value in values], minlength=cells.CELLS).astype(float)
    return exact, exact + draw.normal(0, NOISE, cells.CELLS)


def bounds_show(rows, draw, mutant):
    exact, noisy = counts_of(rows, draw)
    found = mutants.exact_bounds(exact, NOISE) if mutant else estimates.found_in(noisy, NOISE)
    return found.column.high > 1000


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
