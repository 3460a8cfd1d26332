"""kill -9 at any moment: what was finished is kept, what was spent is shown, and a seeded run ends to the bit where it
would have.
"""

import json
import os
import signal
import threading
import time

TRAIN = (
    "train",
    "--data",
    "digits",
    "--model",
    "mlp",
    "--epochs",
    12,
    "--batch-size",
    256,
    "--epsilon",
    4,
    "--lr",
    0.5,
)


def wait_for(condition, child=None, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert child is None or child.poll() is None, child.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


def ledger_steps(path):
    entries = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    last = {e["segment"]: e["steps"] for e in entries}
    return sum(last.values())


def kill(child):
    child.send_signal(signal.SIGKILL)
    child.wait()


def test_a_seeded_run_ends_bitwise_where_an_uninterrupted_one_ends(process, assay, tmp_path):
    """Killed before the first checkpoint, and again after one. Who resumes it last is another process."""
    code, _, err = assay(*TRAIN, "--seed", 6, "--out", tmp_path / "whole")
    assert code == 0, err
    cut = process(*TRAIN, "--seed", 6, "--out", "cut")
    ledger = tmp_path / "cut/ledger.jsonl"
    wait_for(lambda: ledger.exists() and ledger.read_text().count("\n") > 1, cut)
    kill(cut)
    assert (tmp_path / "cut/UNFINISHED.txt").exists()
    cut = process("resume", "cut")
    wait_for((tmp_path / "cut/checkpoint.safetensors").exists, cut)
    time.sleep(0.05)
    kill(cut)
    assert (tmp_path / "cut/UNFINISHED.txt").exists()
    code, out, err = assay("resume", tmp_path / "cut", "--json")
    assert code == 0, err
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    a, b = (json.loads((tmp_path / n / "record.json").read_text()) for n in ("whole", "cut"))
    assert a["epsilon"] == b["epsilon"]
    assert a["history"] == b["history"]
    assert json.loads(out) == b
    assert not (tmp_path / "cut/UNFINISHED.txt").exists()


def test_an_unseeded_run_keeps_its_ceiling_and_pays_for_what_was_lost(process, assay, tmp_path):
    run = tmp_path / "run"
    child = process(*TRAIN, "--out", run)
    wait_for((run / "checkpoint.safetensors").exists, child)
    kill(child)
    charged = ledger_steps(run / "ledger.jsonl")
    shown = assay("show", run)[1]
    assert "unfinished" in shown
    assert f"assay resume {run}" in shown
    assert f"{charged} of " in shown
    code, out, err = assay("resume", run, "--json")
    assert code in (0, 3), err
    record = json.loads(out)
    assert record["epsilon"]["verified"] <= 4
    assert record["steps_charged"] >= record["steps"]
    if record["steps_charged"] > record["steps"]:
        assert record["status"] == "budget-spent"
        assert code == 3


def test_sigterm_stops_in_order(assay, tmp_path):
    run = tmp_path / "run"

    def stop():
        wait_for((run / "checkpoint.safetensors").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    code, _, err = assay(*TRAIN, "--epochs", 300, "--out", run)
    thread.join()
    assert code == 1
    assert f"assay resume {run}" in err
