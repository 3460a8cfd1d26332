"""An interrupted run that nobody resumes: the ε shown for it holds, whyever it was stopped."""

import shutil

import pytest

from assay import at_most
from assay.report.collect import Collector

from .conftest import plan


def test_an_interrupted_run_shows_the_epsilon_of_its_whole_plan(assay, unfinished):
    whole, taken = plan().epsilon(), plan().epsilon(steps=4)
    assert taken < 0.8 * whole
    code, out, _ = assay("show", unfinished)
    assert code == 0
    assert "4 of 8 planned steps are charged" in out
    assert f"If it ends here, it has spent ε = {at_most(whole)} at δ = 0.001" in out
    assert f"cost ε = {at_most(taken)}" in out
    (entry,) = Collector(unfinished).collect().unfinished
    assert entry.epsilon == pytest.approx(whole, rel=1e-6)
    assert (entry.charged, entry.planned) == (4, 8)


def test_a_run_that_was_never_charged_has_spent_nothing(assay, unfinished, tmp_path):
    path = shutil.copytree(unfinished, tmp_path / "run")
    (path / "ledger.jsonl").unlink()
    (path / "checkpoint.safetensors").unlink()
    code, out, _ = assay("show", path)
    assert code == 0
    assert "it has spent ε = 0 " in out
