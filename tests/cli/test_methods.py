"""The centralised methods from the command line."""

import json

import pytest

DIGITS = ["--data", "digits", "--model", "mlp", "--epochs", "1", "--batch-size", "128", "--seed", "0"]
GREDP = (
    "--method gredp --variant published --noise-multiplier 2.172 --records 60000 --batch-size 500 --epochs 30"
    " --groups 5 --json"
)


def test_epsilon_of_gredp_as_published(assay):
    code, out, _ = assay("epsilon", *GREDP.split())
    facts = json.loads(out)
    assert code == 0
    assert facts["claimed"] == pytest.approx(1.00, rel=0.01)
    assert facts["verified"] == pytest.approx(7.18, rel=0.01)
    assert facts["variant"] == "published"


def test_epsilon_of_gredp_with_real_valued_noise_is_inf(assay):
    _, out, _ = assay("epsilon", *GREDP.split(), "--noise-form", "real")
    facts = json.loads(out)
    assert facts["verified"] == "inf"
    assert facts["claimed"] == pytest.approx(1.00, rel=0.01)


def test_calibrate_published_meets_the_claim_and_sound_the_truth(assay):
    common = [
        "--method",
        "gredp",
        "--records",
        60000,
        "--batch-size",
        500,
        "--epochs",
        30,
        "--groups",
        5,
        "--epsilon",
        1,
        "--json",
    ]
    published = json.loads(assay("calibrate", *common, "--variant", "published")[1])
    sound = json.loads(assay("calibrate", *common)[1])
    assert 0.999 <= published["claimed"] <= 1
    assert published["verified"] == pytest.approx(7.2, rel=0.02)
    assert 0.999 <= sound["verified"] <= 1
    assert sound["claimed"] < 0.5


@pytest.mark.parametrize(
    "arguments",
    [
        ["--method", "gredp", "--denoise", "laplacian:sigma=1", "--optimizer", "adam", "--circulant", "4"],
        ["--method", "spectral", "--variant", "published", "--circulant", "8"],
        ["--method", "gredp", "--variant", "published", "--circulant", "8"],
        ["--method", "discrete", "--micro-batch", "2", "--option", "tau=0.01"],
        ["--method", "lssgd", "--option", "sigma=2", "--option", "over=tensor"],
        ["--method", "lsadam"],
        ["--denoise", "bayes:nu=0.01,emit=mean"],
        ["--clip", "per-layer:1.0", "--encode", "spectral:rho=0.5"],
        ["--encode", "sign:tau=0.001", "--denoise", "bayes"],
    ],
    ids=" ".join,
)
def test_methods_and_parts_train_from_the_command_line(assay, tmp_path, arguments):
    code, out, err = assay("train", *DIGITS, "--epsilon", 3, *arguments, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert record["epsilon"]["target"] == 3
    if record["variant"] == "published":
        assert record["epsilon"]["target_is"] == "claimed"
        assert record["epsilon"]["claimed"] <= 3
        assert (record["epsilon"]["verified"] > 3) == (record["method"] == "gredp"), "the other holds what it claims"
    else:
        assert 0.95 * 3 <= record["epsilon"]["verified"] <= 3
    shown = assay("show", tmp_path / "run")[1]
    assert record["method"] in shown


def test_a_killed_run_of_a_method_with_options_is_resumed_with_them(assay, tmp_path, monkeypatch):
    from assay.runs.run import Run

    def crash(self, at_end):
        if self.course.taken == 15:
            raise RuntimeError("the machine went down")

    arguments = [
        "train",
        *DIGITS,
        "--epochs",
        "2",
        "--epsilon",
        3,
        "--method",
        "gredp",
        "--circulant",
        "4",
        "--denoise",
        "laplacian",
        "--records",
        "1000",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_tell", crash)
        with pytest.raises(RuntimeError):
            assay(*arguments, "--out", tmp_path / "cut")
    assert assay("resume", tmp_path / "cut")[0] == 0
    assert assay(*arguments, "--out", tmp_path / "whole")[0] == 0
    cut, whole = (json.loads((tmp_path / name / "record.json").read_text()) for name in ("cut", "whole"))
    for key in ("options", "denoise", "records", "result", "epsilon", "steps"):
        assert cut[key] == whole[key], key


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--method", "gredp", "--clip", "flat:1"], ["clip", "flat:1.0", "per-layer:C with gredp"]),
        (["--method", "dpsgd", "--variant", "published"], ["variant", "published", "sound for dpsgd"]),
        (["--method", "gredp", "--groups", "7"], ["groups", "7", "the model has 2 layers"]),
        (["--method", "gredp", "--noise-form", "real"], ["noise_form", "real", "published"]),
        (["--method", "gredp", "--variant", "published", "--noise-multiplier", "1"], ["epsilon", "no ceiling holds"]),
        (["--option", "sigma"], ["option", "sigma", "key=value"]),
        (["--method", "gredp", "--variant", "sound", "--option", "variant=published"], ["option", "variant", "once"]),
        (["--denoise", "laplacian", "--denoise", "bayes"], ["denoise", "before"]),
        (["--circulant", "0"], ["block_size", "0"]),
        (["--records", "5000"], ["records", "5000", "1437"]),
    ],
)
def test_bad_combinations_are_told_before_anything_is_written(assay, tmp_path, arguments, told):
    code, _, err = assay("train", *DIGITS, "--epsilon", 3, *arguments, "--out", tmp_path / "run")
    assert code == 2, err
    assert all(part in err for part in told), err
    assert not (tmp_path / "run").exists()


def test_methods_says_which_published_forms_are_sound_and_why_not(assay):
    out = " ".join(assay("methods")[1].split())
    for name in ("gredp", "spectral", "discrete", "lssgd", "lsadam", "dpsgd", "dpadam"):
        assert name in out
    one = assay("methods", "gredp")[1]
    assert "not sound" in one
    assert "--option noise_form=complex" in one
