"""What can go wrong around a run: output, other processes, kills, full disks. None of it lowers ε or loses work."""

import contextlib
import errno
import io
import json
import os
import shlex
import stat
import subprocess
import sys
import threading

import pytest
import torch
from torch.utils.data import TensorDataset

from assay import AssayError, ConfigError, Plan, fit
from assay._util import files, seals
from assay.accounting.ledger import LedgerError
from assay.attacks.storage import write_attacks
from assay.audit.storage import write_audit
from assay.cli.output import unfailing
from assay.runs.callbacks import OnStep
from assay.runs.directory import RunDirectory
from assay.runs.statement import statement

from .conftest import NAMES, network, plan, records

TRAIN = ("train", "--data", "digits", "--model", "logistic", "--epochs", 1, "--batch-size", 500, "--epsilon", 2)


class Narrow:
    """Standard output of another encoding, or one that nobody reads."""

    def __init__(self, encoding, broken=False):
        self.encoding, self.broken, self.text = encoding, broken, ""

    def write(self, text):
        if self.broken:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self.text += text.encode(self.encoding).decode(self.encoding)
        return len(text)

    def flush(self):
        if self.broken:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    def isatty(self):
        return False


@pytest.fixture
def narrow(monkeypatch):
    """narrow(encoding, broken)(arguments) -> (exit code, output, errors), of the command in this process."""

    def make(encoding, broken=False):
        def call(*arguments):
            from assay.cli import main

            out, err = Narrow(encoding, broken), Narrow(encoding, broken)
            with monkeypatch.context() as patched:
                patched.setattr(sys, "argv", ["assay", *map(str, arguments)])
                patched.setattr(sys, "stdout", out)
                patched.setattr(sys, "stderr", err)
                try:
                    main()
                    code = 0
                except SystemExit as end:
                    code = end.code or 0
            return code, out.text, err.text

        return call

    return make


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_output_that_is_not_utf_8_fails_no_command(narrow, tmp_path, encoding):
    assay = narrow(encoding)
    code, out, err = assay(*TRAIN, "--seed", 1, "--out", tmp_path / "run")
    assert code == 0
    assert "epsilon verified" in out
    assert "step" in err
    (tmp_path / "run/record.json").unlink()  # as if it had been killed before its end
    assert "epsilon" in assay("show", tmp_path / "run")[1]
    assert assay("resume", tmp_path / "run")[0] == 0
    code, out, _ = assay("show", tmp_path / "run")
    assert code == 0
    assert "epsilon" in out
    assert assay("show", tmp_path / "run", "--json")[0] == 0
    assert assay("methods")[0] == 0
    plain = ("--noise-multiplier", 1, "--records", 1000, "--batch-size", 100, "--steps", 3)
    assert "epsilon verified" in assay("epsilon", *plain)[1]
    assert assay("--help")[0] == 0
    assert assay("train", "--help")[0] == 0
    assert assay("show", tmp_path / "nothing-ε")[0] == 2


def test_nobody_reading_the_output_fails_no_run(narrow, tmp_path):
    assert narrow("utf-8", broken=True)(*TRAIN, "--out", tmp_path / "run")[0] == 0
    assert RunDirectory(tmp_path / "run").read_record()["status"] == "done"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_another_encoding_prints_in_words(monkeypatch, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    with unfailing():
        print("ε ≤ 2 \udcff")
    assert stream.buffer.getvalue() == b"epsilon <= 2 \\udcff\n"


def test_a_closed_pipe_leaves_nothing_behind_that_could_fail_later(monkeypatch):
    """The interpreter flushes what is left in the buffer when it ends."""
    read, write = os.pipe()
    stream = os.fdopen(write, "w")
    os.close(read)
    monkeypatch.setattr(sys, "stdout", stream)
    with unfailing():
        for _ in range(999):
            print("x" * 99)
    stream.close()


def test_what_was_standard_output_is_that_again():
    before = sys.stdout, sys.stderr
    with unfailing():
        assert sys.stdout is not before[0]
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize("name", ["m[x]", "d[/]u", "[red]x[/red]:smile:"])
def test_a_path_is_printed_as_it_is_called(assay, tmp_path, name):
    code, out, _ = assay(*TRAIN, "--out", tmp_path / name)
    assert code == 0
    assert str(tmp_path / name / "statement.md") in out
    code, _, err = assay(*TRAIN, "--out", tmp_path / name)
    assert code == 2
    assert str(tmp_path / name) in err
    assert f"{tmp_path / name} is finished" in assay("resume", tmp_path / name)[1]


@pytest.mark.parametrize("name", ["a b", "it's", "m[x]"])
def test_how_to_resume_is_quoted_as_a_shell_takes_it(tmp_path, name):
    by_command = {**spec(), "names": {"data_dir": None}}  # as `assay train` notes it
    run = RunDirectory.create(tmp_path / name, by_command)
    (command,) = [line for line in run.notice.read_text().splitlines() if "assay resume" in line]
    assert shlex.split(command) == ["assay", "resume", str(tmp_path / name)]


def spec():
    return {"plan": plan().to_json(), "training": {}, "names": {}}


def deleted(path):
    path.unlink()


def replaced(path):
    path.rename(path.with_name("elsewhere"))
    path.write_text("")


def shortened(path):
    os.truncate(path, 100)


def lengthened(path):
    with path.open("ab") as file:
        file.write(b"\n")


@pytest.mark.parametrize("change", [deleted, replaced, shortened, lengthened])
def test_a_ledger_that_is_taken_away_stops_the_run(tmp_path, change):
    taken = []

    def watch(now):
        taken.append(now.step)
        if now.step == 4:
            change(tmp_path / "run/ledger.jsonl")

    with pytest.raises(LedgerError, match=r"ledger\.jsonl was (deleted|changed)"):
        fit(network(), records(), plan=plan(steps=400), out=tmp_path / "run", names=NAMES, callbacks=[OnStep(watch)])
    assert len(taken) < 400


def dead_process():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_what_killed_processes_left_does_not_keep_a_directory_from_a_run(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / f".run.json.{dead_process()}.part").write_text("{")
    fit(network(), records(), plan=plan(), out=run, names=NAMES)
    assert not [path for path in run.iterdir() if path.name.endswith(".part")]


def test_what_a_living_process_is_writing_stays(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    part = run / f".run.json.{os.getppid()}.part"
    part.write_text("{")
    with pytest.raises(ConfigError, match="other files"):
        RunDirectory.create(run, spec())
    files.remove_abandoned(run)
    assert part.exists()
    (run / ".mine.part").write_text("")
    files.remove_abandoned(run)
    assert (run / ".mine.part").exists(), "not a name of ours"


def test_of_two_that_begin_in_one_directory_one_gets_it(tmp_path):
    """Several at once, many times: one run.json each time, and the others are told."""
    for turn in range(20):
        told, start = [], threading.Barrier(4)

        def begin(seed, told=told, start=start, out=tmp_path / f"run{turn}"):
            start.wait()
            try:
                told.append(RunDirectory.create(out, {**spec(), "names": {"seed": seed}}).read_spec()["names"])
            except ConfigError as error:
                told.append(str(error))

        threads = [threading.Thread(target=begin, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = [one for one in told if isinstance(one, dict)]
        assert len(won) == 1, told
        assert RunDirectory(tmp_path / f"run{turn}").read_spec()["names"] == won[0]


def test_a_run_whose_directory_was_taken_over_charges_nothing(tmp_path):
    run = RunDirectory.create(tmp_path / "run", spec())
    ledger = run.open_ledger(delta=1e-3, adjacency=plan().adjacency, ceiling=9.0)
    RunDirectory.create(tmp_path / "run", {**spec(), "names": {"data": "other"}}, force=True)
    with pytest.raises(LedgerError, match="another run has begun"):
        run.lock(ledger)


AUDIT = {
    "epsilon": 0.1,
    "confidence": 0.95,
    "verdict": "consistent",
    "sentence": "s",
    "estimator": "e",
    "how": "h",
    "assumption": None,
}


@pytest.fixture
def done(finished, tmp_path):
    import shutil

    return RunDirectory(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("call", range(6))
def test_record_and_statement_agree_wherever_an_audit_is_killed(done, monkeypatch, call):
    """Stopped before its n-th rename or removal of a name: what is read is all old or all new."""
    left = [call]

    def interrupted(real):
        def renamed(self, *arguments, **more):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return real(self, *arguments, **more)

        return renamed

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.replace", interrupted(type(done.path).replace))
        with contextlib.suppress(KeyboardInterrupt):
            write_audit(done, AUDIT)
    record = done.read_record()
    audits = record.get("audits", [])
    assert done.read_statement(record) == statement(record)
    done.settle_texts()
    assert done.read_statement(record) == done.statement.read_text()
    write_audit(done, AUDIT)
    assert len(done.read_record()["audits"]) == len(audits) + 1
    assert done.statement.read_text() == statement(done.read_record())


def test_audits_that_end_together_are_all_kept(done):
    threads = [threading.Thread(target=write_audit, args=(done, AUDIT)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = done.read_record()
    assert len(record["audits"]) == 8
    assert record["audit"]["confidence"] == pytest.approx(1 - 8 * 0.05)


def test_results_of_attacks_are_for_the_owner_only(done):
    before = os.umask(0o022)
    try:
        write_attacks(done, [{"attack": "loss"}])
    finally:
        os.umask(before)
    assert stat.S_IMODE((done.path / "attacks.json").stat().st_mode) == 0o600


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_names_the_file_and_how_to_go_on(tmp_path, monkeypatch):
    with monkeypatch.context() as disk:
        disk.setattr("os.fsync", full)
        with pytest.raises(AssayError, match=r"no room to write .*run\.json.*assay resume") as caught:
            fit(network(), records(), plan=plan(), out=tmp_path / "run", names=NAMES)
    assert isinstance(caught.value, OSError)


def test_a_place_where_nobody_may_write_is_named_before_anything_is_trained(tmp_path):
    """Tests run as root, who may write anywhere; below a file nobody may."""
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "run"
    for out in (below, tmp_path / "file" / "runs" / "run"):
        with pytest.raises(
            AssayError, match=rf"cannot write {tmp_path}/file.*: (Not a directory|File exists). Name a place"
        ):
            fit(network(), records(), plan=plan(), out=out, names=NAMES)
    with pytest.raises(AssayError, match=rf"cannot write {tmp_path}: Is a directory"):
        files.replace_text(tmp_path, "report")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert not [path for path in tmp_path.parent.iterdir() if path.name.endswith(".part")]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clip", "bogus"),
        ("clip", -1.0),
        ("clip", [1.0]),
        ("method", 3),
        ("method", "bogus"),
        ("adjacency", "replace-one"),
        ("batch_size", "ten"),
        ("batch_size", None),
        ("batch_size", True),
        ("noise_multiplier", "much"),
        ("noise_multiplier", None),
        ("delta", "1e-5"),
        ("delta", None),
        ("sampling", ["poisson"]),
        ("noise_schedule", 3),
        ("encode", "sign"),
        ("center", 3),
        ("records", "40"),
        ("steps", 2.5),
    ],
)
def test_a_plan_names_the_field_that_is_of_another_kind(field, value):
    with pytest.raises(ConfigError) as caught:
        plan(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(("field", "value"), [("epochs", "2"), ("records", "40"), ("epsilon", "1"), ("delta", None)])
def test_calibration_names_it_too(field, value):
    given = {"epsilon": 1.0, "delta": 1e-3, "records": 40, "batch_size": 10, "epochs": 2}
    with pytest.raises(ConfigError) as caught:
        Plan.calibrated(**given | {field: value})
    assert caught.value.field == field


def test_records_of_three_values_are_named(tmp_path):
    x, y = records().tensors
    three = TensorDataset(x, y, y)
    with pytest.raises(ConfigError, match="train = '3 values per record'"):
        fit(network(), three, plan=plan(), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="test = '3 values per record'"):
        fit(network(), records(), plan=plan(), test=three, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="train = 'Tensor'"):
        fit(network(), x, plan=plan(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_of_no_numbers_is_called_that():
    model = network()
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    with pytest.raises(ConfigError, match=r"with weight.*finite weights"):
        fit(model, records(), plan=plan())


def test_a_plan_of_another_version_is_named(tmp_path):
    data = {**plan().to_json(), "colour": "red"}
    with pytest.raises(ConfigError, match=r"plan\.colour"):
        Plan.from_json(data)
    with pytest.raises(ConfigError, match="adjacency = 'far'"):
        Plan.from_json({**plan().to_json(), "adjacency": "far"})


def test_the_record_lists_the_digests_of_the_files(done):
    record = done.read_record()
    assert set(record["files"]) == {
        ".gitignore",
        "README.md",
        "run.json",
        "ledger.jsonl",
        "model.safetensors",
        "statement.md",
    }
    for name, digest in record["files"].items():
        assert seals.of_file(done.path / name) == digest
    assert json.loads(done.ledger.read_text().splitlines()[0])["run"] == done.digest()
