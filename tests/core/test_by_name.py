"""Every command as one Python call, end to end; and a command line that starts without torch."""

import inspect
import subprocess
import sys

import pytest

import assay
from assay.cli.passing import options
from assay.errors import ConfigError

SMALL = {"data": "digits", "model": "linear-head", "epochs": 1, "batch_size": 400, "clip": "0.1"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("by_name") / "run"
    assay.train(assay.Settings(**SMALL, epsilon=3.0, seed=1), out=out)
    return out


def test_a_run_by_names_has_its_statement_and_its_record(run):
    assert assay.runs.record_of(run)["epsilon"]["verified"] <= 3
    assert assay.runs.statement_of(run).startswith("# Privacy statement")


def test_a_preset_gives_objects_that_fit_takes(tmp_path):
    settings = assay.presets.settings("digits", epsilon=3, epochs=1, batch_size=200, seed=0)
    assert settings.training.optimizer.lr == settings.lr
    assert settings.plan(records=1000).batch_size == 200
    result = assay.train(settings, out=tmp_path / "run")
    tuning = result.record["tuning"]
    assert tuning["from"] == "preset best"
    assert tuning["changed"] == ["batch_size", "epochs"]


def test_a_table_needs_no_model(tmp_path):
    rows = "".join(f"{age},{'yes' if age > 50 else 'no'}\n" for age in range(20, 90) for _ in range(8))
    (tmp_path / "stays.csv").write_text(f"age,back\n{rows}")
    table = {"data": str(tmp_path / "stays.csv"), "target": "back", "schema": "auto"}
    result = assay.train(assay.Settings(**table, epsilon=8.0, epochs=1, seed=0))
    assert result.record["model"] == "linear-head"


def test_a_choice_is_charged_and_recorded(tmp_path):
    shared = assay.Settings(**SMALL)
    result = assay.choose(shared, {"lr": [0.5, 2]}, out=tmp_path / "chosen", epsilon=3, trials=4, seed=1)
    assert result.record["tuning"]["charged"]
    assert result.record["tuning"]["chosen"] in ({"lr": "0.5"}, {"lr": "2"})
    assert result.record["epsilon"]["verified"] <= 3
    with pytest.raises(ConfigError, match="does not decide ε"):
        assay.choose(shared, {"epochs": [1, 2]}, out=tmp_path / "other", epsilon=3)
    assert not (tmp_path / "other").exists()


def test_a_run_is_audited_and_the_record_takes_it_up(run):
    found = assay.audit.of_run(run, releases=400, seed=0)
    assert found.epsilon <= found.facts["verified"]
    assert assay.runs.record_of(run)["epsilon"]["audited"] == found.facts["audited"]


def test_a_method_is_audited_without_a_run():
    found = assay.audit.of_method("dpsgd", epochs=1, releases=400, seed=0)
    assert found.verdict is assay.audit.Verdict.CONSISTENT


def test_a_run_is_attacked(run):
    (found,) = assay.attacks.of_run(run, ["loss"], records=100)
    assert 0 <= found.auc.value <= 1


def test_clients_are_federated(tmp_path):
    settings = assay.federated.FederatedSettings(
        data="digits", model="linear-head", clients=10, rounds=1, epsilon=3.0, seed=0
    )
    assert assay.federated.federate(settings, out=tmp_path / "run").record["epsilon"]["verified"] <= 3


@pytest.mark.parametrize(
    ("command", "settings", "own"),
    [
        ("train", assay.Settings, {"out", "force", "dry_run", "json", "preset", "config", "save_config", "quiet"}),
        ("federate", assay.federated.FederatedSettings, {"out", "force", "dry_run", "json"}),
    ],
)
def test_settings_have_the_names_and_the_defaults_of_the_command(command, settings, own):
    typed = {name: parameter.default for name, parameter in options(command).items() if name not in own}
    assert typed.keys() == settings.options().keys()
    for name, default in typed.items():
        assert getattr(settings(), name) == default, name


def test_every_call_says_what_it_takes():
    calls = (assay.train, assay.choose, assay.audit.of_run, assay.audit.of_method, assay.attacks.of_run)
    calls += (assay.studies.compare, assay.studies.reproduce, assay.report.write, assay.federated.federate)
    for call in (*calls, assay.presets.settings, assay.runs.statement_of, assay.runs.record_of):
        said = inspect.getdoc(call)
        assert all(part in said for part in ("Args:", "Raises:")), call


WITHOUT_TORCH = """
import sys
from assay.cli import main
helped = (["--help"], ["train", "--help"], ["tune", "--help"], ["epsilon", "--help"])
for words in (*helped, ["train", "--nonsense"], ["epsilon"]):
    sys.argv = ["assay", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code == (0 if "--help" in words else 2), (words, end.code)
heavy = {"torch", "numpy", "scipy", "dp_accounting", "sklearn", "matplotlib"} & sys.modules.keys()
assert not heavy, heavy
"""


def test_help_and_usage_errors_start_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
