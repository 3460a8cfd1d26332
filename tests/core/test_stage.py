"""What a method releases before training: charged first, released once, kept through crashes, never at the price of the
ceiling.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import Optimizer, Plan, PrivateStep, Training, fit, methods, resume
from assay.accounting.ledger import Ledger
from assay.errors import AssayError, BudgetSpentError, ConfigError
from assay.methods.perturb.segmentation import Segmentation
from assay.models.inputs import scale_inputs
from assay.randomness.streams import Seeded, Within
from assay.runs import checkpoint


def records(seed: int = 5) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(120) % 3
    return TensorDataset((torch.randn(120, 1, 6, 6, generator=generator) + y.view(-1, 1, 1, 1)).sigmoid(), y)


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Sigmoid(), nn.Linear(4, 3, bias=False))


def make_plan(epsilon: float = 4.0, **options: Any) -> Plan:
    method = methods.get("afrrs", **options)
    return Plan.calibrated(
        epsilon=epsilon,
        delta=1e-3,
        records=120,
        batch_size=20,
        steps=12,
        method=method,
        clip=method.clip,
    )


class CutOffError(Exception):
    """Stands for a crash."""


@pytest.fixture
def crash(monkeypatch):
    """Make a function of a class raise `CutOffError`, before or after it has done its work."""

    def patch(owner: Any, name: str, *, after: bool) -> Any:
        whole = getattr(owner, name)

        def cut(*arguments: Any, **settings: Any) -> Any:
            if after:
                whole(*arguments, **settings)
            raise CutOffError

        context = monkeypatch.context()
        active = context.__enter__()
        active.setattr(owner, name, cut)
        return context

    return patch


def once_entries(path) -> int:
    lines = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()[1:]]
    return sum(bool(line.get("once")) for line in lines)


def cut_off(crash, owner, name, path, *, after, plan, seed=None) -> None:
    context = crash(owner, name, after=after)
    with pytest.raises(CutOffError):
        fit(make_model(), records(), plan=plan, training=Training(seed=seed), out=path)
    context.__exit__(None, None, None)


def test_the_charge_is_on_disk_before_a_record_is_seen(crash, tmp_path):
    cut_off(crash, Segmentation, "release", tmp_path / "run", after=False, plan=make_plan())
    assert once_entries(tmp_path / "run") == 1
    assert not (tmp_path / "run/stage.safetensors").exists()


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_between_charge_and_answer_pays_again_and_stays_within_the_ceiling(crash, tmp_path, after):
    """Also where the answer was computed and lost: somebody may have seen it."""
    run, plan = tmp_path / "run", make_plan()
    cut_off(crash, Segmentation, "release", run, after=after, plan=plan)
    result = resume(make_model(), records(), run)
    assert once_entries(run) == 2
    assert result.budget_spent
    assert result.epsilon <= 4.0
    assert result.record["steps"] < 12


def test_a_second_charge_that_passes_the_ceiling_is_refused(crash, tmp_path):
    run, plan = tmp_path / "run", make_plan(share=0.6)
    cut_off(crash, Segmentation, "release", run, after=True, plan=plan)
    with pytest.raises(BudgetSpentError, match="a release before training"):
        resume(make_model(), records(), run)
    assert once_entries(run) == 1


def test_an_answer_that_was_kept_is_used_again_and_costs_nothing_more(crash, tmp_path):
    run, plan = tmp_path / "run", make_plan()
    cut_off(crash, Optimizer, "build", run, after=False, plan=plan)
    kept = checkpoint.load(run / "stage.safetensors")[0]["relevance"]
    result = resume(make_model(), records(), run)
    assert once_entries(run) == 1
    assert torch.equal(checkpoint.load(run / "stage.safetensors")[0]["relevance"], kept)
    assert not result.budget_spent
    assert result.record["steps"] == 12
    assert result.epsilon == pytest.approx(plan.epsilon(), rel=0.01)


def test_a_seeded_run_repeats_the_same_answer_and_pays_once(crash, tmp_path):
    run, plan = tmp_path / "run", make_plan()
    cut_off(crash, Segmentation, "release", run, after=True, plan=plan, seed=3)
    again = resume(make_model(), records(), run)
    whole = fit(make_model(), records(), plan=plan, training=Training(seed=3), out=tmp_path / "whole")
    assert once_entries(run) == 1
    assert again.record["epsilon"] == whole.record["epsilon"]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_an_answer_without_a_charge_is_refused(tmp_path, crash, monkeypatch):
    run, plan = tmp_path / "run", make_plan()
    cut_off(crash, Optimizer, "build", run, after=False, plan=plan)
    ledger = run / "ledger.jsonl"
    ledger.write_text(ledger.read_text().splitlines()[0] + "\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))  # as on a machine that remembers nothing
    with pytest.raises(AssayError, match="never charged"):
        resume(make_model(), records(), run)


def test_noisy_records_survive_a_crash_and_leave_with_the_finished_run(crash, tmp_path):
    run = tmp_path / "run"
    plan = make_plan(variant="published", objective="record", explain="private")
    cut_off(crash, Optimizer, "build", run, after=False, plan=plan)
    noisy = checkpoint.load(run / "records.safetensors")[0]
    assert noisy["inputs"].shape == (120, 1, 6, 6)
    assert not torch.allclose(noisy["inputs"], records().tensors[0], atol=0.1)
    resume(make_model(), records(), run)
    assert once_entries(run) == 1
    assert not (run / "records.safetensors").exists()
    assert set(checkpoint.load(run / "stage.safetensors")[0]) == {"relevance"}


def test_steps_alone_are_refused_where_the_stage_was_not_charged():
    """Steps of a published plan cost nothing because the records were released.

    On plain records that would be a lie.
    """
    plan = make_plan(variant="published", objective="record", explain="private").for_model(make_model())
    assert plan.event() != plan.steps_event(12)
    with pytest.raises(ConfigError, match="charged for what this method releases before its first step"):
        PrivateStep(make_model(), plan)
    with pytest.raises(ConfigError, match="charged"):
        PrivateStep(make_model(), make_plan(), ledger=Ledger(None, delta=1e-3, adjacency=plan.adjacency, ceiling=4.0))


def test_a_plan_counts_what_comes_before_the_steps():
    plan = make_plan(epsilon=2.0)
    assert 0.99 * 2 <= plan.epsilon() <= 2
    assert plan.epsilon(steps=1) > 0.9 * plan.epsilon(steps=0) > 0
    alone = Plan.calibrated(epsilon=2.0, delta=1e-3, records=120, batch_size=20, steps=12)
    assert plan.noise_multiplier > alone.noise_multiplier


def test_no_stream_of_a_stage_is_one_of_the_run():
    base = Seeded(1)
    inside = Within(base, "stage")
    for purpose in ("noise", "sample", "micro"):
        assert not torch.equal(inside.stream(purpose, 0).uniform(50), base.stream(purpose, 0).uniform(50))
        assert torch.equal(inside.stream(purpose, 0).uniform(50), Within(base, "stage").stream(purpose, 0).uniform(50))


def test_scaled_inputs_are_part_of_the_model_and_of_its_parameters_file():
    model, scale = make_model(), torch.linspace(0, 2, 36).view(1, 6, 6)
    x = records().tensors[0][:5]
    expected = model(x * scale)
    scale_inputs(model, torch.ones(1, 6, 6))
    scale_inputs(model, scale)  # in place of the first, not on top of it
    assert torch.equal(model(x), expected)
    assert torch.equal(copy.deepcopy(model)(x), expected)
    with pytest.raises(RuntimeError, match="input_scale"):
        make_model().load_state_dict(model.state_dict())


def test_a_trained_model_takes_plain_records(tmp_path):
    training = Training(optimizer=Optimizer(lr=0.3), seed=1)
    result = fit(make_model(), records(), plan=make_plan(), training=training, test=records(6), out=tmp_path / "run")
    x, y = records().tensors
    with torch.no_grad():
        assert float((result.model(x).argmax(1) == y).float().mean()) == pytest.approx(result.accuracy)
