"""The model card: in Hugging Face's form, made from the record, and never apart from it."""

import json
import shutil

import pytest

from assay import runs
from assay._util import seals
from assay.audit.aside import write_aside
from assay.audit.storage import write_audit
from assay.runs.card import card
from assay.runs.directory import RunDirectory

AUDIT = {
    "epsilon": 0.25,
    "confidence": 0.95,
    "verdict": "consistent",
    "sentence": "nothing was found",
    "how": "canaries",
    "estimator": "e",
    "assumption": "",
}


@pytest.fixture
def done(finished, tmp_path):
    return RunDirectory(shutil.copytree(finished, tmp_path / "run"))


def test_the_hub_reads_it(done):
    hub = pytest.importorskip("huggingface_hub")
    read = hub.ModelCard.load(done.card)
    assert read.data.tags == ["differential-privacy", "assay", "dpsgd"]
    assert read.data.library_name == "assay-dp"
    for heading in ("Intended use", "Privacy", "Results", "How to load", "Privacy statement", "Files"):
        assert f"\n## {heading}\n" in read.text
    record = done.read_record()
    assert "**Reproducible, not private: the seed of the noise is fixed.**" in read.text
    assert f"spent ε = {runs.statement_of(done.path).split('spent ε = ')[1].split()[0]}" in read.text
    for line in runs.statement_of(done.path).splitlines():
        assert line.lstrip("#") in read.text
    hostile = card({**record, "model": 'a"\n---\n# b', "data": "x: [", "result": {"test_accuracy": 0.5}})
    parsed = hub.ModelCard(hostile).data
    assert parsed.eval_results[0].dataset_name == "x: ["
    assert parsed.eval_results[0].metric_value == 0.5
    assert parsed.model_name == 'a"\n---\n# b'


def test_an_audit_changes_the_card_with_record_and_statement(done):
    before = done.card.read_text()
    write_audit(done, AUDIT)
    assert done.card.read_text() != before
    assert "| audited | 0.25" in done.card.read_text()
    assert runs.verify(done.path).holds


def test_what_is_for_the_holder_of_the_records_is_kept_back(done):
    write_aside(done, AUDIT)
    kept = done.ignored.read_text().splitlines()
    assert {"audits.json", "attacks.json", "checkpoint.safetensors", "records.safetensors"} <= set(kept)
    done.ignored.write_text("")
    assert {check.name for check in runs.verify(done.path).failed} == {"file .gitignore"}


def test_a_run_of_an_earlier_version_needs_no_card(done):
    record = done.read_record()
    for name in (".gitignore", "README.md"):
        (done.path / name).unlink()
        del record["files"][name]
    done.record.write_text(json.dumps(seals.sealed(record)))
    assert runs.verify(done.path).holds
    write_audit(done, AUDIT)
    assert done.card.exists()
    assert runs.verify(done.path).holds
