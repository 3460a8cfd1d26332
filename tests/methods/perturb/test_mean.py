"""Inputs without their mean: one record's influence on it, its cost, and that the released model subtracts it."""

import json
import math

import pytest
import torch
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import TensorDataset

from assay import Adjacency, ConfigError, Plan, Training, fit, methods
from assay.accounting.epsilon import epsilon, gaussian_epsilon
from assay.accounting.ledger import Ledger
from assay.data.records import Records
from assay.methods.perturb.mean import Centered, Mean, parse
from assay.models.inputs import adapt_as, scale_inputs
from assay.randomness.streams import OsSeeded, Seeded
from assay.runs.directory import RunDirectory
from assay.training.inputs import of_run
from assay.training.stages import release_stage, train_privately


def plan(**settings) -> Plan:
    return Plan(
        **{"records": 200, "batch_size": 40, "steps": 10, "noise_multiplier": 2.0, "delta": 1e-5}
        | {"center": Mean(noise=30)}
        | settings
    )


def mean_of(x: torch.Tensor, *, noise: float = 1.0, bound: float | None = None, seed: int = 0, count: int = 100):
    stage = Centered(Mean(noise=noise, bound=bound), count)
    records = Records(TensorDataset(x, torch.zeros(len(x), dtype=torch.int64)))
    found = stage.release(nn.Linear(1, 1), records, Seeded(seed), torch.device("cpu"), train_privately)
    return found["mean"].double()


@given(
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 1e6, math.inf, math.nan]),
    bound=st.sampled_from([None, 0.5]),
)
def test_one_record_moves_the_sum_by_at_most_the_bound(seed, scale, bound):
    """The noise is the same in both worlds, so that the difference is what the record did."""
    generator = torch.Generator().manual_seed(seed)
    others = torch.randn(7, 2, 3, generator=generator)
    one = torch.randn(1, 2, 3, generator=generator) * scale
    without, there = (mean_of(x, noise=1e-3, bound=bound) for x in (others, torch.cat([others, one])))
    limit = (math.sqrt(6) if bound is None else bound) / 100
    assert float((there - without).norm()) <= limit * (1 + 1e-5)  # what leaves is float32


def test_the_noise_is_that_of_its_event():
    x = torch.ones(3, 20_000)
    found = mean_of(x, noise=5.0, bound=1.0, count=10) * 10 - 3 / math.sqrt(20_000)
    # the relative error of a standard deviation of 20,000 numbers is 0.5 %; six of those are missed once in 5e8
    assert float(found.std()) == pytest.approx(5.0, rel=0.03)
    assert Centered(Mean(noise=5.0), 10).event() == GaussianDpEvent(5.0)


def test_it_is_part_of_the_plan_and_charged_first(tmp_path):
    p = plan()
    assert p.epsilon() > plan(center=None).epsilon()
    assert p.event() == ComposedDpEvent([ComposedDpEvent([GaussianDpEvent(30.0)]), p.steps_event(10)])
    found = Plan.calibrated(epsilon=1.0, delta=1e-5, records=1000, batch_size=100, epochs=2, center=Mean(noise=30))
    assert 0.999 <= found.epsilon() <= 1
    assert Plan.from_json(json.loads(json.dumps(found.to_json()))) == found
    x = TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
    result = fit(nn.Linear(4, 2), x, plan=p, training=Training(seed=1), out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert lines[1]["once"] is True
    assert lines[1]["event"]["events"] == [{"kind": "gaussian", "noise_multiplier": 30.0}]
    assert result.epsilon == pytest.approx(p.epsilon(), rel=0.01)
    assert result.record["parts"][0]["name"] == "mean of the inputs"
    assert (
        "Each input is first cut to norm √d, of d coordinates; their sum gets Gaussian noise of 30 times that norm"
        in result.statement
    )


def test_replacing_a_record_moves_the_sum_twice_as_far_and_costs_that():
    far = 100 * torch.ones(1, 4)
    here, there = (mean_of(torch.cat([torch.zeros(7, 4), one]), noise=1e-3, bound=1.0) for one in (far, -far))
    assert float((here - there).norm()) == pytest.approx(2 / 100, rel=1e-5)
    replaced = plan(adjacency=Adjacency.REPLACE_ONE, records=100)
    assert epsilon(replaced.stage_event, 1e-5, replaced.adjacency) == pytest.approx(
        gaussian_epsilon(15.0, 1e-5), rel=1e-9
    )
    x = TensorDataset(torch.randn(100, 4), torch.randint(0, 2, (100,)))
    result = fit(nn.Linear(4, 2), x, plan=replaced, training=Training(seed=1))
    assert result.record["parts"][0]["verified"] == pytest.approx(gaussian_epsilon(15.0, 1e-5), rel=1e-9)
    assert "| mean of the inputs | one whole record | – |" in result.statement
    assert "times as likely as with another in place of one record" in result.statement


def test_a_crash_after_the_release_does_not_make_another_one(tmp_path):
    p = plan()
    spec = {"plan": p.to_json(), "training": {}, "names": {}}
    stage, directory = p.stage, RunDirectory.create(tmp_path / "run", spec)
    records = Records(TensorDataset(torch.randn(200, 4), torch.zeros(200, dtype=torch.int64)))
    ledger = Ledger(directory.ledger, delta=p.delta, adjacency=p.adjacency, ceiling=None)
    asked = {"model": nn.Linear(4, 2), "records": records, "ledger": ledger, "device": torch.device("cpu")}
    first = release_stage(stage, randomness=OsSeeded(), directory=directory, **asked)
    again = release_stage(stage, randomness=OsSeeded(), directory=directory, **asked)
    assert torch.equal(first["mean"], again["mean"])
    assert ledger.event() == ComposedDpEvent([p.stage_event])


def test_the_model_that_leaves_subtracts_it():
    torch.manual_seed(0)
    x = TensorDataset(torch.randn(200, 4) + 5, torch.randint(0, 2, (200,)))
    model = nn.Linear(4, 2)
    result = fit(model, x, plan=plan(), training=Training(seed=1))
    mean = model.input_shift
    # Noise of 30 · 2 / 200 = 0.3 on the mean of inputs cut to norm 2, which is about 1 in each of four coordinates.
    assert float((mean - 1).abs().max()) < 6 * 0.3
    probe = torch.randn(3, 4)
    expected = torch.nn.functional.linear(probe - mean, model.weight, model.bias)
    torch.testing.assert_close(result.model(probe), expected)
    other = nn.Linear(4, 2)
    adapt_as(other, model.state_dict())
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(probe), expected)


def test_refusals():
    for text in ("median", "mean:noise=0", "mean:bound=-1"):
        with pytest.raises(ConfigError, match="center"):
            plan(center=parse(text))
    with pytest.raises(ConfigError, match="center"):
        plan(center="mean:noise=30")
    with pytest.raises(ConfigError, match="center"):
        plan(method=methods.get("afrrs"))
    scaled = nn.Linear(4, 2)
    scale_inputs(scaled, torch.ones(4))
    with pytest.raises(ConfigError, match="input_scale"):
        fit(scaled, TensorDataset(torch.randn(200, 4), torch.zeros(200, dtype=torch.int64)), plan=plan())
    words = TensorDataset(torch.zeros(200, 4, dtype=torch.int64), torch.zeros(200, dtype=torch.int64))
    with pytest.raises(ConfigError, match="floating-point"):
        fit(nn.Sequential(nn.Embedding(2, 2), nn.Flatten(), nn.Linear(8, 2)), words, plan=plan())


def test_from_the_command_line(assay, tmp_path):
    out = tmp_path / "run"
    given = ("--data", "digits", "--model", "linear-head", "--epochs", 3, "--center", "mean:noise=30", "--clip", 0.1)
    code, _, err = assay("train", *given, "--epsilon", 3, "--seed", 0, "--out", out)
    assert code == 0, err
    record = json.loads((out / "record.json").read_text())
    assert record["center"] == "mean:noise=30"
    assert 2.9 < record["epsilon"]["verified"] <= 3
    bundle, _ = of_run(json.loads((out / "run.json").read_text()), None, 0, instead="")
    assert bundle.input_shape == (1, 8, 8)
    code, _, err = assay("attack", out, "--attack", "loss")
    assert code == 0, err


def test_a_run_from_centred_weights_goes_on_with_their_mean_or_takes_its_own(assay, tmp_path):
    words = ("train", "--data", "digits", "--model", "linear-head", "--epochs", 2, "--clip", 0.1, "--seed", 0)
    assert assay(*words, "--center", "mean:noise=30", "--out", tmp_path / "first")[0] == 0
    start = tmp_path / "start.safetensors"
    weights = load_file(tmp_path / "first" / "model.safetensors")
    for name in weights.keys() - {"input_shift"}:  # as if of other records: a model of these is not trained again
        weights[name] = 1.001 * weights[name]
    save_file(weights, start)
    for name, more in {"kept": (), "own": ("--center", "mean:noise=40")}.items():
        code, _, err = assay(*words, *more, "--init", start, "--out", tmp_path / name)
        assert code == 0, err
        code, _, err = assay("attack", tmp_path / name, "--attack", "loss")
        assert code == 0, err
    first, kept, own = (load_file(tmp_path / n / "model.safetensors")["input_shift"] for n in ("first", "kept", "own"))
    assert torch.equal(kept, first)
    assert not torch.equal(own, first)
    code, _, err = assay(*words, "--method", "afrrs", "--init", start, "--out", tmp_path / "refused")
    assert code == 2
    assert "input_shift" in err
    assert not (tmp_path / "refused").exists()
