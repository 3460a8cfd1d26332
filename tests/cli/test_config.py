"""`assay train --config`, `--save-config` and `--quiet`."""

import json
import tomllib

import pytest

FILE = """
data = "digits"
model = "logistic"
epsilon = 3
epochs = 0.2
batch-size = 256
sampling = "poisson"
seed = 4
exact_noise = false
denoise = ["lowpass:rho=0.25"]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return path


def record(path):
    return json.loads((path / "record.json").read_text())


def test_a_file_says_what_could_be_typed_and_what_is_typed_wins(assay, tmp_path, file):
    saved = tmp_path / "saved.toml"
    code, out, err = assay(
        "train", "--config", file, "--epsilon", 2, "--out", tmp_path / "a", "--save-config", saved, "--quiet"
    )
    assert (code, out) == (0, ""), err
    assert "step" not in err
    first = record(tmp_path / "a")
    assert (first["epsilon"]["target"], first["seed"], first["denoise"]) == (2.0, 4, ["lowpass:rho=0.25"])
    written = tomllib.loads(saved.read_text())
    assert written.pop("epsilon") == 2
    asked = {name.replace("-", "_"): value for name, value in tomllib.loads(FILE).items()}
    assert written == {name: value for name, value in asked.items() if name != "epsilon"}
    assert assay("train", "--config", saved, "--out", tmp_path / "b")[0] == 0
    again = record(tmp_path / "b")
    assert again["epsilon"] == first["epsilon"]
    assert (tmp_path / "b/model.safetensors").read_bytes() == (tmp_path / "a/model.safetensors").read_bytes()
    code, _, err = assay("train", "--config", file, "--out", tmp_path / "c", "--save-config", saved)
    assert code == 2
    assert "the name of a new file, or --force" in err
    assert not (tmp_path / "c").exists()


def test_an_option_of_a_file_goes_before_a_preset_as_a_typed_one_does(assay, tmp_path, file):
    file.write_text('data = "digits"\npreset = "best"\nepochs = 2\nepsilon = 2.5\n')
    code, out, err = assay("train", "--config", file, "--out", tmp_path / "a", "--dry-run", "--json")
    assert code == 0, err
    assert 2.4 < json.loads(out)["verified"] <= 2.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epsylon = 3\n", "epsylon"),
        ("force = true\n", "an option of assay train"),
        ("epsilon = \n", "a TOML file"),
        ('epsilon = "much"\n', "much"),
        ("[train]\nepsilon = 3\n", "an option of assay train"),
        ("data = {a = 1}\n", "a text, a number"),
    ],
)
def test_what_a_file_cannot_say_is_refused_before_training(assay, tmp_path, file, text, said):
    file.write_text(text)
    code, _, err = assay("train", "--config", file, "--out", tmp_path / "a")
    assert code == 2
    assert said in err
    assert not (tmp_path / "a").exists()


def test_shells_can_complete(assay):
    code, out, _ = assay("--help")
    assert code == 0
    assert "--install-completion" in out
