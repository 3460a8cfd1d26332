"""The commands as a user types them."""

import json
import math
import re
import sys

import pytest
import torch

from assay import features

TRAIN = ("train", "--data", "digits", "--model", "logistic", "--epochs", 2, "--batch-size", 128, "--lr", 0.5)


def test_epsilon_of_a_known_run(assay):
    code, out, _ = assay(
        "epsilon",
        "--noise-multiplier",
        12,
        "--records",
        50000,
        "--batch-size",
        128,
        "--steps",
        19531,
        "--delta",
        1e-5,
        "--json",
    )
    facts = json.loads(out)
    assert code == 0
    assert {"claimed", "verified", "delta", "noise_multiplier", "steps", "sampling_rate"} <= set(facts)
    # dp_accounting 0.6 at a discretisation of 1e-5: PLD 0.0912, RDP 0.1018
    assert facts["verified"] == pytest.approx(0.0912, rel=0.01)
    assert facts["claimed"] == pytest.approx(0.1018, rel=0.01)
    assert facts["sampling_rate"] == 128 / 50000


def test_epsilon_by_epochs_and_without_noise(assay):
    _, out, _ = assay(
        "epsilon", "--noise-multiplier", 0, "--records", 1000, "--batch-size", 100, "--epochs", 2, "--json"
    )
    assert json.loads(out)["verified"] == "inf"
    assert json.loads(out)["steps"] == 20


def test_calibrate_finds_the_noise(assay):
    code, out, _ = assay("calibrate", "--records", 60000, "--batch-size", 512, "--epochs", 20, "--epsilon", 1, "--json")
    facts = json.loads(out)
    assert code == 0
    assert 0.999 <= facts["verified"] <= 1
    assert facts["steps"] == 2344


def test_a_released_mean_is_part_of_what_is_calibrated_and_spent(assay):
    run = ("--records", 60000, "--batch-size", 512, "--epochs", 20, "--json")
    plain = json.loads(assay("calibrate", *run, "--epsilon", 1)[1])
    centered = json.loads(assay("calibrate", *run, "--epsilon", 1, "--center", "mean:noise=10")[1])
    assert centered["noise_multiplier"] > plain["noise_multiplier"]
    noise = ("--noise-multiplier", centered["noise_multiplier"])
    spent = json.loads(assay("epsilon", *run, *noise, "--center", "mean:noise=10")[1])
    assert spent["verified"] == centered["verified"] <= 1
    assert json.loads(assay("epsilon", *run, *noise)[1])["verified"] < spent["verified"]


def test_calibrate_in_words(assay):
    code, out, _ = assay(
        "calibrate", "--records", 60000, "--batch-size", 512, "--noise-multiplier", 1.5, "--epsilon", 1
    )
    assert code == 0
    assert "ε verified" in out
    assert "ε claimed" in out
    assert "steps" in out


def test_train_writes_a_run_and_show_reads_it(assay, tmp_path):
    out = tmp_path / "runs/a"
    code, text, progress = assay(*TRAIN, "--epsilon", 2, "--out", out)
    assert code == 0
    assert "test accuracy" in text
    assert str(out / "statement.md") in text
    assert progress.count("\n") == 2, "a line an epoch where there is no terminal"
    assert "ε" in progress
    code, text, _ = assay("show", out)
    assert code == 0
    assert text.startswith("# Privacy statement: dpsgd on digits")
    record = json.loads((out / "record.json").read_text())
    assert record["data"] == "digits"
    assert record["model"] == "logistic"
    assert 1.98 <= record["epsilon"]["verified"] <= 2


def test_train_prints_the_record_as_json(assay, tmp_path):
    code, text, _ = assay(*TRAIN, "--epsilon", 2, "--out", tmp_path / "a", "--json", "--method", "dpadam", "--lr", 0.01)
    assert code == 0
    record = json.loads(text)
    assert record == json.loads((tmp_path / "a/record.json").read_text())
    assert record["method"] == "dpadam"
    assert record["training"]["optimizer"]["name"] == "adam"


def test_the_same_seed_trains_the_same_model(assay, tmp_path):
    for name in "ab":
        assert assay(*TRAIN, "--noise-multiplier", 2, "--seed", 3, "--out", tmp_path / name)[0] == 0
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    assert "Reproducible, not private" in (tmp_path / "a/statement.md").read_text()


def test_the_budget_can_end_a_run_early(assay, tmp_path):
    code, _, err = assay(*TRAIN, "--noise-multiplier", 1, "--epsilon", 1, "--out", tmp_path / "a")
    assert code == 3
    assert "budget" in err
    record = json.loads((tmp_path / "a/record.json").read_text())
    assert record["status"] == "budget-spent"
    assert record["epsilon"]["verified"] <= 1
    code, _, err = assay("resume", tmp_path / "a")
    assert code == 3, "and it cannot be gone on with"


@pytest.mark.parametrize("clip", ["0.3", "per-layer:1", "auto:1", "adaptive:0.5:quantile=0.6"])
@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_every_clipping_rule_trains(assay, tmp_path, clip, sampling):
    code, _, _ = assay(*TRAIN, "--noise-multiplier", 3, "--clip", clip, "--sampling", sampling, "--out", tmp_path / "a")
    assert code == 0


def test_fixed_size_batches_under_replace_one(assay, tmp_path):
    code, _, _ = assay(
        *TRAIN,
        "--noise-multiplier",
        3,
        "--sampling",
        "without-replacement",
        "--adjacency",
        "replace-one",
        "--out",
        tmp_path / "a",
    )
    assert code == 0
    record = json.loads((tmp_path / "a/record.json").read_text())
    assert record["epsilon"]["adjacency"] == "replace-one"
    assert math.isfinite(record["epsilon"]["verified"])


def test_options_that_change_how_but_not_what(assay, tmp_path):
    common = (*TRAIN, "--noise-multiplier", 2, "--seed", 3)
    assert assay(*common, "--out", tmp_path / "a")[0] == 0
    assert assay(*common, "--max-physical-batch", 50, "--out", tmp_path / "b")[0] == 0
    a, b = (json.loads((tmp_path / n / "record.json").read_text()) for n in "ab")
    assert a["epsilon"] == b["epsilon"]
    assert a["result"]["test_loss"] == pytest.approx(b["result"]["test_loss"], rel=1e-4)
    assert (
        assay(
            *TRAIN, "--noise-multiplier", 2, "--secure-rng", "--ema", 0.9, "--micro-batch", 4, "--out", tmp_path / "c"
        )[0]
        == 0
    )


def test_exact_noise_costs_the_same_and_the_statement_covers_the_arithmetic(assay, tmp_path):
    common = (*TRAIN, "--noise-multiplier", 0.5)
    assert assay(*common, "--out", tmp_path / "usual")[0] == 0
    assert assay(*common, "--exact-noise", "--out", tmp_path / "exact")[0] == 0
    usual, exact = (json.loads((tmp_path / n / "record.json").read_text()) for n in ("usual", "exact"))
    assert exact["epsilon"] == usual["epsilon"]
    assert exact["exact"]
    assert not usual["exact"]
    assert exact["result"]["test_accuracy"] > 0.4, "it learns: runs without a seed lie at 0.8 ± 0.05, chance is 0.1"
    assert all(epoch["train_loss"] is None for epoch in exact["history"])
    said = {n: (tmp_path / n / "statement.md").read_text() for n in ("usual", "exact")}
    assert "drawn in floating point" in said["usual"]
    assert "drawn in floating point" not in said["exact"]
    assert "its lowest bits tell nothing more" in said["exact"]
    assert "same bits wherever" in said["exact"]
    for more in (("--seed", 1), ("--micro-batch", 2), ("--precision", "bf16"), ("--clip", "adaptive:1")):
        code, _, err = assay(*common, "--exact-noise", *more, "--out", tmp_path / "no")
        assert code == 2
        assert "exact" in err
        assert not (tmp_path / "no").exists()


def test_patches_become_a_file_that_features_take(assay, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("--count", "4", "--shape", "3,16,16")
    code, text, _ = assay("models", "patches", "--out", "leaves.safetensors", *small)
    assert code == 0
    kind = features.parse(re.search(r"--features (\S+)", text)[1])
    assert (kind.count, kind.weights) == (4, "leaves.safetensors")
    for out, said in (("leaves.safetensors", "not there yet"), ("a,b.safetensors", "without commas")):
        code, _, err = assay("models", "patches", "--out", out, *small)
        assert code == 2
        assert said in err


def test_check_of_a_model(assay):
    code, text, _ = assay("models", "check", "model3", "--shape", "3,32,32")
    assert code == 0
    assert "All run once for the whole batch" in " ".join(text.split())
    code, _, err = assay("models", "check", "model3", "--shape", "3,x")
    assert code == 2
    assert "shape" in err
    code, _, err = assay("models", "check", "tests.cli.test_commands:words")
    assert code == 2
    assert "--words" in err


def words():
    """Counts words; it takes their numbers and no pictures."""
    return torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(12, 2))


def test_lists(assay):
    assert "dpsgd" in assay("methods")[1]
    models = assay("models")[1]
    assert all(
        name in models
        for name in [
            "logistic",
            "mnist-cnn",
            "lenet5",
            "model3",
            "alexnet",
            "resnet20",
            "resnet18",
            "densenet40",
            "mlp",
        ]
    )
    data = assay("data")[1]
    assert all(name in data for name in ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "adult"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("train",), "--out"),
        ((*TRAIN, "--epsilon", -1, "--out", "x"), "epsilon = -1.0 is not accepted"),
        ((*TRAIN, "--delta", 2, "--out", "x"), "delta = 2.0 is not accepted"),
        ((*TRAIN, "--method", "dpsdg", "--out", "x"), "method = 'dpsdg' is not accepted: did you mean 'dpsgd'? one of"),
        ((*TRAIN, "--clip", "hard:1", "--out", "x"), "clip = 'hard:1' is not accepted"),
        ((*TRAIN, "--batch-size", 1e6, "--out", "x"), "at most the number of records, 1437"),
        ((*TRAIN, "--optimizer", "lion", "--out", "x"), "optimizer = 'lion' is not accepted: one of sgd, adam, adamw"),
        ((*TRAIN, "--sampling", "bootstrap", "--out", "x"), "sampling = 'bootstrap' is not accepted"),
        ((*TRAIN, "--device", "abacus", "--out", "x"), "device = 'abacus' is not accepted"),
        ((*TRAIN, "--device", "cuda:99", "--out", "x"), "device = 'cuda:99' is not accepted"),
        ((*TRAIN, "--device", "cuda:99", "--dry-run", "--out", "x"), "device = 'cuda:99' is not accepted"),
        ((*TRAIN, "--variant", "publishd", "--out", "x"), "variant = 'publishd' is not accepted"),
        ((*TRAIN, "--seed", 10**25, "--out", "x"), f"seed = {10**25} is not accepted"),
        ((*TRAIN, "--noise-multiplier", 1e-320, "--out", "x"), "0 for no noise, or 1e-30 and above"),
        ((*TRAIN, "--clip", "flat:1e300", "--out", "x"), "at most 1e+30"),
        (("train", "--data", "digits", "--model", "resnet200", "--out", "x"), "model = 'resnet200' is not accepted"),
        (("train", "--data", "digit", "--out", "x"), "data = 'digit' is not accepted"),
        (("train", "--data", "nowhere.npz", "--out", "x"), "nowhere.npz"),
        (("epsilon", "--noise-multiplier", 1, "--records", 10, "--batch-size", 5), "--steps or --epochs"),
        (("calibrate", "--records", 10, "--epsilon", 1), "exactly one"),
        (("show", "nowhere"), "run = 'nowhere' is not accepted"),
        (("resume", "nowhere"), "run = 'nowhere' is not accepted"),
        (("data", "get", "imagenet"), "imagenet"),
        (("fly",), "fly"),
    ],
)
def test_bad_usage_is_told_and_ends_with_2(assay, tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    code, _, err = assay(*arguments)
    assert code == 2, err
    assert told in err
    assert not (tmp_path / "x").exists(), "nothing is written before the settings are known to be good"


def test_a_missing_data_set_says_how_to_get_it(assay, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, _, err = assay("train", "--data", "cifar100", "--model", "resnet20", "--out", tmp_path / "x")
    assert code == 1
    assert "assay data get cifar100" in err
    assert not (tmp_path / "x").exists()


def test_an_earlier_run_is_not_overwritten_unasked(assay, tmp_path):
    assert assay(*TRAIN, "--noise-multiplier", 2, "--out", tmp_path / "a")[0] == 0
    code, _, err = assay(*TRAIN, "--noise-multiplier", 2, "--out", tmp_path / "a")
    assert code == 2
    assert "--force" in err
    assert assay(*TRAIN, "--noise-multiplier", 2, "--out", tmp_path / "a", "--force")[0] == 0


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))", "BatchNorm1d uses"),
        ("nn.Sequential(nn.Flatten(), nn.Linear(65, 10))", "it failed with RuntimeError: mat1 and mat2"),
        ("nn.Sequential(nn.Flatten(), nn.Linear(64, 3))", "it failed with IndexError: Target"),
        ("1 / 0", "ZeroDivisionError"),
    ],
    ids=["mixes records", "other inputs", "too few outputs", "fails"],
)
def test_a_model_that_cannot_be_trained_is_refused_before_anything_is_written(assay, tmp_path, monkeypatch, body, told):
    (tmp_path / "own.py").write_text(f"from torch import nn\nMADE = lambda: {body}\ndef make():\n    return MADE()\n")
    monkeypatch.chdir(tmp_path)
    if body == "1 / 0":
        (tmp_path / "own.py").write_text(body)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    earlier = tmp_path / "run"
    assert assay(*TRAIN, "--out", earlier)[0] == 0
    before = {path.name: path.read_bytes() for path in earlier.iterdir()}
    code, _, err = assay("train", "--data", "digits", "--model", "own:make", "--out", earlier, "--force")
    monkeypatch.delitem(sys.modules, "own", raising=False)
    assert code == 2
    assert told in " ".join(err.split())
    assert {path.name: path.read_bytes() for path in earlier.iterdir()} == before, (
        "an earlier run is not replaced by nothing"
    )


def test_a_ledger_behind_its_checkpoint_is_refused(assay, tmp_path, monkeypatch):
    """Restored from an old copy, or cut: ε would be that of fewer steps than were taken."""
    from assay.runs.run import Run

    out = tmp_path / "run"

    class CutOffError(Exception):
        """Stands for a kill after the first epoch."""

    def tell(_run, at_end):
        if at_end:
            raise CutOffError

    with monkeypatch.context() as cut:
        cut.setattr(Run, "_tell", tell)
        with pytest.raises(CutOffError):
            assay(*TRAIN, "--out", out)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))  # as on a machine that remembers nothing
    ledger = out / "ledger.jsonl"
    whole = ledger.read_text().splitlines(keepends=True)
    for kept in (whole[:1], whole[:2], None):
        ledger.unlink() if kept is None else ledger.write_text("".join(kept))
        for command in ("show", "resume"):
            code, _, err = assay(command, out)
            assert code == 1
            assert "the ε of this run is not known" in " ".join(err.split())
    ledger.write_text("".join(whole))
    code, _, err = assay("resume", out)
    assert code == 0, err


def test_a_delta_that_is_too_large_is_said_wherever_epsilon_is(assay, tmp_path):
    asked = ("--records", 1000, "--batch-size", 100, "--epochs", 1, "--delta", 0.01)
    for words in (("epsilon", "--noise-multiplier", 2, *asked), ("calibrate", "--epsilon", 1, *asked)):
        code, _, err = assay(*words)
        assert code == 0
        assert "δ = 0.01 is not below 1/1000" in " ".join(err.split())
    code, _, err = assay(*TRAIN, "--delta", 0.01, "--out", tmp_path / "run")
    assert code == 0
    assert "δ = 0.01 is not below 1/1437" in " ".join(err.split())
    assert "**δ is too large.** δ = 0.01 is not below 1/1437" in (tmp_path / "run/statement.md").read_text()
    code, _, err = assay("epsilon", "--noise-multiplier", 2, *asked[:-1], 1e-5)
    assert "note" not in err


def test_a_run_that_the_budget_ended_claims_for_the_steps_it_took(assay, tmp_path):
    assay(*TRAIN, "--epsilon", 3, "--noise-multiplier", 0.9, "--epochs", 20, "--out", tmp_path / "run")
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert record["status"] == "budget-spent"
    # Rényi accounting of as many steps: above the tight bound, and by no more than a fifth
    assert 1 <= record["epsilon"]["claimed"] / record["epsilon"]["verified"] < 1.25


@pytest.mark.parametrize("command", ["train", "compare", "tune", "federate", "audit"])
@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_and_cuts_nothing_off(assay, monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = assay(command, "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    assert "\\[" not in out, "an escape"
    if command == "train":
        for whole in ("decay:levels=4,last=0.5", "banded:bands=4,momentum=0.9", "[default: poisson]"):
            assert whole in out
        assert "best, or scratch" in " ".join(out.split())


def test_the_list_of_commands_has_whole_sentences(assay, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = assay("--help")
    assert "Train a model privately and write its record and its privacy statement." in " ".join(out.split())
    assert "..." not in out.partition("Commands:")[2]


def test_a_value_that_is_no_number_is_named_with_its_option(assay, tmp_path):
    code, _, err = assay(*TRAIN, "--lr", "fast", "--out", tmp_path / "a")
    assert code == 2
    assert "Invalid value for '--lr': 'fast' is not a valid float" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--center", "mean:noise=0.3", "--epsilon", 3), "center = 'mean:noise=0.3' is not accepted: more noise"),
        (("--epochs", 1e18), "epochs = 1e+18 is not accepted: at most"),
        (("--epochs", 1e308), "epochs = 1e+308 is not accepted: at most"),
        (("--clip", "automatic"), "one of adaptive:bound=1.0,quantile=0.5"),
    ],
)
def test_what_is_refused_is_what_was_typed(assay, tmp_path, words, told):
    code, _, err = assay(*TRAIN, *words, "--dry-run", "--out", tmp_path / "a")
    assert code == 2
    assert told in err
