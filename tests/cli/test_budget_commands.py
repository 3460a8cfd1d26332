"""`assay budget` and `assay total`, and the commands that take --budget, on digits."""

import json
import re

import numpy as np
import pytest

TRAIN = ("train", "--data", "digits", "--model", "linear-head", "--epochs", "1", "--epsilon", "1")


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_runs_and_a_refused_third(assay, there):
    code, out, _ = assay("budget", "new", "digits", "--epsilon", "1.7", "--data", "digits", "--operator", "the officer")
    assert code == 0
    assert "all runs on 1437 records together, at most ε = 1.7 at δ = 1e-05 (add-or-remove-one)" in out
    for name in ("one", "two"):
        assert assay(*TRAIN, "--budget", "digits", "--operator", "Ada", "--out", f"runs/{name}")[0] == 0
    code, _, err = assay(*TRAIN, "--budget", "digits", "--out", "runs/three")
    assert code == 3
    assert "does not allow this run: all runs together would spend ε = " in err
    assert "What is left allows a run like this with ε ≤ " in err
    assert not (there / "runs" / "three").exists()
    offered = err.split("like this with ε ≤ ")[1].split()[0]
    less = (*TRAIN[:-1], offered)
    assert assay(*less, "--budget", "digits", "--out", "runs/three", "--dry-run")[0] == 0
    assert assay(*less, "--budget", "digits", "--out", "runs/three")[0] == 0

    code, out, _ = assay("budget", "show", "digits")
    assert code == 0
    rows = [line for line in out.splitlines() if " runs/" in line]
    assert [row.split()[3] for row in rows] == ["runs/one", "runs/two", "runs/three"]
    assert all("Ada" in row and "finished" in row for row in rows[:2])
    facts = json.loads(assay("budget", "show", "digits", "--json")[1])
    assert facts["runs"][-1]["so_far"] == facts["spent"] <= 1.7
    assert [run["so_far"] for run in facts["runs"]] == sorted(run["so_far"] for run in facts["runs"])

    code, out, _ = assay("budget", "verify", "digits", "runs")
    assert code == 0
    assert "3 runs compared" in out
    code, out, _ = assay("total", "runs/one", "runs/two")
    assert code == 0
    assert "together ε ≤ " in out
    found = json.loads(assay("total", "runs/one", "runs/two", "--json")[1])
    assert found["runs"][0]["epsilon"] < found["fixed"] < found["epsilon"]

    lines = (there / "digits.budget" / "budget.jsonl").read_bytes().splitlines(keepends=True)
    (there / "digits.budget" / "budget.jsonl").write_bytes(b"".join(lines[:-2]))
    code, out, _ = assay("budget", "verify", "digits", "runs")
    assert code == 1
    assert "✕" in out


def test_tuning_federating_and_comparing_are_under_the_budget(assay, there):
    assert assay("budget", "new", "b", "--epsilon", "3", "--data", "digits")[0] == 0
    given = ("--data", "digits", "--model", "linear-head", "--budget", "b")
    code, _, err = assay(
        *("tune", "--try", "lr=0.5,1", "--trials", "3", "--epsilon", "1.5", "--epochs", "1", "--out", "tuned"), *given
    )
    assert code in (0, 1, 3), err  # other than 0 where the number of trials came out as none
    facts = json.loads(assay("budget", "show", "b", "--json")[1])
    (tuned,) = facts["runs"]
    assert not tuned["open"]
    assert "a choice among 2 settings" in tuned["what"]

    clients = ("federate", *given, "--clients", "20", "--rounds", "2", "--delta", "1e-3")
    code, _, err = assay(*clients, "--out", "federated")
    assert code == 2
    assert "that of the budget b" in err  # its unit is a client
    code, _, err = assay(*clients, "--unit", "record", "--per-round", "20", "--epsilon", "1", "--out", "federated")
    assert code == 0, err
    record = json.loads((there / "federated" / "record.json").read_text())
    assert record["budget"]["runs"] == 2

    code, _, err = assay(
        *("compare", "--methods", "dpsgd", "--epsilon", "1", "--seeds", "30", "--epochs", "1", "--out", "study"), *given
    )
    assert code == 3
    assert "does not allow" in err
    assert not (there / "study").exists()


def test_the_same_rows_under_another_name_are_the_same_budget(assay, there):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    order = draw.permutation(60)
    np.savez(there / "patients.npz", x=x, y=y)
    np.savez(there / "copy.npz", x=x[order], y=y[order])
    np.savez(there / "wider.npz", x=np.concatenate([x, x + 1]), y=np.concatenate([y, y]))
    assert assay("budget", "new", "patients", "--epsilon", "3", "--data", "patients.npz")[0] == 0
    code, _, err = assay("budget", "new", "fresh", "--epsilon", "3", "--data", "copy.npz")
    assert code == 2
    assert "are in the budget patients already" in err
    train = ("train", "--model", "linear-head", "--epochs", "1", "--dry-run", "--budget", "patients", "--out", "run")
    assert assay(*train, "--data", "copy.npz", "--delta", "1e-3")[0] == 0
    code, _, err = assay(*train, "--data", "wider.npz")
    assert code == 1
    assert "the two overlap" in err
    code, out, _ = assay("budget", "new", "wider", "--epsilon", "3", "--data", "wider.npz")
    assert code == 0
    assert "are also in the budget patients" in out
    assert assay("budget", "add", "patients", "--data", "wider.npz")[0] == 0
    assert assay(*train, "--data", "wider.npz", "--delta", "1e-3")[0] == 0


def test_rows_of_a_table_and_persons_are_recognised(assay, there):
    rows = "".join(f"p{i // 3},{i},{i % 2}\n" for i in range(60))
    (there / "visits.csv").write_text("patient_id,age,ill\n" + rows)
    (there / "later.csv").write_text("patient_id,age,ill\n" + rows.replace(",0\n", ",1\n"))
    assert assay("budget", "new", "rows", "--epsilon", "3", "--data", "visits.csv")[0] == 0
    code, out, err = assay(
        "budget", "new", "other/persons", "--epsilon", "3", "--unit", "patient_id", "--data", "visits.csv"
    )
    assert code == 0, err
    assert re.search(r"all runs on 1\d persons \(patient_id\)", out)  # the others are for testing
    code, out, _ = assay("budget", "add", "other/persons", "--data", "later.csv")
    assert code == 0
    assert "0 of them are new" in out  # other rows of the same persons
    code, out, _ = assay("budget", "add", "rows", "--data", "later.csv")
    assert not out.startswith("0 of them")
    code, _, err = assay("budget", "new", "x", "--epsilon", "3", "--unit", "nobody", "--data", "visits.csv")
    assert code != 0
    assert "nobody" in err


def test_a_signed_budget_needs_its_key(assay, there):
    assert assay("keys", "new", "key")[0] == 0
    assert assay("budget", "new", "b", "--epsilon", "3", "--data", "digits", "--key", "key")[0] == 0
    code, _, err = assay(*TRAIN, "--budget", "b", "--out", "run")
    assert code == 2
    assert "--budget-key" in err
    assert assay(*TRAIN, "--budget", "b", "--budget-key", "key", "--out", "run")[0] == 0
    assert assay("budget", "verify", "b", "--key", "key.pub")[0] == 0
    assert assay("keys", "new", "another")[0] == 0
    code, out, _ = assay("budget", "verify", "b", "--key", "another.pub")
    assert code == 1
    assert "not signed with the key that was given" in out


def test_what_is_not_a_budget_is_said(assay, there):
    code, _, err = assay(*TRAIN, "--budget", "nowhere", "--out", "run")
    assert code == 2
    assert "assay budget new" in err
    assert assay("budget", "new", "b", "--epsilon", "-1", "--data", "digits")[0] == 2
    assert assay("budget", "new", "b", "--epsilon", "1", "--delta", "0", "--data", "digits")[0] == 2
    assert not (there / "b.budget").exists()
    assert assay("total", "nowhere")[0] == 2
    code, _, err = assay(*TRAIN, "--budget", "b", "--validation", "--out", "run")
    assert code == 2
    assert "no budget can count them" in err
