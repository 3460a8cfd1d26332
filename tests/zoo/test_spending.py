"""Bugs by which a run spends more than its files say, or its files tell more than was spent: each does, its twin does
not.
"""

import contextlib
import json
import shutil

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import assay as library
from assay import AssayError, Plan, PrivateStep, runs
from assay._util import seals
from assay._util.files import lock, set_times
from assay._util.signatures import PrivateKey
from assay.accounting import ledger as ledgers
from assay.accounting.epsilon import epsilon
from assay.accounting.ledger import Ledger
from assay.accounting.schedules import Decay
from assay.audit.aside import write_aside
from assay.data.sampling import FullBatch
from assay.data.units import Sampled, Unit
from assay.federated import from_names
from assay.gradients.clipping import Flat
from assay.runs import statement_of
from assay.runs.directory import RunDirectory
from assay.runs.statement import statement
from assay.training import tuning

from . import mutant_runs as mutants

PLAN = Plan(records=1000, batch_size=20, steps=400, noise_multiplier=0.8, delta=1e-5)


def opened(kind, path):
    return kind(path, delta=PLAN.delta, adjacency=PLAN.adjacency, ceiling=None)


def charge(kind, path, **how):
    """100 steps by somebody who opens the ledger for them."""
    ledger = opened(kind, path)
    ledger.begin(PLAN.steps_event, PLAN.steps, **how).charge(100)
    ledger.close()


def two_at_once(kind, path):
    first, second = opened(kind, path), opened(kind, path)
    first.lock()
    segments = [first.begin(PLAN.steps_event, PLAN.steps)]
    with contextlib.suppress(AssayError):
        segments.append(second.begin(PLAN.steps_event, PLAN.steps))
    for segment in segments:
        segment.charge(100)
    first.close()
    second.close()
    return len(segments)


def two_seeds(kind, path):
    for seed in "ab":
        charge(kind, path, draws=seed)
    return 2


def two_models(kind, path):
    for model in "ab":
        charge(kind, path, draws="one seed", start=model)
    return 2


LEDGERS = {
    "two who charge one ledger at once": (mutants.Unlocked, two_at_once),
    "another seed taken for a repetition": (mutants.RepeatsAnything, two_seeds),
    "another model under the same seed": (mutants.ForgetsItsStart, two_models),
}


@pytest.mark.parametrize("bug", LEDGERS)
@pytest.mark.parametrize("wrong", [True, False], ids=["bug", "twin"])
def test_what_the_ledger_says_is_what_was_spent(tmp_path, monkeypatch, bug, wrong):
    kind, spend = LEDGERS[bug]
    if kind is mutants.Unlocked:
        monkeypatch.setattr(ledgers, "lock", mutants.nobody_locks if wrong else lock)
    kind = kind if wrong else Ledger
    times = spend(kind, tmp_path / "ledger.jsonl")
    said = opened(kind, tmp_path / "ledger.jsonl").epsilon()
    spent = PLAN.epsilon(steps=100 * times)
    assert (said < 0.9 * spent) if wrong else said == pytest.approx(spent, rel=0.01)


@pytest.mark.parametrize("wrong", [True, False], ids=["bug", "twin"])
def test_a_checkpoint_that_is_ahead_of_its_ledger(tmp_path, wrong):
    path = tmp_path / "ledger.jsonl"
    charge(Ledger, path)
    ledger = opened(mutants.BelievesItsCheckpoint if wrong else Ledger, path)
    with contextlib.nullcontext() if wrong else pytest.raises(AssayError, match="150"):
        ledger.check_covers(150)


@pytest.mark.parametrize("wrong", [True, False], ids=["bug", "twin"])
def test_an_interrupt_while_a_ceiling_is_computed(monkeypatch, wrong):
    """Two segments share a ceiling for 400 steps. One is interrupted while it finds out what the other left of it."""
    if wrong:
        monkeypatch.setattr(ledgers, "Segment", mutants.LiftsFirst)
    ceiling = PLAN.epsilon()
    ledger = Ledger(None, delta=PLAN.delta, adjacency=PLAN.adjacency, ceiling=ceiling)
    first, second = (ledger.begin(PLAN.steps_event, PLAN.steps) for _ in range(2))
    second.charge(300)

    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(ledgers, "most_steps", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.charge(1)
    with contextlib.nullcontext() if wrong else pytest.raises(AssayError, match="the budget is spent"):
        first.charge(400)
    assert (ledger.epsilon() > 1.1 * ceiling) is wrong


@pytest.mark.parametrize(("kind", "bug"), [(mutants.CountsAgain, True), (PrivateStep, False)], ids=["bug", "twin"])
def test_a_batch_whose_loop_was_left_in_the_middle(kind, bug):
    """The sum says how often each record counted; 20 standard deviations of noise lie between once and twice."""
    data = TensorDataset(torch.eye(40))
    quiet = Plan(
        records=40, batch_size=40, steps=3, noise_multiplier=0.05, delta=1e-3, sampling=FullBatch, clip=Flat(bound=1.0)
    )
    model = nn.Linear(40, 1, bias=False)
    step = kind(model, quiet, max_physical_batch=14)
    for (x,) in step.batches(data):
        step.backward(model(x)[:, 0])
        break
    for (x,) in step.batches(data, 1):
        step.backward(model(x)[:, 0])
    counted = (model.weight.grad * 40).round()
    assert bool((counted == 1).all()) is not bug


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("zoo") / "run"
    data = TensorDataset(torch.randn(40, 2), torch.arange(40) % 2)
    plan = Plan(records=40, batch_size=10, steps=4, noise_multiplier=2.0, delta=1e-3)
    library.fit(nn.Linear(2, 2), data, plan=plan, out=path, names={"data": "digits", "model": "logistic"})
    return path


@pytest.mark.parametrize(
    ("write", "bug"), [(mutants.publishes_figures, True), (write_aside, False)], ids=["bug", "twin"]
)
def test_figures_of_an_audit_that_trained_again(trained, tmp_path, write, bug):
    path = shutil.copytree(trained, tmp_path / "run")
    audit = {"epsilon": 0.123456, "confidence": 0.95, "verdict": "consistent", "sentence": "shows 0.123456"}
    write(RunDirectory(path), {**audit, "how": "canaries", "estimator": "e", "assumption": ""})
    published = (path / "record.json").read_text() + (path / "statement.md").read_text()
    assert ("0.1234" in published) is bug


@pytest.mark.parametrize(
    ("read", "bug"), [(mutants.believes_its_statement, True), (statement_of, False)], ids=["bug", "twin"]
)
def test_a_statement_with_another_epsilon(trained, tmp_path, read, bug):
    """Somebody has written record and statement again, with digests that agree."""
    path = shutil.copytree(trained, tmp_path / "run")
    record = json.loads((path / "record.json").read_text())
    record["epsilon"]["verified"] = 0.5
    (path / "statement.md").write_text(statement(record))
    record["files"]["statement.md"] = seals.of_file(path / "statement.md")
    (path / "record.json").write_text(json.dumps(seals.sealed(record)))
    if bug:
        assert "spent ε = 0.5 " in read(path)
    else:
        with pytest.raises(AssayError, match="do not rely"):
            read(path)


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
@pytest.mark.parametrize("name", ["statement.md", "README.md"])
def test_a_statement_with_other_words(trained, tmp_path, name, bug):
    """Somebody has changed what ε protects in the prose alone, with digests that agree, and asks for a signature."""
    path = shutil.copytree(trained, tmp_path / "run")
    if bug:
        record = json.loads((path / "record.json").read_text())
        text = (path / name).read_text()
        (path / name).write_text(text.replace("Not protected: the test records", "Protected: the test records, too"))
        record["files"][name] = seals.of_file(path / name)
        (path / "record.json").write_text(json.dumps(seals.sealed(record)))
        with pytest.raises(AssayError, match="changed its words"):
            runs.sign(path, PrivateKey.generate())
    else:
        runs.sign(path, PrivateKey.generate())
        assert runs.verify(path).holds


TUNE = ("tune", "--data", "digits", "--model", "linear-head", "--sampling", "full", "--epochs", 1, "--try", "lr=0.5")


@pytest.mark.parametrize(("times", "bug"), [(mutants.leaves_times, True), (set_times, False)], ids=["bug", "twin"])
def test_times_of_a_choice(assay, tmp_path, monkeypatch, times, bug):
    """The time between the first and the last file grows with the number of trials, which must stay secret."""
    monkeypatch.setattr(tuning, "set_times", times)
    code, _, err = assay(*TUNE, "--trials", 3, "--epsilon", 3, "--seed", 3, "--out", tmp_path / "run")
    assert code == 0, err
    found = {path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert (len(found) > 1) is bug


FEDERATE = ("federate", "--data", "digits", "--model", "logistic", "--clients", 12, "--per-round", 4, "--rounds", 1)


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
def test_counts_of_the_clients_labels(assay, tmp_path, monkeypatch, bug):
    if bug:
        monkeypatch.setattr(from_names.FederatedSettings, "show_partition", mutants.CountsAnyway())
    code, _, err = assay(
        *FEDERATE, "--epsilon", 6, "--delta", 1e-2, "--partition", "dirichlet:1", "--out", tmp_path / "run"
    )
    assert code == 0, err
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert (record["federated"]["partition_counts"] is not None) is bug
    assert bool(list((tmp_path / "run").rglob("*.png"))) is bug


@pytest.mark.parametrize(
    "cheaper",
    [
        {"noise_schedule": Decay(levels=2, last=0.5)},
        {"unit": Unit(name="patient", persons=500, rows=2, sampled=Sampled.ROWS)},
        {"method": "dpsur"},
    ],
    ids=["falling noise", "rows of a person", "steps without their tests"],
)
@pytest.mark.parametrize(("kind", "bug"), [(mutants.FitsAsBefore, True), (Plan, False)], ids=["bug", "twin"])
def test_an_entry_that_costs_less_than_its_plan(kind, bug, cheaper):
    plan = kind(records=1000, batch_size=20, steps=40, noise_multiplier=0.8, delta=1e-5, **cheaper)
    charged = plan.sampler.composed_before(plan.step_event, 40)
    assert epsilon(charged, 1e-5, plan.adjacency) < plan.epsilon()
    assert plan.fits(40, 0, charged, once=False) is bug
    assert plan.fits(40, 0, plan.steps_event(40), once=False)


@pytest.mark.parametrize(
    ("write", "bug"), [(mutants.shows_everything, True), (library.report.write, False)], ids=["bug", "twin"]
)
def test_a_report_of_figures_that_nothing_covers(trained, tmp_path, write, bug):
    path = shutil.copytree(trained, tmp_path / "run")
    audit = {"epsilon": 0.123456, "confidence": 0.95, "verdict": "consistent", "sentence": "shows 0.123456"}
    write_aside(RunDirectory(path), {**audit, "how": "canaries", "estimator": "e", "assumption": ""})
    write(path, out=tmp_path / "page.html")
    assert ("0.1234" in (tmp_path / "page.html").read_text(encoding="utf-8")) is bug
