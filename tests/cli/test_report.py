"""`assay report` as a user types it."""

import re
import urllib.request

TRAIN = ("train", "--data", "digits", "--model", "logistic", "--epochs", 2, "--epsilon", 2)


def test_a_page_is_written_and_named_and_damage_is_told(assay, tmp_path):
    assert assay(*TRAIN, "--seed", 0, "--out", tmp_path / "runs/a")[0] == 0
    assert assay("attack", tmp_path / "runs/a", "--attack", "loss", "--save")[0] == 0
    (tmp_path / "runs/b").mkdir()
    (tmp_path / "runs/b/run.json").write_text("{")
    code, out, err = assay("report", tmp_path / "runs")
    assert code == 0
    assert out.startswith(str(tmp_path / "runs/report.html"))
    assert "1 finished, 1 damaged" in out
    assert "damaged: b" in err
    page = (tmp_path / "runs/report.html").read_text()
    assert "Membership inference" not in page, "no ε covers what attacks show"
    assert "Privacy statement: dpsgd on digits" in page
    code, out, _ = assay("report", tmp_path / "runs/a", "--uncovered", "--out", tmp_path / "one.html")
    assert code == 0
    assert "Membership inference" in (tmp_path / "one.html").read_text()
    assert not (tmp_path / "runs/a/report.html").exists()


def test_bad_usage_is_told(assay, tmp_path):
    for arguments in (
        ("report", tmp_path),
        ("report", tmp_path / "nowhere"),
        ("report", tmp_path, "--serve", "--out", "x"),
    ):
        code, _, err = assay(*arguments)
        assert code == 2
        assert "is not accepted" in err


def test_serving_beyond_this_machine_is_warned_about(process, tmp_path):
    (tmp_path / "runs/b").mkdir(parents=True)
    (tmp_path / "runs/b/run.json").write_text("{")
    child = process("report", "--serve", "--host", "0.0.0.0", "--port", 0, "runs")
    told = child.stdout.readline()
    port = re.search(r":(\d+)/", told).group(1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
        assert "damaged" in answer.read().decode()
    child.terminate()
    _, err = child.communicate(timeout=60)
    assert "without a password" in err
