"""`assay federate` as a user types it: to the end, after kill -9, and refused where it must be."""

import json
import signal
import time

import pytest

RUN = (
    "federate",
    "--data",
    "digits",
    "--model",
    "logistic",
    "--clients",
    12,
    "--per-round",
    4,
    "--delta",
    1e-2,
    "--lr",
    0.5,
    "--batch-size",
    16,
)


def read(path):
    return json.loads((path / "record.json").read_text())


def test_a_run_and_its_files(assay, tmp_path):
    out = tmp_path / "f"
    code, text, progress = assay(
        *RUN,
        "--rounds",
        20,
        "--method",
        "fedags",
        "--epsilon",
        8,
        "--partition",
        "dirichlet:1",
        "--show-partition",
        "--out",
        out,
    )
    assert code == 0
    assert "test accuracy" in text
    assert "ε verified" in text
    assert progress.count("\n") == 20
    record = read(out)
    assert record["kind"] == "federated"
    assert record["unit"] == "one client"
    assert 7.9 <= record["epsilon"]["verified"] <= 8
    assert record["epsilon"]["adjacency"] == "add-or-remove-one"
    assert record["sampling"] == {"kind": "poisson", "rate": 4 / 12, "expected_batch_size": 4}
    counts = record["federated"]["partition_counts"]
    assert len(counts) == 12
    assert sum(map(sum, counts)) == record["records"] == 1437
    assert (out / "partition.png").read_bytes().startswith(b"\x89PNG")
    sizes = [row["bytes_up"] for row in record["history"]]
    assert sizes == sorted(sizes, reverse=True), "fewer coordinates are sent round by round"
    assert sizes[-1] < sizes[0] / 5
    code, text, _ = assay("show", out)
    assert code == 0
    assert text.startswith("# Privacy statement: fedags on digits, federated")
    assert "unit of privacy: one client" in text
    code, out_text, _ = assay("show", out, "--json")
    assert json.loads(out_text) == record
    code, _, err = assay(*RUN, "--rounds", 2, "--epsilon", 8, "--out", out)
    assert code == 2
    assert "--force" in err
    code, text, _ = assay("audit", out, "--releases", 300, "--seed", 0, "--json")
    assert code == 0
    assert json.loads(text)["verdict"] == "consistent"
    assert read(out)["epsilon"]["audited"] == json.loads(text)["audited"] <= 8
    assert json.loads(text)["sentence"] in assay("show", out)[1]


def test_it_learns(assay, tmp_path):
    code, text, _ = assay(
        *RUN, "--rounds", 15, "--noise-multiplier", 0.1, "--seed", 1, "--out", tmp_path / "f", "--json"
    )
    assert code == 0
    assert json.loads(text)["result"]["test_accuracy"] > 0.8


@pytest.mark.parametrize("noise", ["local", "distributed"])
def test_noise_at_the_clients(assay, tmp_path, noise):
    out = tmp_path / "f"
    code, _, err = assay(*RUN, "--rounds", 6, "--noise", noise, "--epsilon", 5, "--secure-rng", "--out", out)
    assert code == 0, err
    record = read(out)
    assert record["epsilon"]["verified"] <= 5
    assert record["epsilon"]["adjacency"] == "replace-one"
    assert record["federated"]["turns"] == {"most": 2, "least": 2, "planned": 2}
    assert record["federated"]["bytes_are"] == "counted"
    assert len(list((out / "clients").iterdir())) == 12
    assert max(record["federated"]["clients_epsilon"]) <= 5
    assert "cryptographically secure" in (out / "statement.md").read_text()


def test_records_as_the_unit(assay, tmp_path):
    out = tmp_path / "f"
    code, _, err = assay(
        "federate", "--data", "digits", "--model", "logistic", "--clients", 3, "--rounds", 4, "--unit", "record",
        "--partition", "dirichlet:2", "--epsilon", 3, "--delta", 1e-4, "--batch-size", 64, "--lr", 0.5, "--out", out,
    )  # fmt: skip
    assert code == 0, err
    record = read(out)
    assert record["unit"].startswith("one record")
    assert record["epsilon"]["adjacency"] == "add-or-remove-one"
    each = record["federated"]["clients_epsilon"]
    assert len(each) == 3
    assert max(each) == pytest.approx(record["epsilon"]["verified"], rel=0.01)
    assert 2.9 <= max(each) <= 3
    assert record["result"]["test_accuracy"] > 0.3
    for path in (out / "clients").iterdir():  # every client's own ledger says the same
        entries = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        last = {e["segment"]: e["steps"] for e in entries}
        steps = json.loads((out / "run.json").read_text())["plan"]["silo"]["steps"]
        assert sum(last.values()) == 4 * steps


def test_published_is_infinite_and_says_why(assay, tmp_path):
    out = tmp_path / "f"
    code, _, err = assay(
        *RUN, "--rounds", 2, "--method", "fedags", "--variant", "published", "--epsilon", 0.5, "--out", out
    )
    assert code == 0
    assert "without noise" in err
    record = read(out)
    assert record["epsilon"]["verified"] == "inf"
    assert record["epsilon"]["target_is"] == "claimed"
    assert 0.495 <= record["epsilon"]["claimed"] <= 0.5
    assert "No privacy" in (out / "statement.md").read_text()


def test_methods_are_listed_with_their_units(assay):
    code, text, _ = assay("methods")
    assert code == 0
    for name in ("fedavg", "cpsgd", "fedags", "fedsnlc", "client, record"):
        assert name in text
    code, text, _ = assay("methods", "cpsgd")
    assert "--option levels=17" in text
    assert "noise: distributed" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--engine", "cloud"), "engine"),
        (("--partition", "dirichlet"), "partition"),
        (("--unit", "person"), "unit"),
        (("--noise", "none"), "noise"),
        (("--method", "dpsgd"), "method"),
        (("--method", "cpsgd", "--noise", "central"), "noise"),
        (("--method", "cpsgd", "--unit", "record"), "unit"),
        (("--per-round", 13), "per_round"),
        (("--min-answers", 2), "min_answers"),
        (("--clients", 100_000), "clients"),
        (("--epsilon", 0), "epsilon"),
        (("--option", "levels=5"), "levels"),
        (("--lr", 0), "lr"),
        (("--seed", 1, "--secure-rng"), "seed"),
        (("--local-epochs", 0), "local_epochs"),
    ],
)
def test_refusals_come_before_anything_is_written(assay, tmp_path, arguments, said):
    code, _, err = assay(*RUN, "--rounds", 2, *arguments, "--out", tmp_path / "f")
    assert code == 2
    assert said in err
    assert not (tmp_path / "f").exists()


def wait_for(condition, child, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


def test_kill_9_and_resume(assay, process, tmp_path):
    command = (*RUN, "--rounds", 60, "--epsilon", 8, "--noise", "local", "--seed", 3)
    cut = process(*command, "--out", "cut")
    wait_for((tmp_path / "cut/checkpoint.safetensors").exists, cut)
    cut.send_signal(signal.SIGKILL)
    cut.wait()
    assert (tmp_path / "cut/UNFINISHED.txt").exists()
    ledger = (tmp_path / "cut/ledger.jsonl").read_text()
    _, shown, _ = assay("show", tmp_path / "cut")
    assert "of 60 planned rounds are charged" in shown
    assert (tmp_path / "cut/ledger.jsonl").read_text().startswith(ledger.rpartition("\n")[0])
    code, out, err = assay("resume", tmp_path / "cut", "--json")
    assert code == 0, err
    assert assay(*command, "--out", tmp_path / "whole")[0] == 0
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    a, b = read(tmp_path / "cut"), read(tmp_path / "whole")
    assert json.loads(out) == a
    for key in ("epsilon", "history", "steps", "steps_charged", "federated"):
        assert a[key] == b[key], key
