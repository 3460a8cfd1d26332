"""Two processes of `accelerate launch` train what one does: with both trainers, and with a loop of one's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from assay.runs import verify
from distributed.launching import accelerate_launch, finished

pytest.importorskip("transformers")
pytest.importorskip("lightning")

from .two_processes import outcomes


def test_two_processes_end_with_the_model_and_the_epsilon_of_one(tmp_path, monkeypatch):
    (tmp_path / "two").mkdir()
    (tmp_path / "one").mkdir()
    tests = Path(__file__).parents[1]
    monkeypatch.setitem(os.environ, "PYTHONPATH", f"{tests}:{os.environ.get('PYTHONPATH', '')}")
    finished(accelerate_launch(2, "-m", "integrations.two_processes", tmp_path / "two", cwd=tests))
    for name, (model, epsilon) in outcomes(tmp_path / "one", 1).items():
        first, second = (load_file(tmp_path / "two" / f"{name}-{rank}.safetensors") for rank in (0, 1))
        for path, parameter in model.named_parameters():
            assert torch.equal(first[path], second[path]), name
            torch.testing.assert_close(first[path], parameter.detach(), rtol=1e-3, atol=1e-4)
        assert all(json.loads((tmp_path / "two" / f"{name}-{rank}.json").read_text()) == epsilon for rank in (0, 1))
    for run in ("trainer/privacy", "lightning"):
        assert verify(tmp_path / "two" / run).holds
        charged = [
            json.loads((tmp_path / n / run / "record.json").read_text())["steps_charged"] for n in ("one", "two")
        ]
        assert charged[0] == charged[1]
