"""`assay audit` as a user types it."""

import json
from dataclasses import replace

import pytest

from assay import Plan
from assay.audit import again as command
from assay.audit.aside import read_aside
from assay.audit.plans import composed
from assay.mechanisms.gaussian import Gaussian, gaussian_event
from assay.report.collect import Collector
from assay.report.groups import Tone, group_runs, verdict
from assay.runs.directory import RunDirectory
from assay.training.meter import MeanLoss

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
    arguments = ("audit", "--method", "dpsgd", "--epsilon", 8, "--releases", 10_000, "--seed", 1)
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
    verified = json.loads(assay("show", run, "--json")[1])["epsilon"]["verified"]
    one_step = json.loads(assay("audit", run, "--releases", 3000, "--seed", 2, "--json")[1])
    assert one_step["verdict"] == "consistent"
    assert one_step["verified"] == pytest.approx(verified, rel=1e-6)
    code, _, err = assay("audit", run, "--batch-size", 3)
    assert code == 2
    assert "batch_size = 3.0 is not accepted: nothing beside a run" in err
    worlds = json.loads(assay("audit", run, "--worlds", 8, "--seed", 3, "--json")[1])
    assert worlds["verdict"] == "consistent"
    assert "Clopper-Pearson" in worlds["audit"]["estimator"]
    whole = json.loads(assay("audit", run, "--canaries", 400, "--seed", 3, "--json")[1])
    assert whole["verdict"] == "consistent"
    assert whole["audit"]["canaries"] == 400
    assert 0 <= whole["audited"] <= verified
    black = json.loads(assay("audit", run, "--canaries", 50, "--black-box", "--seed", 3, "--json")[1])
    assert black["verdict"] == "consistent"
    record = json.loads(assay("show", run, "--json")[1])
    again = json.loads(assay("audit", run, "--releases", 3000, "--seed", 3, "--json")[1])
    record = json.loads(assay("show", run, "--json")[1])
    audits = [one_step, again]
    assert [kept["epsilon"] for kept in record["audits"]] == [audit["audited"] for audit in audits]
    assert record["epsilon"]["audited"] == max(audit["audited"] for audit in audits), "the strongest is shown,"
    assert record["audit"]["confidence"] == pytest.approx(0.9), "with what is left of the confidence of both"
    assert "90 % confidence" in record["audit"]["sentence"]
    assert record["audit"]["verdict"] == "consistent"
    statement = assay("show", run)[1]
    assert record["audit"]["sentence"] in statement
    assert "not measured" not in statement
    # what trained on the records again is covered by no ε: its figures are in no file that is published
    trained = [worlds, whole, black]
    assert [audit["covered"] for audit in (one_step, *trained)] == [True, False, False, False]
    kept = read_aside(RunDirectory.open(run))
    assert [one["epsilon"] for one in kept] == [audit["audited"] for audit in trained]
    assert "own model has seen none" in kept[1]["how"]
    assert record["audits_aside"] == {"count": 3, "alarm": None, "confidence": pytest.approx(0.85)}
    assert "3 audits trained again on the same records" in statement
    published = statement + (run / "record.json").read_text()
    assert not [
        one for one in kept if one["sentence"] in published or (repr(one["epsilon"]) in published and one["epsilon"])
    ]


def test_a_run_of_the_best_preset_is_audited_whole(assay, tmp_path):
    """Fixed seeds. Features of each record, and their mean that a stage releases, are part of what is trained again."""
    run = tmp_path / "run"
    train = "train --data digits --preset best --records 300 --batch-size 100 --epochs 2 --epsilon 4 --seed 0"
    code, _, err = assay(*train.split(), "--out", run)
    assert code == 0, err
    spec = RunDirectory.open(run).read_spec()
    assert (spec["plan"]["center"], spec["names"]["features"]) == ("mean:noise=10", "scatter:J=1")
    for way in (("--canaries", 200), ("--canaries", 50, "--black-box"), ("--worlds", 4)):
        code, out, err = assay("audit", run, *way, "--seed", 3, "--json")
        assert code == 0, err
        assert json.loads(out)["verdict"] == "consistent"
    aside = json.loads((run / "audits.json").read_text())["audits"]
    assert len(aside) == 3


def test_a_run_of_falling_noise_that_its_budget_ended_is_played_with_the_noise_it_had(assay, tmp_path, noises):
    run = tmp_path / "run"
    train = "train --data digits --model logistic --epochs 2 --batch-size 256 --noise-multiplier 4"
    schedule = ("--noise-schedule", "decay:levels=4,last=0.1")
    assert assay(*train.split(), *schedule, "--epsilon", 2, "--out", run)[0] == 3
    record, plan = (
        json.loads(assay("show", run, "--json")[1]),
        Plan.from_json(RunDirectory.open(run).read_spec()["plan"]),
    )
    taken = record["steps"]
    gradient = 1 - MeanLoss().share  # the loss takes the rest of a step
    wanted = [plan.noise_multiplier * plan.noise_factor(t) / gradient**0.5 for t in range(taken)]
    assert taken < plan.steps
    assert len(set(wanted)) > 1
    for way, times in ((("--canaries", 50), 1), (("--canaries", 50, "--black-box"), 1), (("--worlds", 4), 8)):
        noises.clear()
        facts = json.loads(assay("audit", run, *way, "--seed", 0, "--json")[1])
        assert noises == pytest.approx(wanted * times)
        assert facts["verdict"] == "consistent"
    one_step = json.loads(assay("audit", run, "--releases", 1000, "--seed", 0, "--json")[1])
    assert one_step["verdict"] == "consistent"
    assert one_step["audited"] == pytest.approx(composed(plan, one_step["step"]["mu"], taken))
    assert one_step["claimed"] == pytest.approx(record["epsilon"]["claimed"])


def test_what_is_above_verified_by_the_gaussian_bound_alone_is_not_called_consistent(assay, tmp_path, monkeypatch):
    """Fixed seeds.

    With noise 1.8 times too small, what 600 canaries show is above the verified ε for a Gaussian trade-off function,
    and below it for any. The two bounds have half of the allowed error each.
    """
    run, found = tmp_path / "run", []
    train = "train --data digits --model logistic --sampling full --epochs 2 --batch-size 1437 --epsilon 2 --seed 0"
    assert assay(*train.split(), "--out", run)[0] == 0
    release, white_box = Gaussian.release, command.white_box

    def quieter(self, *given):
        private = release(replace(self, multiplier=self.multiplier / 1.8), *given)
        return replace(private, event=gaussian_event(self.multiplier), noise_std=private.noise_std * 1.8)

    def kept(*given, **settings):
        found.append(white_box(*given, **settings))
        return found[0]

    monkeypatch.setattr(Gaussian, "release", quieter)
    monkeypatch.setattr(command, "white_box", kept)
    facts = json.loads(assay("audit", run, "--canaries", 600, "--seed", 0, "--json")[1])
    assert found[0].plain.epsilon < facts["verified"] < found[0].best.epsilon == facts["audited"]
    assert found[0].plain.confidence == found[0].gaussian.confidence == pytest.approx(0.9875)
    assert facts["confidence"] == facts["audit"]["confidence"] == 0.95
    assert "98.75 % confidence each" in facts["audit"]["how"]
    assert facts["verdict"] == "suspect"
    assert "if the trade-off function is Gaussian" in facts["sentence"]
    assert "no proof" in facts["sentence"]
    shown = assay("show", run)[1]
    assert "Look into it" in shown, "the alarm is published, and no figure of it"
    assert facts["sentence"] not in shown
    (group,) = group_runs(Collector(tmp_path).collect().finished)
    assert verdict(group).tone is not Tone.GOOD


@pytest.fixture(scope="module")
def federated(tmp_path_factory):
    from typer.testing import CliRunner

    from assay.cli import app

    run = tmp_path_factory.mktemp("federated") / "run"
    words = (
        "federate --data digits --model logistic --clients 12 --per-round 4 --rounds 6 --epsilon 6 --delta 1e-2"
        " --seed 1"
    )
    done = CliRunner().invoke(app, [*words.split(), "--keep-models", "3", "--out", str(run)])
    assert done.exit_code == 0, done.output
    return run


def test_a_federated_run(assay, federated):
    verified = json.loads(assay("show", federated, "--json")[1])["epsilon"]["verified"]
    for arguments, estimator in (
        (("--canaries", 200), "one run"),
        (("--canaries", 20, "--black-box"), "one run"),
        (("--worlds", 4), "Clopper-Pearson"),
        (("--releases", 300), "single round"),
    ):
        facts = json.loads(assay("audit", federated, *arguments, "--seed", 3, "--json")[1])
        assert facts["verdict"] == "consistent"
        assert facts["audit"]["estimator"].startswith(estimator)
        assert facts["audited"] <= verified
    record = json.loads(assay("show", federated, "--json")[1])
    assert len(record["audits"]) == 1
    assert record["audits_aside"]["count"] == 3
    assert "canaries in its data" in read_aside(RunDirectory.open(federated))[0]["how"]
    assert record["audit"]["sentence"] in assay("show", federated)[1]


def test_attacks_on_a_federated_run(assay, federated):
    """Three models on the way were kept, the last of which is the result.

    ML-Leaks trains its shadow as the run was trained.
    """
    wanted = ("confidence-series", "ml-leaks", "white-box")
    words = [word for name in wanted for word in ("--attack", name)]
    code, out, err = assay("attack", federated, *words, "--records", 200, "--save", "--json")
    assert code == 0, err
    found = {result["attack"]: result for result in json.loads(out)["attacks"]}
    assert tuple(found) == wanted
    assert "shadow model" in found["ml-leaks"]["calibration"]
    for result in found.values():
        assert result["auc"]["low"] < 0.6, "a private logistic regression gives hardly anything away"
    kept = json.loads((federated / "attacks.json").read_text())["attacks"]
    assert [result["attack"] for result in kept] == list(wanted)
    assert len(list((federated / "rounds").iterdir())) == 3


def test_an_unfinished_run_is_audited_and_left_alone(assay, tmp_path, monkeypatch):
    from assay.runs.run import Run

    def crash(self, at_end):
        raise RuntimeError("the machine went down")

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_tell", crash)
        with pytest.raises(RuntimeError):
            assay("train", "--data", "digits", "--model", "logistic", "--epochs", 4, "--epsilon", 6, "--out", run)
    before = sorted((p.name, p.read_bytes()) for p in run.iterdir())
    assert json.loads(assay("audit", run, "--releases", 2000, "--json")[1])["verdict"] == "consistent"
    assert sorted((p.name, p.read_bytes()) for p in run.iterdir()) == before
    assert assay("attack", run)[0] == 1


@pytest.mark.parametrize(
    "words",
    [
        "train --data digits --model logistic --epochs 1 --batch-size 256 --delta 1e-5",
        "federate --data digits --model logistic --clients 10 --per-round 2 --rounds 3 --delta 1e-3",
    ],
)
def test_a_run_that_its_ceiling_ended_before_the_first_step_is_not_audited(assay, tmp_path, words):
    run = tmp_path / "run"
    assert assay(*words.split(), "--noise-multiplier", 0.8, "--epsilon", 0.001, "--out", run)[0] == 3
    record = json.loads(assay("show", run, "--json")[1])
    assert (record["steps"], record["epsilon"]["verified"]) == (0, 0)
    for way in ((), ("--canaries", 20), ("--canaries", 20, "--black-box"), ("--worlds", 4)):
        code, out, err = assay("audit", run, *way)
        assert (code, out) == (2, "")
        assert "there is nothing to audit" in err
    assert json.loads(assay("show", run, "--json")[1]) == record


def test_bad_usage_is_told(assay, tmp_path):
    for arguments in (
        ("audit",),
        ("audit", tmp_path, "--method", "dpsgd"),
        ("audit", tmp_path),
        ("audit", "--method", "nonesuch"),
        ("audit", "--method", "dpsgd", "--epsilon", 1, "--noise-multiplier", 1),
        ("audit", "--method", "dpsgd", "--canaries", 10),
        ("audit", "--method", "dpsgd", "--worlds", 10),
        ("audit", "--method", "dpsgd", "--black-box"),
        ("audit", "--method", "dpsgd", "--confidence", 1),
        ("audit", tmp_path, "--worlds", 4, "--confidence", -0.5),
        ("audit", "--all", "--method", "dpsgd"),
        ("audit", "--method", "dpsgd", "--releases", 5),
    ):
        code, out, err = assay(*arguments)
        assert code == 2
        assert out == ""
        assert "is not accepted" in err


def test_the_table_of_all_methods_refutes_what_is_wrong_and_nothing_sound(assay):
    _, out, _ = assay("audit", "--all", "--epsilon", 2, "--epochs", 5, "--releases", 1000, "--seed", 5, "--json")
    rows = json.loads(out)["methods"]
    refuted = {(row["method"], row["form"]) for row in rows if row["verdict"] == "claim-refuted"}
    assert refuted == {
        ("gredp", ""),
        ("gredp", "noise form real"),
        ("spectral", "noise form real"),
        ("discrete", "micro batch 4"),
        ("lssgd", ""),  # as the authors' code runs it
        ("lssgd", "clip assumed:1.0"),
        ("afrrs", ""),
        ("afrrs", "objective record"),
        ("fedags", "local noise"),
        ("fedsnlc", "local noise"),
    }
    assert {row["verdict"] for row in rows if row["variant"] == "sound"} == {"consistent"}
    assert "bug" not in {row["verdict"] for row in rows}


def test_attack_on_a_run(assay, tmp_path):
    run = tmp_path / "run"
    train = ("train", "--data", "digits", "--model", "logistic", "--epochs", 2, "--epsilon", 3, "--seed", 0)
    assert assay(*train, "--out", run)[0] == 0
    code, out, _ = assay("attack", run, "--json")
    assert code == 0
    found = {result["attack"]: result for result in json.loads(out)["attacks"]}
    assert {"confidence", "loss", "entropy", "modified-entropy", "white-box"} <= set(found)
    for result in found.values():
        assert result["auc"]["low"] < 0.6, "a private logistic regression gives hardly anything away"
    code, out, err = assay("attack", run, "--attack", "loss", "--records", 100)
    assert code == 0, err
    assert "loss" in out
    assert assay("attack", run, "--attack", "guess")[0] == 2
