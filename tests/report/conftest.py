"""Runs for reports: one really trained, many made from its record."""

import copy
import json
import shutil

import pytest

import assay
from assay import data, methods, models
from assay._util import seals
from assay.audit import Verdict, sentence
from assay.runs.statement import statement
from assay.training.settings import Training


def reseal(path, record, text=None):
    """Write a record, and a statement, as the run itself would have written them."""
    if text is not None:
        (path / "statement.md").write_text(text)
        record["files"]["statement.md"] = seals.of_file(path / "statement.md")
    (path / "record.json").write_text(json.dumps(seals.sealed(record)))
    return path


@pytest.fixture(scope="session")
def resealed():
    """resealed(path, record, statement=None): a record, and a statement, as the run itself would have written them."""
    return reseal


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A finished run of GReDP as published, seeded."""
    path = tmp_path_factory.mktemp("trained") / "run"
    digits = data.load("digits")
    model = models.build("logistic", input_shape=digits.input_shape, classes=digits.classes)
    method = methods.get("gredp", variant="published", groups=1)

    plan = assay.Plan.calibrated(
        epsilon=2,
        delta=1e-5,
        records=len(digits.train),
        batch_size=256,
        epochs=3,
        method=method,
        clip=method.clip,
    )
    names = {"data": "digits", "model": "logistic", "circulant": None, "data_dir": None, "unit": "one image"}
    assay.fit(model, digits.train, plan=plan, test=digits.test, out=path, training=Training(seed=0), names=names)
    return path


@pytest.fixture
def run(trained):
    """run(path, method="lssgd", verified=1.5, ...): a copy of the trained run with a changed record."""

    def make(path, *, seed=0, accuracy=None, audited=None, verdict=None, **changed):
        shutil.copytree(trained, path)
        record = copy.deepcopy(json.loads((path / "record.json").read_text()))
        for key, value in changed.items():
            (record["epsilon"] if key in record["epsilon"] else record)[key] = value
        record["seed"] = record["training"]["seed"] = seed
        if accuracy is not None:
            record["result"]["test_accuracy"] = accuracy
        if audited is not None:
            record["epsilon"]["audited"] = audited
            said = Verdict(verdict)
            words = sentence(said, float(audited), 0.95)
            record["audit"] = {"verdict": verdict, "sentence": words, "assumption": "", "estimator": "e", "how": "h"}
        if not changed.keys() & record["epsilon"].keys():
            return reseal(path, record)
        _forget_charges(path, record)
        return reseal(path, record, statement(record))

    return make


def _forget_charges(path, record):
    """A ledger in which nothing is charged: whatever ε the record says, it is not less than that."""
    header = json.loads((path / "ledger.jsonl").read_text().splitlines()[0]) | {"delta": record["epsilon"]["delta"]}
    del header["digest"]
    line, _ = seals.chained(header, "")
    (path / "ledger.jsonl").write_bytes(line + b"\n")
    record["files"]["ledger.jsonl"] = seals.of_file(path / "ledger.jsonl")


@pytest.fixture
def unfinished(trained):
    """unfinished(path): the trained run as it was before its end, with a torn last line in its ledger."""

    def make(path):
        shutil.copytree(trained, path)
        for name in ("record.json", "statement.md", "model.safetensors"):
            (path / name).unlink()
        with (path / "ledger.jsonl").open("a") as file:
            file.write('{"segment": 0, "st')
        return path

    return make
