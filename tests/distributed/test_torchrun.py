"""`torchrun -m assay train` as people type it: a killed rank loses steps since the last checkpoint, never a charge."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from distributed.launching import finished, torchrun

TRAIN = (
    *("train", "--data", "digits", "--records", 400, "--model", "mlp", "--epochs", 12, "--batch-size", 100),
    *("--epsilon", 4, "--delta", 1e-3, "--lr", 0.5),
)


def rank_process(launcher: subprocess.Popen[str], rank: int) -> int:
    """The process of a rank, by what the launcher put into its environment."""
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher.pid and f"RANK={rank}" in (entry / "environ").read_text().split("\0"):
                return int(entry.name)
        except (OSError, ValueError, IndexError):
            continue
    raise AssertionError(f"no process of rank {rank}")


def charged(run: Path) -> int:
    entries = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()[1:] if line.endswith("}")]
    return sum({entry["segment"]: entry["steps"] for entry in entries}.values())


def killed(launcher: subprocess.Popen[str], run: Path, rank: int) -> int:
    """kill -9 of one rank after the first checkpoint; what the ledger said then."""
    end = time.monotonic() + 300
    while not (run / "checkpoint.safetensors").exists():
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(rank_process(launcher, rank), signal.SIGKILL)
    return charged(run)


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds ranks by /proc")


@needs_proc
def test_a_killed_rank_starts_again_and_a_seeded_run_ends_where_one_process_ends(tmp_path, assay):
    ranks = torchrun(2, "-m", "assay", *TRAIN, "--seed", 6, "--out", "ranks", "--json", cwd=tmp_path, restarts=3)
    killed(ranks, tmp_path / "ranks", 1)
    out, _ = finished(ranks)
    assert assay(*TRAIN, "--seed", 6, "--out", tmp_path / "alone")[0] == 0
    one, two = (json.loads((tmp_path / name / "record.json").read_text()) for name in ("alone", "ranks"))
    assert json.loads(out) == two
    assert (two["epsilon"], two["steps"], two["steps_charged"]) == (one["epsilon"], one["steps"], one["steps_charged"])
    assert [entry["epsilon"] for entry in two["history"]] == [entry["epsilon"] for entry in one["history"]]
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ranks", "alone"))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-4 * float(value.abs().max()))
    assert {path.name for path in (tmp_path / "ranks").iterdir()} == {
        path.name for path in (tmp_path / "alone").iterdir()
    }


@needs_proc
def test_a_killed_leader_starts_again_with_its_ledger(tmp_path):
    ranks = torchrun(2, "-m", "assay", *TRAIN, "--out", "run", "--force", cwd=tmp_path, restarts=3)
    before = killed(ranks, tmp_path / "run", 0)
    _, err = finished(ranks)
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert record["steps_charged"] == charged(tmp_path / "run") >= before
    assert record["steps_charged"] >= record["steps"]
    assert record["epsilon"]["verified"] <= 4
    lost = record["steps_charged"] > record["steps"]
    assert record["status"] == ("budget-spent" if lost else "done")
    assert ("the budget ended the run" in err) == lost
    segments = {json.loads(line)["segment"] for line in (tmp_path / "run/ledger.jsonl").read_text().splitlines()[1:]}
    assert segments == {0, 1}, "fresh randomness begins a segment of its own"


def test_other_commands_are_for_one_process(monkeypatch, assay):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    code, _, err = assay("methods")
    assert code == 2
    assert "only train and resume share their work" in err


def test_a_model_is_split_over_several_ranks_only(tmp_path, assay):
    code, _, err = assay(*TRAIN, "--shard", "--out", tmp_path / "run")
    assert code == 2
    assert "torchrun --nproc-per-node N" in err
    assert not (tmp_path / "run").exists()
