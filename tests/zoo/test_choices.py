"""Bugs of `assay tune`: what is published of the trial that won, and trials that do not begin alike."""

import contextlib
import itertools
import json
from types import SimpleNamespace

import pytest
import torch

from assay.models import custom
from assay.randomness.streams import Seeded
from assay.training import selection, tuning

from . import mutant_runs as mutants

TRIALS = 4
SEED = next(seed for seed in itertools.count() if selection.drawn_trials(TRIALS, Seeded(seed).stream("trials", 0)) == 3)


def tuned(assay, out, model="linear-head"):
    """What a choice among three trials leaves in its record."""
    options = ("--data", "digits", "--model", model, "--sampling", "full", "--epochs", 1, "--try", "lr=0.5")
    code, _, err = assay("tune", *options, "--trials", TRIALS, "--epsilon", 3, "--seed", SEED, "--out", out)
    assert code == 0, err
    return json.loads((out / "record.json").read_text())


@pytest.mark.parametrize("wrong", [True, False], ids=["bug", "twin"])
@pytest.mark.parametrize("entry", ["history", "timing"])
def test_an_entry_of_the_trial_that_won(assay, tmp_path, monkeypatch, entry, wrong):
    """Its ε is less than that of the choice; its time differs for the first trial and later ones."""
    if wrong:
        mutant = mutants.KeepsOfTheTrial(entry)
        monkeypatch.setattr(selection, "best_of", mutant.best_of)
        monkeypatch.setattr(tuning, "write_result", mutant.write)
    record = tuned(assay, tmp_path / "run")
    said = [step["epsilon"] for step in record["history"]]
    assert said
    assert any(epsilon < 0.9 * record["epsilon"]["verified"] for epsilon in said) is (wrong and entry == "history")
    assert (record["timing"] is not None) is (wrong and entry == "timing")


FACTORY = """
from torch import nn

KEPT = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def make():
    return KEPT
"""


@pytest.mark.parametrize("wrong", [True, False], ids=["bug", "twin"])
def test_a_factory_that_returns_the_same_network(assay, tmp_path, monkeypatch, wrong):
    """A trial that begins where the one before ended has used the records twice and is charged once."""
    name = f"kept_{'wrong' if wrong else 'right'}"
    (tmp_path / f"{name}.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    begun, fit = [], tuning.fit

    def noted(network, *args, **kwargs):
        begun.append(torch.cat([p.detach().flatten().clone() for p in network.parameters()]))
        return fit(network, *args, **kwargs)

    monkeypatch.setattr(tuning, "fit", noted)
    if wrong:
        monkeypatch.setattr(custom, "copies", SimpleNamespace(of_model=mutants.not_copied))
    with pytest.raises(AssertionError, match="an earlier run has trained") if wrong else contextlib.nullcontext():
        tuned(assay, tmp_path / "run", f"{name}:make")
    assert len(begun) == (2 if wrong else 3)  # the second trial is refused
    assert all(torch.equal(one, begun[0]) for one in begun) is not wrong
