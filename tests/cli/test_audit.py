"""`assay audit` as a user types it."""

import json

import pytest

FIELDS = {"claimed", "verified", "audited", "confidence", "verdict"}


@pytest.mark.parametrize("noise_form", ["complex", "real"])
def test_gredps_claim_is_refuted_without_training_anything(assay, noise_form):
    code, out, _ = assay(
        "audit", "--method", "gredp", "--variant", "published", "--noise-form", noise_form, "--epsilon", 1, "--json"
    )
    facts = json.loads(out)
    assert code == 0
    assert set(facts) >= FIELDS
    assert facts["claimed"] == pytest.approx(1, rel=0.02)
    assert facts["verdict"] == "claim-refuted"
    assert facts["confidence"] == 0.95
    if noise_form == "real":
        assert facts["audited"] == facts["verified"] == "inf"
    else:
        assert 2 < facts["audited"] < facts["verified"]


def test_a_sound_method_is_consistent_and_says_so_in_words(assay):
    arguments = ("audit", "--method", "dpsgd", "--epsilon", 8, "--seed", 1)
    code, out, _ = assay(*arguments)
    assert code == 0
    assert out.startswith("consistent")
    assert "ε verified" in out
    facts = json.loads(assay(*arguments, "--json")[1])
    assert facts["verdict"] == "consistent"
    assert 0.6 * facts["verified"] < facts["audited"] < facts["verified"]


def test_a_run(assay, tmp_path):
    run = tmp_path / "run"
    train = ("train", "--data", "digits", "--model", "logistic", "--epochs", 4, "--batch-size", 128, "--epsilon", 6)
    assert assay(*train, "--out", run)[0] == 0
    before = sorted((p.name, p.read_bytes()) for p in run.iterdir())
    verified = json.loads(assay("show", run, "--json")[1])["epsilon"]["verified"]
    one_step = json.loads(assay("audit", run, "--seed", 2, "--json")[1])
    assert one_step["verdict"] == "consistent"
    assert one_step["verified"] == pytest.approx(verified, rel=1e-6)
    whole = json.loads(assay("audit", run, "--canaries", 400, "--seed", 3, "--json")[1])
    assert whole["verdict"] == "consistent"
    assert whole["audit"]["canaries"] == 400
    assert 0 <= whole["audited"] <= verified
    assert sorted((p.name, p.read_bytes()) for p in run.iterdir()) == before


def test_bad_usage_is_told(assay, tmp_path):
    for arguments in (
        ("audit",),
        ("audit", tmp_path, "--method", "dpsgd"),
        ("audit", tmp_path),
        ("audit", "--method", "nonesuch"),
        ("audit", "--method", "dpsgd", "--epsilon", 1, "--noise-multiplier", 1),
        ("audit", "--method", "dpsgd", "--canaries", 10),
        ("audit", "--method", "dpsgd", "--confidence", 1),
    ):
        code, out, err = assay(*arguments)
        assert code == 2
        assert out == ""
        assert "is not accepted" in err
