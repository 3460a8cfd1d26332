"""A federated run gives the same model to the bit, whoever carries its rounds. Slow: Ray takes 10 to 30 s to start."""

import json

import pytest

pytest.importorskip("flwr", reason="needs Flower: the extra federated")
pytest.importorskip("ray", reason="needs Ray: the extra federated")

RUN = (
    *("federate", "--data", "digits", "--model", "logistic", "--clients", "6", "--per-round", "3", "--rounds", "3"),
    *("--epsilon", "8", "--delta", "1e-2", "--lr", "0.5", "--batch-size", "16", "--seed", "7"),
)


def test_simulation_ends_where_a_serial_run_ends(tmp_path):
    from typer.testing import CliRunner

    from assay.cli import app

    found = {}
    for engine in ("serial", "simulation"):
        done = CliRunner().invoke(app, [*RUN, "--engine", engine, "--out", str(tmp_path / engine)])
        assert done.exit_code == 0, done.output
        record = json.loads((tmp_path / engine / "record.json").read_text())
        found[engine] = (
            (tmp_path / engine / "model.safetensors").read_bytes(),
            record["history"],
            record["epsilon"],
            record["federated"],
        )
    assert found["serial"] == found["simulation"]
    assert (tmp_path / "simulation" / "flower.log").exists()
