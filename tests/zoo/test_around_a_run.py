"""Bugs around training, where ε is right about each step and wrong about the run: which records are whose, and what
files tell.
"""

import contextlib
import copy
import functools
import json
import sys
import types

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Subset, TensorDataset

import assay as library
from assay import ConfigError, Plan, PrivateStep
from assay.accounting.epsilon import Adjacency
from assay.accounting.ledger import Ledger, read_ledger
from assay.data import load
from assay.data.split import drawn
from assay.mechanisms.gaussian import gaussian_event
from assay.randomness.streams import Seeded
from assay.runs.directory import RunDirectory
from assay.training import selection as tuning

from . import mutants

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5001, 3)).astype(np.float32)
Y = RNG.integers(0, 3, len(X))


def most_moved(split) -> int:
    """How many of the other records one record's absence moves from one part to the other, at most."""
    moved = []
    for share in (0.1, 0.2, 0.5):
        part = split(X, Y, "test", share)
        for gone in (0, 1, 2500, 5000):
            left = np.arange(len(X)) != gone
            moved.append(int((part[left] != split(X[left], Y[left], "test", share)).sum()))
    return max(moved)


def test_records_that_go_by_position_are_caught_and_those_that_go_by_content_are_not():
    assert most_moved(mutants.by_position) > 1000
    assert most_moved(drawn) == 0


PLAN = Plan(records=100, batch_size=10, steps=3, noise_multiplier=1.0, delta=1e-5)
SPEC = {"plan": PLAN.to_json(), "training": {}, "names": {}}


def replaced(directory: RunDirectory, spec) -> RunDirectory:
    return RunDirectory.create(directory.path, spec, force=True)


@pytest.mark.parametrize(("replace", "remembered"), [(mutants.force_that_forgets, 0), (replaced, 2)])
def test_what_was_spent_before_a_run_was_replaced(tmp_path, replace, remembered):
    directory = RunDirectory.create(tmp_path / "run", SPEC)
    for _ in range(2):
        ledger = Ledger(directory.ledger, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE, ceiling=None)
        ledger.pay(gaussian_event(1.0))
        ledger.close()
        directory = replace(directory, SPEC)
    kept = sorted(directory.earlier.glob("*.jsonl"))
    assert len(kept) == remembered
    assert not directory.ledger.exists()
    for path in kept:
        found = read_ledger(path)
        assert found is not None
        steps, epsilon, delta = found.total_steps, found.epsilon(), found.delta
        assert (steps, delta) == (0, 1e-5)
        assert 4 < epsilon < 5


@pytest.mark.parametrize(("kind", "kept"), [(mutants.ThreeDigits, 1), (RunDirectory, 3)], ids=["bug", "twin"])
def test_what_was_spent_before_the_thousandth_run_of_a_directory(tmp_path, kind, kept):
    """Somebody repeats a command with --force: no ledger may take the place of another."""
    for run in range(4):
        directory = kind.create(tmp_path / "run", SPEC, force=True)
        if run == 0:
            directory.earlier.mkdir()
            (directory.earlier / "999.json").write_text("{}")
        ledger = Ledger(directory.ledger, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE, ceiling=None)
        ledger.pay(gaussian_event(1.0 + run))
        ledger.close()
    spent = [found.epsilon() for path in directory.earlier.glob("*.jsonl") if (found := read_ledger(path)) is not None]
    assert len(set(spent)) == kept


@pytest.mark.parametrize("bug", ["the same", "the same again", "in another order", "a part", "by names", None])
def test_test_records_that_are_training_records(bug):
    """What is measured on them is exact, and in record and statement."""
    plan = Plan(records=80, batch_size=10, steps=2, noise_multiplier=2.0, delta=1e-3)
    x, y = torch.randn(160, 3), torch.arange(160) % 2
    train = TensorDataset(x[:80], y[:80])
    tests = {
        "the same": train,
        "the same again": TensorDataset(x[:80].clone(), y[:80].clone()),
        "in another order": Subset(train, torch.randperm(80).tolist()),
        "a part": TensorDataset(x[75:], y[75:]),
        "by names": train,
        None: TensorDataset(x[80:], y[80:]),
    }
    with contextlib.nullcontext() if bug is None else pytest.raises(ConfigError, match="training records"):
        names = {"data_dir": None} if bug == "by names" else None  # as `assay train` notes them
        library.fit(nn.Linear(3, 2), train, plan=plan, test=tests[bug], names=names)


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
def test_a_model_that_is_trained_twice_on_the_same_records(bug):
    """As in a notebook whose cell runs again: the second run begins where the first ended, and stated its ε alone."""
    plan = Plan(records=80, batch_size=10, steps=2, noise_multiplier=2.0, delta=1e-3)
    model, x = nn.Linear(3, 2), torch.randn(160, 3)
    library.fit(model, TensorDataset(x[:80], torch.arange(80) % 2), plan=plan)
    library.fit(model, TensorDataset(x[80:], torch.arange(80) % 2), plan=plan)  # other people
    if not bug:
        model.reset_parameters()
    with pytest.raises(ConfigError, match="an earlier run has trained") if bug else contextlib.nullcontext():
        library.fit(model, TensorDataset(x[:80].clone(), torch.arange(80) % 2), plan=plan)


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
def test_a_model_that_is_trained_under_two_budgets(tmp_path, bug):
    """Each budget counts its own run, and the second model shows what both have released."""
    plan = Plan(records=80, batch_size=10, steps=2, noise_multiplier=2.0, delta=1e-3)
    model, records = nn.Linear(3, 2), TensorDataset(torch.randn(80, 3), torch.arange(80) % 2)
    folders = [tmp_path / "here", tmp_path / "there"]  # budgets know those in their own folder
    for folder in folders:
        folder.mkdir()
        library.Budget.create(folder / "b", epsilon=9.0, delta=1e-3, contents=library.data.contents(records))
    library.fit(model, records, plan=plan, budget=folders[0] / "b")
    with pytest.raises(ConfigError, match="an earlier run has trained") if bug else contextlib.nullcontext():
        library.fit(model, records, plan=plan, budget=folders[bug] / "b")


class DataSGD(torch.optim.SGD):
    """Writes `.data`, as optimizers did before torch 0.4 and some still do: autograd counts no write."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.data.add_(p.grad, alpha=-0.1)


BUGS = ["another ledger", "another head", "fit", "in another order", "a quarter of them", "through data"]


@pytest.mark.parametrize("bug", BUGS)
def test_a_loop_that_goes_on_with_a_model_which_was_trained(bug):
    """A second step begins with what the first has learnt of the records, and its own ledger does not say so."""
    plan = Plan(records=80, batch_size=40, steps=2, noise_multiplier=2.0, delta=1e-3)
    people = [TensorDataset(torch.randn(80, 3), torch.arange(80) % 2) for _ in range(2)]

    def train(model, records, ledger=None):
        step = PrivateStep(model, plan, ledger=ledger)
        with contextlib.closing(step):
            optimizer = (DataSGD if bug == "through data" else torch.optim.SGD)(model.parameters(), 0.1)
            for x, y in step.batches(records):
                step.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
                optimizer.step()
        return step.ledger

    bugs = {
        "another ledger": train,
        "through data": train,
        "another head": lambda model, records: train(nn.Sequential(model[0], nn.Linear(4, 2)), records),
        "fit": lambda model, records: library.fit(model, records, plan=plan),
        "in another order": lambda model, records: train(model, Subset(records, torch.randperm(80).tolist())),
        "a quarter of them": lambda model, records: train(
            model, TensorDataset(torch.cat([records.tensors[0][:20], torch.randn(60, 3)]), records.tensors[1])
        ),
    }
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    spent = train(model, people[0])
    train(model, people[1])  # other people
    train(model, people[0], spent)  # the twin: one ledger holds both
    assert spent.total_steps == 4
    with pytest.raises(ConfigError, match="an earlier run has trained"):
        bugs[bug](model, people[0])
    for layer in model:
        layer.reset_parameters()
    train(model, people[0])


@pytest.mark.parametrize("bug", ["deepcopy", "load_state_dict", "a layer of it", "beside the model"])
def test_a_copy_of_a_model_that_was_trained(bug):
    """It holds what the model had learnt of the records. What is made of other numbers, or of other people, is fine."""
    plan = Plan(records=80, batch_size=40, steps=2, noise_multiplier=2.0, delta=1e-3)
    people, others = (TensorDataset(torch.randn(80, 3), torch.arange(80) % 2) for _ in range(2))

    def made():
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))

    def loop(before, records):
        with contextlib.closing(PrivateStep(model := nn.Linear(4, 2), plan)) as step:
            for x, y in step.batches(records):
                with torch.no_grad():
                    found = before(x)
                step.backward(nn.functional.cross_entropy(model(found), y, reduction="none"))

    def train_again(first, records):
        if bug == "beside the model":
            return loop(copy.deepcopy(first[0]), records)
        if bug == "deepcopy":
            again = copy.deepcopy(first)
        else:
            again = made()
            (again if bug == "load_state_dict" else again[0]).load_state_dict(
                (first if bug == "load_state_dict" else first[0]).state_dict()
            )
        return library.fit(again, records, plan=plan)

    first = made()
    train_again(first, people)  # a copy of what was not trained
    library.fit(first, people, plan=plan)
    with pytest.raises(ConfigError, match="an earlier run has trained"):
        train_again(first, people)
    train_again(first, others)
    train_again(made(), people)


TUNE = ("tune", "--data", "digits", "--model", "linear-head", "--sampling", "full", "--epochs", 1, "--try", "lr=0.5")


def told(out) -> dict:
    """All that a directory says without being opened, and what its record says of time."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    record = json.loads((out / "record.json").read_text())
    return {
        "names": [path.name for path in files],
        "model": (out / "model.safetensors").stat().st_size,
        "times": {path.stat().st_mtime_ns for path in (*files, out)},
        "timing": record["timing"],
        "keys": sorted(record),
        "ledger": len((out / "ledger.jsonl").read_text().splitlines()),
    }


def test_nothing_that_is_left_of_a_choice_tells_how_many_trials_there_were(assay, tmp_path):
    """The proof needs the number to be secret.

    Here it is known by the seed, and nothing but the numbers in the model may depend on it.

    The twin of the bug is the time at which `run.json` was written: it is there before the first trial.
    """
    known, seeds = {}, iter(range(100))
    while len(known) < 2:
        seed = next(seeds)
        if trials := tuning.drawn_trials(4, Seeded(seed).stream("trials", 0)):
            known.setdefault(trials, seed)
    said, outputs = [], []
    for trials, seed in known.items():
        out = tmp_path / str(trials)
        code, text, err = assay(*TUNE, "--trials", 4, "--epsilon", 3, "--seed", seed, "--out", out)
        assert code == 0, err
        said.append(told(out))
        outputs.append((text.count("\n"), err.count("\n")))
    assert all(len(one["times"]) == 1 for one in said)
    assert len({one["times"].pop() for one in said}) == 2, "each its own start"
    assert said[0]["timing"] is None
    assert said[0] == said[1]
    assert len(set(outputs)) == 1


def test_a_federated_run_does_not_tell_what_its_clients_hold(assay, tmp_path):
    """Counts of labels are exact numbers about the records.

    On request they are published, and the statement says so.
    """
    run = [
        "federate",
        "--data",
        "digits",
        "--model",
        "logistic",
        "--clients",
        "12",
        "--per-round",
        "4",
        "--rounds",
        "1",
        "--epsilon",
        "6",
        "--delta",
        "1e-2",
    ]
    for name, more in (("default", ()), ("asked", ("--show-partition",))):
        code, _, err = assay(*run, "--partition", "dirichlet:1", *more, "--out", tmp_path / name)
        assert code == 0, err
    default, asked = tmp_path / "default", tmp_path / "asked"
    counts = json.loads((asked / "record.json").read_text())["federated"]["partition_counts"]
    assert sum(map(sum, counts)) == 1437
    assert (asked / "partition.png").exists()
    assert "published on request" in (asked / "statement.md").read_text()
    assert not list(default.rglob("*.png"))
    assert json.loads((default / "record.json").read_text())["federated"]["partition_counts"] is None
    assert json.loads((default / "run.json").read_text())["names"]["counts"] is None


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
@pytest.mark.parametrize("kind", ["npz", "table", "pictures", "factory"])
def test_a_test_part_that_holds_training_records(bug, kind, tmp_path, monkeypatch):
    """Accuracy on it is exact, and leaves with the record."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(80, 3)).astype(np.float32), np.arange(80) % 2
    first, second = slice(0, 60), slice(20, 60) if bug else slice(60, 80)
    if kind == "npz":
        np.savez(tmp_path / "data.npz", x=x[first], y=y[first], x_test=x[second], y_test=y[second])
        ask = functools.partial(load, tmp_path / "data.npz")
    elif kind == "table":
        columns = {name: {"type": "number", "low": -9, "high": 9} for name in "abc"} | {"y": {"type": "flag"}}
        train, test = (pa.table({**dict(zip("abc", x[part].T, strict=True)), "y": y[part]}) for part in (first, second))
        ask = functools.partial(library.data.table, train, target="y", schema=columns, test=test)
    elif kind == "pictures":
        for name, part in (("train", first), ("test", second)):
            for at in range(80)[part]:
                file = tmp_path / "scans" / name / str(y[at]) / f"{at}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((8, 8), 3 * at, np.uint8)).save(file)
        ask = functools.partial(load, tmp_path / "scans")
    else:
        parts = [TensorDataset(torch.from_numpy(x[part]), torch.from_numpy(y[part])) for part in (first, second)]
        monkeypatch.setitem(sys.modules, "made_here", types.SimpleNamespace(both=lambda: tuple(parts)))
        ask = functools.partial(load, "made_here:both")
    with pytest.raises(ConfigError, match="40 of 40 records that are training") if bug else contextlib.nullcontext():
        ask()
