"""What makes private models better, as a user types it: features, augmentation, averages, presets, tuning, transfer."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from assay import fit, presets
from assay.models import build
from assay.runs.statement import initial_weights
from assay.training.inputs import load, of_run

DIGITS = ("train", "--data", "digits", "--epochs", 2)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_run_on_features_says_so_and_resumes_on_them(assay, tmp_path):
    out = tmp_path / "run"
    words = (
        "--data",
        "digits",
        "--features",
        "scatter:J=1,L=4",
        "--model",
        "scatter-linear",
        "--epochs",
        2,
        "--clip",
        0.1,
    )
    code, _, err = assay("train", *words, "--lr", 4, "--seed", 1, "--out", out)
    assert code == 0, err
    record = json.loads((out / "record.json").read_text())
    assert record["features"] == "scatter:J=1,L=4"
    statement = (out / "statement.md").read_text()
    assert "Features: scattering transform with 1 scales and 4 angles" in statement
    assert "They cost no privacy: each record's features depend on that record" in statement
    weights = json.loads((out / "run.json").read_text())["names"]
    assert weights["features"] == "scatter:J=1,L=4"
    assert record["result"]["test_accuracy"] > 0.5


def test_a_cache_that_cannot_be_used_is_named_and_how_to_use_another(assay, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    words = ("--features", "scatter:J=1,L=4", "--model", "scatter-linear")
    code, _, err = assay(*DIGITS, *words, "--out", tmp_path / "run")
    assert code == 1
    assert "error: features cannot be kept in /proc/nowhere/assay/features" in err
    assert "Set XDG_CACHE_HOME to a folder that can be written to" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "scatter-linear"), "model = 'scatter-linear' is not accepted: --features scatter beside it"),
        (("--model", "scatter-cnn"), "model = 'scatter-cnn' is not accepted: --features scatter beside it"),
        (
            ("--model", "scatter-linear", "--features", "efficientnet-lite0"),
            "one linear layer on anything else is linear-head",
        ),
        (
            ("--model", "scatter-cnn", "--features", "deskew+scatter:J=1", "--augment", "shift:pixels=1"),
            "augment = 'shift:pixels=1' is not accepted: no features beside it: views are made of pictures",
        ),
        (("--augment", "shift:views=100000000"), "augment views = 100000000 is not accepted: a whole number from 1 to"),
        (("--augment", "shift:pixels=100"), "a shift by 4 pixels at most, half the side of these pictures of 8×8"),
    ],
)
def test_what_does_not_go_with_these_records_is_refused_and_nothing_written(assay, tmp_path, words, said):
    for more in ((), ("--dry-run",)):
        code, _, err = assay(*DIGITS, *words, *more, "--out", tmp_path / "run")
        assert code == 2
        assert said in err
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "cache").exists()


def test_a_dry_run_computes_no_features_and_still_checks_them(assay, tmp_path, monkeypatch):
    def refused(*_):
        raise AssertionError("features of all records")

    monkeypatch.setattr("assay.features.cache.cached", refused)
    words = ("train", "--data", "digits", "--epochs", 2, "--dry-run", "--out", tmp_path / "run")
    plain = json.loads(assay(*words, "--validation", "--json")[1])
    features = (*words, "--features", "scatter:J=1,L=4")
    code, out, err = assay(*features, "--model", "scatter-linear", "--validation", "--json")
    assert code == 0, err
    assert json.loads(out) == plain, "the plan does not depend on them"
    code, _, err = assay(*features, "--model", "model3")
    assert code == 2
    assert "model3 takes images" in err
    assert assay(*words, "--features", "scatter:J=9")[0] == 2


def test_a_preset_fills_in_what_was_not_typed(assay, tmp_path):
    code, out, err = assay(
        "train", "--data", "digits", "--preset", "best", "--epochs", 3, "--seed", 0, "--out", tmp_path / "run"
    )
    assert code == 0, err
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert (record["features"], record["model"]) == ("scatter:J=1", "scatter-linear")
    assert record["clip"] == "flat:0.1"
    assert record["sampling"]["expected_batch_size"] == 512
    assert record["history"][-1]["epoch"] == pytest.approx(3, abs=0.2)  # typed, and so before the preset's own
    assert record["tuning"]["from"] == "preset best"
    assert record["tuning"]["charged"] is False
    assert record["epsilon"]["verified"] <= 1
    assert record["tuning"]["changed"] == ["epochs"]
    assert (
        "Settings: preset best, with epochs changed; the preset itself: " in (tmp_path / "run/statement.md").read_text()
    )
    assert "settings       preset best, with epochs changed; the preset itself: " in out


def test_the_same_value_written_differently_is_no_change_to_a_preset(assay, tmp_path):
    words = ("train", "--data", "digits", "--preset", "best", "--epochs", 2, "--model", "scatter-linear", "--seed", 0)
    code, _, err = assay(
        *words,
        "--features",
        "scatter:J=1,L=8",
        "--clip",
        0.1,
        "--batch-size",
        512.0,
        "--lr",
        3,
        "--out",
        tmp_path / "run",
    )
    assert code == 0, err
    assert json.loads((tmp_path / "run/record.json").read_text())["tuning"]["changed"] == ["epochs", "lr"]


@pytest.mark.parametrize(
    ("words", "value", "option"),
    [
        (("--optimizer", "adam"), "momentum = 0.9", "--momentum"),
        (("--method", "gredp"), "clip = 'flat:0.1'", "--clip"),
        (("--records", 400), "batch_size = 512", "--batch-size"),
    ],
)
def test_a_value_that_a_preset_filled_in_is_refused_as_the_presets(assay, tmp_path, words, value, option):
    code, _, err = assay("train", "--data", "digits", "--preset", "best", *words, "--out", tmp_path / "run")
    assert code == 2
    assert f"{value} is not accepted" in err
    assert f"the value is that of preset best, and {option} overrides it" in err
    code, _, err = assay("train", "--data", "digits", "--batch-size", 0, "--preset", "best", "--out", tmp_path / "run")
    assert (code, "preset" in err) == (2, False), "that value was typed"


def test_a_preset_by_epsilon_and_refusals(assay, tmp_path):
    epochs = [presets.get("best", "mnist", epsilon).settings["epochs"] for epsilon in (0.5, 1, 2, 3, 8)]
    assert epochs[0] == epochs[1] < epochs[2] == epochs[3] == epochs[4]
    code, _, err = assay("train", "--data", "digits", "--dry-run", "--out", tmp_path / "run", "--preset", "worst")
    assert code == 2
    assert "one of best for digits" in err
    np.savez(tmp_path / "own.npz", x=np.zeros((20, 4), np.float32), y=np.arange(20) % 2)
    code, _, err = assay("train", "--data", tmp_path / "own.npz", "--preset", "best", "--out", tmp_path / "run")
    assert code == 2
    assert "a data set that has presets (adult, cifar10, cifar100, digits, fashion-mnist, imdb, mnist)" in err


def test_every_built_in_data_set_has_presets_that_name_options_which_exist():
    from assay import presets
    from assay.cli.passing import options
    from assay.data.catalog import available

    assert set(presets.available()) == {info.name for info in available()}
    for data in presets.available():
        for name, entry in presets.contents(data).items():
            for level in entry["at"]:
                found = presets.get(name, data, level["epsilon"])
                assert found.settings.keys() <= options("train").keys()
                assert found.on


TUNE = ("tune", "--data", "digits", "--model", "linear-head", "--batch-size", 400, "--epochs", 4, "--clip", 0.1)


def test_tuning_on_the_private_records_is_part_of_epsilon(assay, tmp_path):
    out = tmp_path / "tuned"
    code, said, err = assay(*TUNE, "--try", "lr=0.5,2", "--trials", 4, "--epsilon", 3, "--seed", 1, "--out", out)
    assert code == 0, err
    record = json.loads((out / "record.json").read_text())
    assert 2.97 <= record["epsilon"]["verified"] <= 3
    chosen = record["tuning"]["chosen"]["lr"]
    assert chosen in ("2", "0.5")
    assert f"chosen         lr={chosen}" in said
    assert record["training"]["optimizer"]["lr"] == float(chosen)
    assert record["tuning"]["candidates"] == [{"lr": "0.5"}, {"lr": "2"}]
    assert "scores" not in record["tuning"]
    spec = json.loads((out / "run.json").read_text())
    assert "candidates" in spec["choice"]
    assert "lr" not in spec["training"]["optimizer"], "not the run's, but the first candidate's"
    assert spec["training"]["optimizer"]["momentum"] == 0.9
    assert spec["names"]["model"] == "linear-head"
    assert "chosen" not in spec["names"]["tuning"]
    assert record["tuning"]["charged"] is True
    assert record["records"] < 1437
    assert record["result"]["test_accuracy"] > 0.6
    assert all(entry["test_accuracy"] is None for entry in record["history"])  # no score without noise
    ledger = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    assert ledger[1]["event"]["kind"] == "repeat-and-select"
    statement = (out / "statement.md").read_text()
    assert "one of 2 settings, chosen on a tenth of the training records" in statement
    assert "the choice is part of ε" in statement
    assert ledger[1]["event"]["event"]["events"][-1] == {"kind": "gaussian", "noise_multiplier": 20.0}
    assert record["tuning"]["score_noise"] == 20
    assert "with Gaussian noise of standard deviation 20" in statement
    # records that a model was chosen by are protected like those it was trained on
    assert record["tuning"]["records"] == 1437
    aside = 1437 - record["records"]
    assert f"one of 1437 training records, {aside} of which were not trained on but set aside to choose by" in statement
    assert "Papernot and Steinke 2022" in statement
    assert {entry["epsilon"] for entry in record["history"]} == {record["epsilon"]["verified"]}, "no trial by itself"
    code, _, err = assay(*TUNE, "--try", "lr=1", "--out", out)
    assert code == 2
    assert "a new directory" in err
    for command in ("attack", "audit"):  # who was trained on is not known
        code, _, err = assay(command, out)
        assert code == 2
        assert "a model that assay tune chose" in err


def test_what_a_choice_would_cost_is_known_before(assay, tmp_path):
    words = (*TUNE, "--try", "lr=0.5,2", "--trials", 4, "--epsilon", 3, "--seed", 1, "--out", tmp_path / "tuned")
    code, out, err = assay(*words, "--dry-run")
    assert code == 0, err
    assert "ε of the choice  2.9" in out
    assert "scores           on about 144 records, with noise of 13.9 points" in out
    assert not (tmp_path / "tuned").exists()
    facts = json.loads(assay(*words, "--dry-run", "--json")[1])
    assert 0 < facts["one_trial"] < facts["verified"] <= 3
    code, _, err = assay(*words)
    assert code == 0, err
    assert "scores on about 144 records, with noise of 13.9 points" in err
    record = json.loads((tmp_path / "tuned" / "record.json").read_text())
    assert record["noise_multiplier"] == facts["noise_multiplier"]
    assert record["epsilon"]["verified"] == facts["verified"]


def test_delta_is_held_against_all_records_that_a_choice_protects(assay, tmp_path):
    delta = 1 / 1400  # below one over the number of records that are trained on
    words = (*TUNE, "--try", "lr=2", "--trials", 4, "--epsilon", 3, "--seed", 1, "--delta", delta)
    code, _, err = assay(*words, "--out", tmp_path / "tuned")
    assert code == 0, err
    assert "is not below 1/1437" in " ".join(err.split())
    assert "is not below 1/1437" in (tmp_path / "tuned" / "statement.md").read_text()


def test_a_choice_from_secure_numbers_draws_nothing_from_elsewhere(assay, tmp_path, monkeypatch):
    def elsewhere(*_):
        raise AssertionError("a stream of another source")

    monkeypatch.setattr("assay.randomness.streams.OsSeeded.stream", elsewhere)
    monkeypatch.setattr("assay.training.selection.drawn_trials", lambda *_: 1)
    words = (*TUNE, "--try", "lr=2", "--trials", 3, "--epsilon", 3, "--secure-rng", "--out", tmp_path / "tuned")
    code, _, err = assay(*words)
    assert code == 0, err
    assert (
        "Random numbers: cryptographically secure generator (SHAKE-256)"
        in (tmp_path / "tuned/statement.md").read_text()
    )


def test_every_seed_that_is_taken_makes_seeds_for_all_trials(assay, tmp_path):
    words = (*TUNE, "--try", "lr=0.5,2", "--trials", 4, "--epsilon", 3, "--seed", 2**64 - 1)
    weights = []
    for name in ("one", "two"):
        code, _, err = assay(*words, "--out", tmp_path / name)
        assert code == 0, err
        weights.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_full_batches_of_a_trial_are_all_that_it_trains_on(assay, tmp_path):
    words = ("tune", "--data", "digits", "--model", "linear-head", "--sampling", "full", "--epochs", 4, "--clip", 0.1)
    out = tmp_path / "tuned"
    code, _, err = assay(*words, "--try", "lr=0.5,2", "--trials", 4, "--epsilon", 3, "--seed", 1, "--out", out)
    assert code == 0, err
    record = json.loads((out / "record.json").read_text())
    assert record["records"] < 1437
    assert record["sampling"] == {"kind": "full", "rate": 1.0, "expected_batch_size": record["records"]}
    assert record["steps"] == 4


def test_what_is_released_before_a_trial_is_part_of_its_cost(assay, tmp_path):
    """A mean with hardly any noise would cost more than the whole budget: the selection's price must have it in."""
    words = (*TUNE, "--try", "lr=0.5,2", "--trials", 4, "--epsilon", 3, "--seed", 1)
    out = tmp_path / "tuned"
    code, _, err = assay(*words, "--center", "mean:noise=20", "--out", out)
    assert code == 0, err
    record = json.loads((out / "record.json").read_text())
    assert 2.97 <= record["epsilon"]["verified"] <= 3
    assert record["parts"] == [], "an ε of the mean alone would be too small: it was chosen among several"
    ledger = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    trial = ledger[1]["event"]["event"]["events"]
    assert {"kind": "gaussian", "noise_multiplier": 20.0} in trial[0]["events"][0]["events"]
    assert "input_shift" in load_file(out / "model.safetensors")
    assert "the mean of the inputs" in (out / "statement.md").read_text()
    code, _, err = assay(*words, "--center", "mean:noise=0.5", "--out", tmp_path / "other")
    assert code == 2
    assert "epsilon = 3.0 is not accepted: at least" in err
    assert not (tmp_path / "other").exists()


def test_a_preset_is_tuned_around_and_the_statement_has_both_choices(assay, tmp_path):
    words = ("tune", "--data", "digits", "--preset", "best", "--batch-size", 200, "--epochs", 2)
    digits = load("digits", None, None)
    np.savez(tmp_path / "public.npz", x=digits.test_x.numpy(), y=digits.test_y.numpy())
    for name, more in {"private": ("--trials", 3), "public": ("--public", tmp_path / "public.npz")}.items():
        code, _, err = assay(*words, "--try", "lr=1,2", *more, "--epsilon", 3, "--seed", 1, "--out", tmp_path / name)
        assert code == 0, err
        record = json.loads((tmp_path / name / "record.json").read_text())
        assert record["clip"] == "flat:0.1", "the preset's"
        assert record["tuning"]["from"] == "assay tune"
        assert record["tuning"]["start"]["from"] == "preset best"
        statement = (tmp_path / name / "statement.md").read_text()
        assert statement.index("Settings: preset best") < statement.index(
            "Settings: assay tune; one of 2 settings, chosen on"
        )


def test_every_trial_begins_with_the_model_as_the_factory_made_it(assay, tmp_path, monkeypatch):
    """Trials that went on with what others had trained would not be independent, and the price of the choice too
    low.
    """
    (tmp_path / "one_for_all.py").write_text(
        "import functools\nfrom torch import nn\n"
        "make = functools.cache(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))\n"
    )
    monkeypatch.chdir(tmp_path)
    starts = []

    def watched(network, *given, **more):
        starts.append(network[1].weight.detach().clone())
        return fit(network, *given, **more)

    monkeypatch.setattr("assay.training.tuning.fit", watched)
    words = ("tune", "--data", "digits", "--model", "one_for_all:make", "--batch-size", 400, "--epochs", 1)
    code, _, err = assay(*words, "--try", "lr=0.5,2", "--trials", 4, "--epsilon", 3, "--seed", 1, "--out", "tuned")
    assert code == 0, err
    assert len(starts) > 1
    assert all(torch.equal(start, starts[0]) for start in starts)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--try", "model=linear-head,mixing:make"), "--try model=mixing:make"),
        (("--try", "model=linear-head,narrow:make"), "try = 'model=narrow:make' is not accepted: model = 'Linear'"),
        (("--try", "augment=shift:views=2", "--center", "mean:noise=40", "--device", "cuda:99"), "device = 'cuda:99'"),
        (("--try", "scale-from=50,1e-9", "--ema", 0.99), "try = 'scale-from=1e-9' is not accepted: scale_from"),
    ],
)
def test_a_setting_that_cannot_be_trained_costs_nothing(assay, tmp_path, monkeypatch, words, said):
    (tmp_path / "mixing.py").write_text(
        "from torch import nn\nmake = lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))\n"
    )
    (tmp_path / "narrow.py").write_text("from torch import nn\nmake = lambda: nn.Linear(63, 10)\n")
    monkeypatch.chdir(tmp_path)
    data = ("tune", "--data", "digits", "--batch-size", 400, "--epochs", 1, "--epsilon", 3, "--trials", 3)
    code, _, err = assay(*data, *words, "--out", "tuned")
    assert code == 2, err
    assert said in err
    assert not (tmp_path / "tuned").exists()


def test_a_choice_without_a_trial_says_what_is_spent(assay, tmp_path):
    from assay.randomness.streams import Seeded
    from assay.training.selection import drawn_trials

    seed = next(i for i in range(10_000) if drawn_trials(3, Seeded(i).stream("trials", 0)) == 0)
    out = tmp_path / "tuned"
    code, _, err = assay(*TUNE, "--try", "lr=1", "--trials", 3, "--epsilon", 3, "--seed", seed, "--out", out)
    assert code == 3
    assert "adds its own ε to what is spent" in " ".join(err.split())
    code, said, err = assay("show", out)
    assert code == 0, err
    assert "its budget is spent, nothing was released" in " ".join(said.split())
    assert "ε = 2.9" in said
    assert "assay resume" not in (out / "UNFINISHED.txt").read_text()
    assert assay("resume", out)[0] == 3


def test_tuning_on_public_data_is_free(assay, tmp_path):
    digits = load("digits", None, None)
    x, y = digits.test_x.numpy(), digits.test_y.numpy()
    np.savez(tmp_path / "public.npz", x=x[:280], y=y[:280], x_test=x[280:], y_test=y[280:])
    out = tmp_path / "tuned"
    words = ("tune", "--data", "digits", "--model", "linear-head", "--batch-size", 150, "--epochs", 2, "--clip", 0.1)
    code, said, err = assay(
        *words, "--try", "lr=0.0001,2", "--public", tmp_path / "public.npz", "--epsilon", 3, "--seed", 1, "--out", out
    )
    assert code == 0, err
    record = json.loads((out / "record.json").read_text())
    assert record["epsilon"]["verified"] <= 3
    assert record["epsilon"]["accountant"] == "PLD"
    assert record["training"]["optimizer"]["lr"] == 2
    assert record["tuning"]["charged"] is False
    assert record["tuning"]["candidates"] == [{"lr": "0.0001"}, {"lr": "2"}]
    assert record["tuning"]["chosen"] == {"lr": "2"}
    assert "chosen         lr=2" in said
    low, high = record["tuning"]["scores"]
    assert low < high
    assert f"{low:.2%} on {tmp_path / 'public.npz'}: lr=0.0001" in err
    assert f"{high:.2%} on {tmp_path / 'public.npz'}: lr=2" in err
    assert "nothing of the private records went into the choice" in (out / "statement.md").read_text()


def test_public_data_that_hold_a_private_record_are_refused(assay, tmp_path):
    digits = load("digits", None, None)
    x, y = digits.test_x.numpy(), digits.test_y.numpy()
    inside = np.concatenate([x, digits.train_x[700:701].numpy()]), np.concatenate([y, y[:1]])
    np.savez(tmp_path / "copy.npz", x=inside[0], y=inside[1])
    words = (*TUNE, "--try", "lr=1,2", "--seed", 1, "--out", tmp_path / "tuned", "--public", tmp_path / "copy.npz")
    code, _, err = assay(*words, "--batch-size", 90)
    assert code == 2
    assert "none of the private training records" in err
    assert not (tmp_path / "tuned").exists()


def test_on_public_data_all_that_names_neither_data_nor_budget_may_be_tried(assay, tmp_path):
    digits = load("digits", None, None)
    np.savez(tmp_path / "public.npz", x=digits.test_x.numpy(), y=digits.test_y.numpy())
    words = ("tune", "--data", "digits", "--model", "linear-head", "--clip", 0.1, "--epsilon", 3, "--seed", 1)
    tried = (
        "--try",
        "epochs=1,2",
        "--try",
        "noise-schedule=constant,decay:levels=2,last=0.5",
        "--try",
        "batch-size=90",
    )
    out = tmp_path / "tuned"
    code, said, err = assay(*words, *tried, "--public", tmp_path / "public.npz", "--out", out, "--dry-run")
    assert code == 0, err
    assert "cost nothing" in said
    assert said.count("ε verified  2.9") == 4
    assert not out.exists()
    code, _, err = assay(*words, *tried, "--public", tmp_path / "public.npz", "--out", out)
    assert code == 0, err
    record = json.loads((out / "record.json").read_text())
    assert record["epsilon"]["verified"] <= 3
    assert record["sampling"]["expected_batch_size"] == 90
    assert record["history"][-1]["epoch"] == pytest.approx(2, abs=0.2)
    code, _, err = assay(
        *words, "--method", "gredp", "--option", "groups=2", "--try", "option=groups=1,groups=2", "--public", "adult",
        "--out", tmp_path / "other",
    )  # fmt: skip
    assert code == 2
    assert (
        "try = 'option=groups=1' is not accepted: option = 'groups=1' is not accepted: key=value, each key once" in err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--try", "epochs=1,2"), "does not decide ε"),
        (("--try", "colour=1,2"), "does not decide ε"),
        (("--try", "lr"), "OPTION=VALUE"),
        (("--try", "epochs=1,2"), "augment, circulant, clip, denoise, ema, features"),
        (("--try", "epochs=1,2"), "with --public also batch-size, center, encode, epochs"),
        (("--try", "delta=1e-5,1e-6", "--public", "adult"), "neither data nor budget"),
        (("--try", "shard=true"), "does not decide ε"),
        (("--try", "lr=1,1.0"), "each value once"),
        (("--try", "lr=1,a"), "try = 'lr=a' is not accepted: lr = 'a'"),
        (("--try", "momentum=0.5,2"), "try = 'momentum=2' is not accepted"),
        (("--try", "lr=1", "--records", 300, "--batch-size", 40), "is not accepted: at least 400"),
        (("--try", "lr=1", "--records", 15, "--batch-size", 4), "scores have noise of 20 records"),
        (("--try", "lr=1", "--trials", 1), "from 3 to 500"),
        (("--try", "lr=1", "--seed", 1, "--noise-multiplier", 2), "the noise is found"),
        (("--try", "lr=1", "--public", "digits"), "another data set"),
        (("--try", "lr=1,1e300"), "lr = 1e+300"),
    ],
)
def test_tuning_refuses(assay, tmp_path, words, said):
    code, _, err = assay(*TUNE, *words, "--out", tmp_path / "tuned")
    assert code == 2
    assert said in err
    assert not (tmp_path / "tuned").exists()


def test_fine_tuning_moves_the_last_layers_only(assay, tmp_path):
    words = ("train", "--data", "digits", "--model", "lenet5", "--epochs", 1, "--seed", 0)
    start = tmp_path / "start.safetensors"
    save_file(build("lenet5", input_shape=(1, 8, 8), classes=10).state_dict(), start)
    code, _, err = assay(*words, "--init", start, "--train-layers", "last:1", "--out", tmp_path / "second")
    assert code == 0, err
    before, after = load_file(start), load_file(tmp_path / "second" / "model.safetensors")
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved == {"head.fc3.weight", "head.fc3.bias"}


def test_where_weights_come_from_is_said_and_held_to(assay, tmp_path):
    """Record, statement and terminal name the file; a file of that name with another content is no longer it."""
    start, out = tmp_path / "public.safetensors", tmp_path / "run"
    save_file(build("lenet5", input_shape=(1, 8, 8), classes=7).state_dict(), start)
    content = start.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    words = (*DIGITS, "--model", "lenet5", "--seed", 0)
    code, shown, err = assay(*words, "--init", start, "--train-layers", "last:2", "--out", out)
    assert code == 0, err
    said = {
        "init": str(start),
        "init_sha256": digest,
        "init_anew": ["head.fc3.weight", "head.fc3.bias"],
        "train_layers": "last:2",
    }
    assert said.items() <= json.loads((out / "record.json").read_text()).items()
    assert said.items() <= json.loads((out / "run.json").read_text())["names"].items()
    line = (
        f"{start} (SHA-256 {digest}), taken as public: nothing here shows that they are; "
        "newly initialised: head.fc3.weight, head.fc3.bias; trained: the last 2 layers"
    )
    assert f"- Initial weights: {line}.\n" in (out / "statement.md").read_text()
    assert line in shown
    unfinished = tmp_path / "unfinished"
    shutil.copytree(out, unfinished, ignore=shutil.ignore_patterns("record.json"))
    again = (("attack", out, "--attack", "loss"), ("audit", out, "--canaries", 100), ("resume", unfinished))
    save_file(build("lenet5", input_shape=(1, 8, 8), classes=7).state_dict(), start)
    other = hashlib.sha256(start.read_bytes()).hexdigest()
    for command in again:
        code, _, err = assay(*command)
        assert (code, digest in err, other in err) == (2, True, True)
    start.unlink()
    for command in again:
        code, _, err = assay(*command)
        assert (code, str(start) in err, "No such file" in err) == (2, True, True)
    start.write_bytes(content)
    code, _, err = assay("resume", unfinished)
    assert code == 0, err
    assert (unfinished / "statement.md").read_text() == (out / "statement.md").read_text()


def test_a_statement_says_nothing_of_initial_weights_where_there_is_nothing_to_say():
    assert initial_weights({}) is None  # a record of an earlier version
    assert initial_weights({"init": None, "init_sha256": None, "init_anew": [], "train_layers": "all"}) is None
    assert initial_weights({"init": None, "train_layers": "last:1"}) == "the model's own; trained: the last layer"
    known = "it.pt, taken as public: nothing here shows that they are; trained: all layers"
    assert initial_weights({"init": "it.pt", "train_layers": "all"}) == known  # begun by an earlier version


def test_validation_leaves_the_test_records_alone(assay, tmp_path):
    runs = {}
    for name, words in {"plain": (), "validation": ("--validation",)}.items():
        code, _, err = assay(*DIGITS, "--model", "logistic", *words, "--seed", 0, "--out", tmp_path / name)
        assert code == 0, err
        runs[name] = json.loads((tmp_path / name / "record.json").read_text())
    whole, less = runs["plain"]["records"], runs["validation"]["records"]
    # each of 1437 records is set aside with probability 1/10: the seed of that is fixed
    assert 0.85 * whole < less < 0.95 * whole
    assert "which ε does not cover" in (tmp_path / "validation" / "statement.md").read_text()
    bundle, _ = of_run(json.loads((tmp_path / "validation" / "run.json").read_text()), None, 0, instead="")
    assert (len(bundle.train_x), len(bundle.test_x)) == (less, whole - less)
    everything = load("digits", None, None)
    rows = {tuple(row) for row in bundle.test_x.flatten(1).tolist()}
    assert not rows & {tuple(row) for row in bundle.train_x.flatten(1).tolist()}
    assert rows <= {tuple(row) for row in everything.train_x.flatten(1).tolist()}


def test_what_was_measured_on_validation_records_is_called_so_wherever_it_is_read(assay, tmp_path):
    words = ("--data", "digits", "--model", "logistic", "--epochs", 2, "--validation")
    code, out, err = assay("train", *words, "--seed", 0, "--out", tmp_path / "run")
    assert code == 0, err
    accuracy = json.loads((tmp_path / "run/record.json").read_text())["result"]["test_accuracy"]
    assert f"validation accuracy {accuracy:.2%}" in out
    assert f"validation accuracy {accuracy:.2%}" in err
    statement = (tmp_path / "run/statement.md").read_text()
    assert "Not protected: the validation records. Accuracy and loss are computed from them" in statement
    assert assay("report", tmp_path / "run", "--out", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "validation accuracy" in page
    for text in (out, err, statement, page):
        assert "test accuracy" not in text.lower()
    code, out, err = assay("compare", "--methods", "dpsgd", "--seeds", 1, *words, "--out", tmp_path / "study")
    assert code == 0, err
    assert "validation accuracy (%)" in out
    assert "seed 0: validation accuracy " in err
    assert assay(*DIGITS, "--model", "logistic", "--seed", 0, "--out", tmp_path / "study/plain")[0] == 0
    assert assay("report", tmp_path / "study", "--out", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    for words in (
        "accuracy on",
        "validation records",
        "test records",
        "Validation accuracy while",
        "Test accuracy while",
    ):
        assert words in page


def test_settings_of_another_batch_size(assay, tmp_path):
    """κ = 200/50: 0.9⁴ and lr/(1 - β) times 4, in the record beside what was typed."""
    out = tmp_path / "run"
    code, _, err = assay(
        *("train", "--data", "digits", "--model", "linear-head", "--epochs", 1, "--batch-size", 200, "--lr", 0.1),
        *("--scale-from", 50, "--seed", 0, "--out", out),
    )
    assert code == 0, err
    said = json.loads((out / "record.json").read_text())["training"]
    assert (said["scale_from"], said["optimizer"]["lr"], said["optimizer"]["momentum"]) == (50, 0.1, 0.9)
    assert said["scaled"].pop("ema") is None
    assert said["scaled"] == pytest.approx({"lr": 1.3756, "momentum": 0.6561}, rel=1e-12)
    refused = ("--scale-from", 1e-9, "--ema", 0.99, "--out", tmp_path / "none")
    code, _, err = assay("train", "--data", "digits", "--model", "linear-head", "--dry-run", *refused)
    assert (code, "scale_from" in err) == (2, True)
    for words in (("--scale-from", 1e-300), ("--lr", 1e300)):
        code, _, err = assay("train", "--data", "digits", "--model", "linear-head", *words, "--out", tmp_path / "none")
        assert (code, words[0][2:].replace("-", "_") in err) == (2, True)
        assert not (tmp_path / "none").exists()
