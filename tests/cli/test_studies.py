"""Studies from the command line, killed and gone on with."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout

import pytest
from rich.console import Console
from rich.progress import Progress

from assay import ConfigError, presets, report, studies
from assay.cli import main
from assay.cli.study_progress import Bars
from assay.studies import results, tables
from assay.studies.directory import Study

GRID = (
    "compare",
    "--methods",
    "dpsgd,lssgd:sigma=2",
    "--epsilon",
    "3",
    "--seeds",
    "1",
    "--data",
    "digits",
    "--model",
    "logistic",
)
LONG = (*GRID, "--epochs", 14, "--batch-size", 64)  # long enough to be killed


def files(study):
    return {path: path.stat().st_mtime_ns for path in study.rglob("*") if path.is_file() and path.name != ".lock"}


def said(folder, *words):
    """What a command that a module needs once said, and its notes."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["assay", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code, err.getvalue()
    return out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study that was killed and resumed, made once, and what the second command said."""
    folder = tmp_path_factory.mktemp("studies")
    study = folder / "s"
    words = [*LONG, "--out", study, "--workers", 2, "--json"]
    command = [sys.executable, "-m", "assay", *map(str, words)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    runs = [study / "dpsgd/3/seed0", study / "lssgd-sigma=2/3/seed0"]
    end = time.monotonic() + 240
    while not all((run / "checkpoint.safetensors").exists() or (run / "record.json").exists() for run in runs):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    done = [run for run in runs if (run / "record.json").exists()]
    assert len(done) < 2, "the study was killed too late for these tests to say anything"
    return study, *said(folder, *words)


def test_a_killed_study_stops_its_runs_and_goes_on_where_it_was(finished):
    study, out, err = finished
    assert "resumed" in err
    assert [cell["finished"] for cell in json.loads(out)["cells"]] == [1, 1]
    for run in (study / "dpsgd/3/seed0", study / "lssgd-sigma=2/3/seed0"):
        record = json.loads((run / "record.json").read_text())
        assert record["status"] == "done"
        assert record["steps"] == record["steps_charged"], "a seeded run repeats the very same steps"
        assert record["epsilon"]["verified"] <= 3


def test_a_study_is_a_grid_of_ordinary_runs(assay, tmp_path, finished):
    study, out, err = finished
    assert "[2/2]" in err
    cells = json.loads(out)["cells"]
    assert [(cell["method"], cell["epsilon"], cell["finished"]) for cell in cells] == [
        ("dpsgd", "3", 1),
        ("lssgd:sigma=2", "3", 1),
    ]
    assert all(2.9 < cell["verified"] <= 3 for cell in cells), "equal verified ε"
    run = study / "lssgd-sigma=2/3/seed0"
    record = json.loads((run / "record.json").read_text())
    assert (record["method"], record["options"], record["seed"]) == ("lssgd", {"sigma": 2.0}, 0)
    assert assay("show", run)[1].startswith("# Privacy statement: lssgd on digits")
    by_hand = ("train", "--method", "dpsgd", "--epsilon", 3, "--data", "digits", "--model", "logistic")
    assert assay(*by_hand, *LONG[-4:], "--seed", 0, "--out", tmp_path / "hand")[0] == 0
    one = (study / "dpsgd/3/seed0/model.safetensors").read_bytes()
    assert one == (tmp_path / "hand/model.safetensors").read_bytes(), "the very same run"


def test_finished_runs_are_never_repeated_and_other_settings_refused(assay, finished):
    study = finished[0]
    before = files(study)
    code, out, err = assay(*LONG, "--out", study)
    assert code == 0
    assert "2 runs, 2 done" in err
    assert "started" not in err
    assert "lssgd:sigma=2" in out
    code, _, err = assay(*LONG, "--epochs", 3, "--out", study)
    assert code == 2
    assert "train.epochs was 14.0 and now is 3.0" in err
    assert files(study) == before


def test_beside_results_of_a_preset_stands_how_it_was_found(assay, tmp_path):
    words = ("--methods", "dpsgd", "--seeds", 1, "--data", "digits", "--preset", "best", "--epochs", 1)
    settings = {"data": "digits", "preset": "best", "epochs": 1}
    (cell,) = studies.compare(tmp_path / "s", ["dpsgd"], seeds=1, workers=1, **settings)  # as Python calls it
    assert cell["finished"] == cell["planned"] == 1
    with pytest.raises(ConfigError, match="dpsgd"):
        studies.compare(tmp_path / "other", ["dpsgd"], **{**settings, "batch_size": "many"})
    assert not (tmp_path / "other").exists()
    code, out, _ = assay("compare", *words, "--out", tmp_path / "s")  # gone on with
    assert code == 0
    found = presets.get("best", "digits", 1.0)
    said = f"{found.tried}, {'charged' if found.charged else 'not charged'}; epochs changed"
    assert "settings tried" in out
    assert said in out
    cell = json.loads(assay("compare", *words, "--out", tmp_path / "s", "--json")[1])["cells"][0]
    assert cell["tuning"] == found.origin(["epochs"])
    page = report.write(tmp_path / "s").path.read_text("utf-8")
    assert page.startswith("<!")
    assert "settings tried" in page
    assert said in page


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--methods", "dpsgd,nonesuch"), "method = 'nonesuch'"),
        (("--methods", "dpsgd,gredp", "--clip", "flat:1.0"), "per-layer:C with gredp"),
        (("--epsilon", "1,-2"), "epsilon = -2.0"),
        (("--epsilon", "one"), "numbers above 0"),
        (("--seeds", "0"), "seeds = 0"),
        (("--equal", "audited"), "verified, claimed"),
        (("--seed", "4"), "--seeds"),
        (("--variant", "published"), "--equal"),
        (("--noise-multiplier", "1"), "a study finds the noise"),
        (("--model", "resnet200"), "resnet200"),
        (("--colour", "red"), "--colour"),
        (("--workers", "0"), "workers"),
    ],
)
def test_bad_usage_is_told_before_anything_is_written(assay, tmp_path, arguments, told):
    code, _, err = assay(*GRID, "--epochs", 1, "--out", tmp_path / "s", *arguments)
    assert code == 2, err
    assert told in " ".join(err.split())
    assert not (tmp_path / "s").exists()


def test_a_run_that_fails_is_named_and_the_others_stay(assay, tmp_path, finished):
    study = tmp_path / "s"
    shutil.copytree(finished[0], study)
    damaged = study / "dpsgd/3/seed0"
    (damaged / "record.json").unlink()
    (damaged / "run.json").write_text("{")
    code, out, err = assay(*LONG, "--out", study)
    assert code == 1
    assert "dpsgd, 3, seed 0" in err
    assert "run.json is damaged" in " ".join(err.split())
    assert "0 of 1" in out
    assert "1 of 1" in out


PARTS = (
    'title = "Parts"\nseeds = [0, 1]\n[train]\ndata = "digits"\nmodel = "logistic"\nepochs = 1\n'
    '[axis.model."LeNet, ε 2"]\nepsilon = 2.0\n[axis.model."LeNet, ε 3"]\nepsilon = 3.0\n'
    '[axis.method."DP-SGD"]\nmethod = "dpsgd"\n[axis.method.LS]\nmethod = "lssgd"\n'
)


ONE = ("--only", "model=LeNet, ε 3", "--only", "method=DP-SGD", "--seeds", 1)


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    """A folder in which one run of a table was measured, and what the command said, made once."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "experiments/p").mkdir(parents=True)
    (folder / "experiments/p/t.toml").write_text(PARTS)
    return folder, *said(folder, "reproduce", "p/t", *ONE)


def test_a_table_is_measured_part_by_part_and_nothing_is_lost_or_repeated(assay, tmp_path, monkeypatch, part):
    folder, out, err = part
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "experiments/p/t.json"

    def reproduce(*words):
        code, out, err = assay("reproduce", "p/t", *words)
        assert code == 0, err
        return out, err

    def measured():
        return {(*cell["labels"], cell["seed"]): cell for cell in json.loads(kept.read_text())["cells"]}

    assert "1 runs, 0 done" in err
    assert set(first := measured()) == {("LeNet, ε 3", "DP-SGD", 0)}
    assert "| LeNet, ε 2 | LS | – | – | – | 0 |" in out, "what is not measured is there and says so"
    assert "Command: `assay reproduce p/t --only 'model=LeNet, ε 3' --only method=DP-SGD --seeds 1`." in out
    assert Study.open(tmp_path / "runs/p/t").grid.seeds == [0, 1], "the study is that of the whole table"
    before = files(tmp_path / "runs")
    out, err = reproduce("--only", "method=DP-SGD", "--seeds", 1)
    assert "2 runs, 1 done" in err
    assert files(tmp_path / "runs").items() >= before.items()
    shutil.rmtree(tmp_path / "runs")  # a fresh clone
    data = json.loads(kept.read_text())
    data["cells"][0]["seconds"] = 1e6
    one = data["cells"][0]
    ls = one | {"labels": ["LeNet, ε 2", "LS"], "settings": one["settings"] | {"method": "lssgd"}}
    data["cells"] += [ls, one | {"labels": ["gone", "LS"]}, one | {"seed": 1, "settings": {"epochs": 99}}]
    kept.write_text(json.dumps(data | {"date": "2001-01-01"}))
    out, err = reproduce("--only", "model=LeNet, ε 2", "--only", "method=DP-SGD", "--seeds", 1)
    assert "Commands: `assay reproduce p/t --only 'model=LeNet, ε 2' --seeds 1`, `assay" in out
    assert {**measured(), **first} == measured(), "what only the results had is still there"
    assert len(measured()) == 3, "but neither a label that is gone nor a run with other settings"
    assert measured()["LeNet, ε 2", "DP-SGD", 0]["seconds"] < 1e6, "and what was measured now takes its place"
    data = json.loads(kept.read_text())
    assert data["date"] > "2001-01-01"
    data["cells"] += [cell | {"seed": 1} for cell in data["cells"]]
    data["cells"] += [ls | {"labels": ["LeNet, ε 3", "LS"], "settings": ls["settings"] | {"epsilon": 3.0}}]
    kept.write_text(json.dumps(data))
    shutil.rmtree(tmp_path / "runs")  # another machine
    there = measured()
    out, err = reproduce("--missing")
    assert "8 runs, 7 done" in err
    assert len(list((tmp_path / "runs").rglob("record.json"))) == 1, "what the results have is not repeated"
    assert {**measured(), **there} == measured()
    text = (tmp_path / "experiments/p/t.md").read_text()
    assert "Command: `assay reproduce p/t`." in text
    assert text.count("| 2 |\n") == 4
    out, err = reproduce("--print", "--only", "model=LeNet, ε 3", "--seeds", 1)
    assert (out.count("| LeNet, ε 3 |"), out.count("| 1 |\n")) == (2, 2)
    assert "| LeNet, ε 2 |" not in out
    assert "Command: `assay reproduce p/t --only 'model=LeNet, ε 3' --seeds 1`." in out
    reproduce(*ONE)
    assert len(list((tmp_path / "runs").rglob("record.json"))) == 2, "without --missing all that is asked is run here"


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (
            ("--only", "modle=LeNet, ε 2"),
            "only = 'modle=LeNet, ε 2' is not accepted: AXIS=LABEL with an axis of p/t: model, method",
        ),
        (("--only", "LeNet"), "with an axis of p/t: model, method"),
        (("--only", "method=DP-SGD", "--only", "model=LeNet"), "with a label of p/t: 'LeNet, ε 2', 'LeNet, ε 3'"),
        (("--seeds", 0), "seeds = 0 is not accepted"),
        (("--seeds", 3), "from 1 to 2"),
    ],
)
def test_a_part_that_a_table_does_not_have_is_refused_before_anything_is_trained(
    assay, tmp_path, monkeypatch, part, told
):
    (tmp_path / "experiments/p").mkdir(parents=True)
    (tmp_path / "experiments/p/t.toml").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    code, _, err = assay("reproduce", "p/t", *part)
    assert code == 2
    assert told in " ".join(err.split())
    assert not (tmp_path / "runs").exists()


def test_a_run_that_another_table_has_finished_is_copied_not_trained(assay, tmp_path, monkeypatch, part):
    shutil.copytree(part[0], tmp_path, dirs_exist_ok=True)
    text = (
        'title = "T"\nseeds = [0]\n[train]\nmethod = "dpsgd"\nepochs = 1\nmodel = "logistic"\ndata = "digits"\n'
        '[axis."at ε"."3"]\nepsilon = 3.0\n[small]\nseeds = [0]\n'
    )
    (tmp_path / "experiments/p/other.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    (source,) = (record.parent for record in (tmp_path / "runs/p/t").rglob("record.json"))
    before = files(source)
    code, out, err = assay("reproduce", "p/other", "--workers", 1)
    assert code == 0, err
    assert "[1/1] taken from p/t: 3, seed 0: accuracy" in err
    assert "started" not in err
    copy = tmp_path / "runs/p/other/3/seed0"
    assert {path.name: path.read_bytes() for path in source.iterdir()} == {
        p.name: p.read_bytes() for p in copy.iterdir()
    }
    assert not any(b"p/t" in path.read_bytes() for path in copy.iterdir()), "no file says that it is elsewhere"
    assert files(source) == before
    assert assay("show", copy)[0] == 0
    assert out.count("| 1 |\n") == 1


def test_a_table_is_reproduced_small_and_a_table_of_attacks_is_about_its_runs(assay, tmp_path, monkeypatch):
    (tmp_path / "experiments/p").mkdir(parents=True)
    (tmp_path / "experiments/p/t4.toml").write_text(
        'title = "Accuracy"\nseeds = [0, 1]\n[train]\ndata = "digits"\nmodel = "logistic"\nepochs = 50\nepsilon = 2.0\n'
        '[axis.method."DP-SGD"]\nmethod = "dpsgd"\n[theirs]\n"DP-SGD" = 97.2\n'
        "[small]\nseeds = [0]\n[small.train]\nepochs = 1\n"
    )
    (tmp_path / "experiments/p/t2.toml").write_text(
        'title = "Attacks"\nruns = "p/t4"\n[attack]\nattack = ["loss", "entropy"]\nrecords = 100\n'
        '[theirs."DP-SGD"]\nloss = 50.01\nentropy = 51.2\naverage = 50.6\n'
    )
    monkeypatch.chdir(tmp_path)
    code, out, err = assay("reproduce", "p/t2", "--scale", "small", "--workers", 1)
    assert code == 0, err
    run = tmp_path / "runs/p/t4.small/DP-SGD/seed0"
    before = files(run)
    kept = {
        a["attack"]: a["balanced_accuracy"]["value"] for a in json.loads((run / "attacks.json").read_text())["attacks"]
    }
    mean = sum(kept.values()) / 2
    ours = [f"{100 * value:.2f}" for value in (kept["loss"], kept["entropy"], mean)]
    assert "loss (%) | paper (%) | entropy (%) | paper (%) | average (%) | paper (%)" in out
    assert f"| DP-SGD | {ours[0]} | 50.01 | {ours[1]} | 51.2 | {ours[2]} | 50.6 |" in out
    assert assay("reproduce", "p/t4", "p/t2", "--scale", "small")[0] == 0
    assert files(run) == before, "one run for both tables, attacked once"
    out = (tmp_path / "experiments/p/t4.small.md").read_text()
    assert "Reduced, not the paper's setting:** 1 of 2 seeds; epochs 1 instead of 50." in out
    assert "| 97.2 |" in out
    assert os.uname().nodename not in out
    assert not (tmp_path / "experiments/p/t4.json").exists()
    assert assay("reproduce", "p/t4", "--scale", "small", "--print")[1].split() == out.split()
    assert assay("reproduce", "p/t4", "--print")[0] == 1, "the full table was not measured"
    (run / "attacks.json").unlink()  # as where the run was trained again, for another table
    attacked = tables.read(tmp_path / "experiments", "p/t2", "small")
    found = results.collect(attacked, Study.open(tmp_path / "runs/p/t4.small"))
    assert [measured.attacks for measured in found.runs] == [kept], "what was measured is not lost"


def test_bars_on_a_terminal(finished):
    study = Study.open(finished[0])
    first, second = study.grid.runs()
    screen = io.StringIO()
    with Progress(console=Console(file=screen, force_terminal=True, width=100)) as progress:
        bars = Bars(study, progress, 0, 2)
        bars.on_start(first)
        bars.on_start(second)
        bars.on_line(first, "step 5/10  epoch 1.0  accuracy 80.00%  ε 0.700 of 1")
        bars.on_line(first, "note: something else")
        task = progress.tasks[1]
        assert (task.completed, task.total) == (5, 10)
        assert "accuracy 80.00%" in task.fields["facts"]
        bars.on_end(first, 3.0, None)
        bars.on_end(second, 4.0, "it [broke]")
    assert "dpsgd, 3, seed 0: accuracy" in screen.getvalue()
    assert "it [broke]" in screen.getvalue()
    assert bars.done == 1


FEDERATED = (
    'title = "Clients"\nseeds = [0, 1]\n'
    '[federate]\ndata = "digits"\nmodel = "logistic"\nclients = 10\nper_round = 5\nrounds = 40\n'
    'partition = "dirichlet:1"\nshow_partition = true\n'
    '[axis.epsilon."5"]\nepsilon = 5.0\n[axis.method.FedAvg]\nmethod = "fedavg"\n'
    '[axis.method."FedAGS, published"]\nmethod = "fedags"\nvariant = "published"\n'
    '[[where]]\nmethod = "FedAvg"\nfederate = { clip = 0.5 }\n'
    '[theirs."5"]\nFedAvg = 88.34\n[small]\nseeds = [0]\n[small.federate]\nrounds = 4\n'
)


def test_a_table_of_federated_runs_and_a_figure_of_the_same_runs(assay, tmp_path, monkeypatch):
    (tmp_path / "experiments/p").mkdir(parents=True)
    (tmp_path / "experiments/p/t.toml").write_text(FEDERATED)
    (tmp_path / "experiments/p/f.toml").write_text(
        'title = "A figure"\nruns = "p/t"\n[figure]\nx = "rounds"\nseries = "method"\n'
    )
    monkeypatch.chdir(tmp_path)
    code, out, err = assay("reproduce", "p/t", "--scale", "small", "--workers", 1)
    assert code == 0, err
    assert "rounds 4 instead of 40" in out
    rows = {line.split(" | ")[1]: line.strip("| ").split(" | ") for line in out.splitlines() if line.startswith("| 5")}
    sound, published = rows["FedAvg"], rows["FedAGS, published"]
    assert sound[3] == "88.34"
    assert 4.9 < float(sound[5]) <= 5, "a target is a verified one"
    assert published[3] == "–"
    assert 4.9 < float(published[4]) <= 5, "as published a target is one to claim"
    assert published[5] == "∞", "and the truth stands beside it"
    assert float(published[6]) > 0, "megabytes that the clients sent"
    run = tmp_path / "runs/p/t.small/5/FedAvg/seed0"
    record = json.loads((run / "record.json").read_text())
    assert (record["kind"], record["clip"], record["steps"]) == ("federated", "flat:0.5", 4)
    page = assay("report", "runs/p/t.small", "--out", "page.html")
    assert page[0] == 0, page
    shown = (tmp_path / "page.html").read_text()
    assert shown.count('alt="partition.png"') == 2
    assert "MB up" in shown
    before = files(tmp_path / "runs")
    code, out, err = assay("reproduce", "p/f", "--scale", "small", "--workers", 1)
    assert code == 0, err
    assert "2 runs, 2 done" in err
    assert "# A figure" in out
    assert files(tmp_path / "runs") == before, "measured once"
    cells = json.loads((tmp_path / "experiments/p/f.small.json").read_text())["cells"]
    assert [[time for time, _ in cell["history"]] for cell in cells] == [[1, 2, 3, 4]] * 2, "rounds"
    assert assay("report", "experiments", "--out", "papers.html")[0] == 0
    papers = (tmp_path / "papers.html").read_text()
    assert "Accuracy against rounds: epsilon 5" in papers
    assert f">{published[6]}</td>" in papers, "the megabytes of the Markdown, on the page too"


def test_a_federated_study_resumes_an_unfinished_run(assay, tmp_path):
    grid = ("compare", "--methods", "fedags:least=0.5", "--epsilon", 3, "--seeds", 1, "--data", "digits")
    grid = (*grid, "--model", "logistic", "--clients", 10, "--per-round", 5, "--rounds", 3, "--out", tmp_path / "s")
    code, out, err = assay(*grid, "--workers", 1, "--json")
    assert code == 0, err
    (cell,) = json.loads(out)["cells"]
    assert cell["method"] == "fedags:least=0.5"
    assert 2.9 < cell["verified"] <= 3
    run = tmp_path / "s/fedags-least=0.5/3/seed0"
    model = (run / "model.safetensors").read_bytes()
    for name in ("record.json", "statement.md", "model.safetensors"):
        (run / name).unlink()
    code, _, err = assay(*grid, "--workers", 1)
    assert code == 0, err
    assert "fedags:least=0.5, 3, seed 0, resumed" in err
    assert (run / "model.safetensors").read_bytes() == model


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--methods", "dpsgd,fedavg"), "assay federate only"),
        (("--methods", "fedavg,fedsnlc", "--unit", "record"), "fedsnlc"),
        (("--methods", "fedavg", "--epochs", "3"), "--epochs"),
        (("--methods", "fedavg", "--clients", "0"), "clients"),
        (
            (
                "--methods",
                "fedags:colour=red",
            ),
            "assay federate",
        ),
    ],
)
def test_bad_federated_studies_are_told_before_anything_is_written(assay, tmp_path, arguments, told):
    code, _, err = assay("compare", *arguments, "--data", "digits", "--model", "logistic", "--out", tmp_path / "s")
    assert code == 2, err
    assert told in " ".join(err.split())
    assert not (tmp_path / "s").exists()
