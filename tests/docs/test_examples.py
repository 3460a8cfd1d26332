"""The examples run from beginning to end and say what they did."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from assay.runs.directory import RunDirectory

EXAMPLES = Path(__file__).parents[2] / "examples"


def _loaded(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_adapters_are_fine_tuned_and_the_rest_stays(tmp_path, monkeypatch):
    example = _loaded("finetune_lora")
    base = {}
    made = example.pretrained

    def pretrained():
        model = made()
        base.update({name: p.detach().clone() for name, p in model.named_parameters()})
        return model

    monkeypatch.setattr(example, "pretrained", pretrained)
    # with a seed all of it repeats, to the bit on one kind of machine: there is nothing random to fail
    before, result = example.finetuned(tmp_path / "run", seed=0)
    assert result.epsilon <= 8
    assert before < 0.7
    assert result.accuracy > 0.8
    assert "Training this model spent ε = 7." in result.statement
    assert "unit of privacy: one comment" in result.statement
    directory = RunDirectory.open(tmp_path / "run")
    assert directory.finished
    assert directory.statement.read_text(encoding="utf-8") == result.statement
    frozen = {name: p for name, p in result.model.named_parameters() if not p.requires_grad}
    kept = [p for name, p in frozen.items() if ".original_module." not in name]
    assert all(any(p.shape == b.shape and torch.equal(p, b) for b in base.values()) for p in kept)
    trained = {name.split(".")[-3] for name, p in result.model.named_parameters() if p.requires_grad}
    assert trained == {"lora_A", "lora_B", "modules_to_save"}
