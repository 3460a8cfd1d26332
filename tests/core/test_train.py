"""Whole runs: what they write, how they end, and that nothing is lost or under-reported when they are cut off."""

import json
import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

from assay import Adjacency, AssayError, ConfigError, Optimizer, Plan, Training, fit, resume
from assay.accounting.schedules import Banded
from assay.data.sampling import FullBatch, WithoutReplacement
from assay.errors import UnsupportedModelError
from assay.gradients.clipping import AdaptiveQuantile, Flat
from assay.runs.callbacks import OnStep
from assay.runs.result import InterruptedRunError
from assay.runs.statement import statement
from assay.training.settings import OPTIMIZERS


class CutOffError(BaseException):
    """Stands for a crash: raised out of the loop, with no chance to tidy up."""


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def cut_off_after(step: int):
    def watch(now):
        if now.step == step:
            raise CutOffError

    return OnStep(watch)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


SETTINGS = [
    Training(optimizer=Optimizer(lr=0.5, momentum=0.9, schedule="linear"), seed=11),
    Training(optimizer=Optimizer(name="adam", lr=0.01, schedule="cosine", warmup=0.2), seed=12, ema=0.9),
    Training(optimizer=Optimizer(name="adamw", lr=0.01, weight_decay=0.1), seed=13, max_physical_batch=6),
]


@pytest.mark.parametrize("training", SETTINGS, ids=["sgd", "adam", "adamw"])
@pytest.mark.parametrize("cut", [1, 6, 7, 11])
def test_a_seeded_run_cut_off_anywhere_ends_where_an_uninterrupted_one_ends(
    tmp_path, records, others, plan, training, cut
):
    whole = fit(make_model(), records, plan=plan, test=others, training=training, out=tmp_path / "whole")
    with pytest.raises(CutOffError):
        fit(
            make_model(),
            records,
            plan=plan,
            test=others,
            training=training,
            out=tmp_path / "cut",
            callbacks=[cut_off_after(cut)],
        )
    assert (tmp_path / "cut/UNFINISHED.txt").exists()
    assert not (tmp_path / "cut/record.json").exists()
    again = resume(make_model(), records, tmp_path / "cut", test=others)
    assert torch.equal(weights(whole.model), weights(again.model))
    for key in ("epsilon", "history", "result", "steps", "steps_charged", "status"):
        assert again.record[key] == whole.record[key], key
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_an_unseeded_run_cut_off_draws_anew_and_pays_for_the_lost_steps(tmp_path, records):
    plan = Plan(records=120, batch_size=20, steps=12, noise_multiplier=1.0, delta=1e-3)
    ceiling = plan.epsilon()
    plan = Plan(records=120, batch_size=20, steps=12, noise_multiplier=1.0, delta=1e-3, epsilon_limit=ceiling)
    with pytest.raises(CutOffError):
        fit(make_model(), records, plan=plan, out=tmp_path / "run", callbacks=[cut_off_after(9)])
    result = resume(make_model(), records, tmp_path / "run")
    record = result.record
    assert record["history"][0]["step"] == 6, "the finished epoch is not lost"
    # at least 9 steps were charged before the cut; 6 of them count, the rest are lost
    assert record["steps_charged"] >= 9 + (record["steps"] - 6)
    assert record["steps"] < 12
    assert record["status"] == "budget-spent"
    assert result.budget_spent
    assert record["epsilon"]["verified"] <= ceiling
    assert record["epsilon"]["verified"] > plan.epsilon(steps=record["steps"])


def test_a_finished_run_is_complete(tmp_path, records, others, plan, model):
    result = fit(model, records, plan=plan, test=others, out=tmp_path / "run", names={"model": "tiny", "data": "toy"})
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        ".gitignore",
        "README.md",
        "ledger.jsonl",
        "model.safetensors",
        "record.json",
        "run.json",
        "statement.md",
    ]
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert record == result.record
    assert record["schema"] == "assay.record/2"
    for key in [
        "method",
        "variant",
        "model",
        "data",
        "epsilon",
        "noise_multiplier",
        "clip",
        "sampling",
        "steps",
        "history",
        "result",
        "seed",
        "environment",
        "timing",
    ]:
        assert key in record, key
    assert set(record["epsilon"]) >= {"target", "claimed", "verified", "delta", "adjacency", "accountant"}
    assert set(record["sampling"]) == {"kind", "rate", "expected_batch_size"}
    assert [set(h) >= {"epoch", "step", "epsilon", "train_loss", "test_accuracy"} for h in record["history"]] == [
        True,
        True,
    ]
    assert record["epsilon"]["verified"] == pytest.approx(plan.epsilon(), rel=0.01)
    assert record["epsilon"]["claimed"] >= record["epsilon"]["verified"] * 0.99
    assert record["history"][-1]["epsilon"] == record["epsilon"]["verified"]
    spent = [h["epsilon"] for h in record["history"]]
    assert spent == sorted(spent)
    saved = load_file(tmp_path / "run/model.safetensors")
    assert all(torch.equal(saved[k], v) for k, v in result.model.state_dict().items())


def test_the_statement_tells_what_an_officer_asks(records, plan, model):
    text = fit(model, records, plan=plan, names={"unit": "one patient"}).statement
    for phrase in (
        "one patient",
        "add-or-remove-one",
        "δ = 0.001",
        "verified",
        "claimed",
        "audited",
        "Poisson sampling",
        "Not protected: the test records",
        "This statement covers this one run",
        "operating system",
    ):
        assert phrase in text, phrase
    assert "not private" not in text


@pytest.mark.parametrize(
    ("settings", "said", "not_said"),
    [
        ({}, "within 1 % of the exact one of what is charged. Cross-check by Rényi divergences", "not known"),
        ({"delta": 1e-30}, "Accountant: Rényi divergences (dp_accounting): an upper bound", "Cross-check"),
        (
            {"sampling": WithoutReplacement, "adjacency": Adjacency.REPLACE_ONE},
            "how close it is to the exact one is not known",
            "within 1 %",
        ),
        ({"noise_schedule": Banded(bands=2)}, "the exact cost is not known", "within 1 % of the exact one."),
        ({"sampling": FullBatch, "batch_size": 120}, "exact for what is charged", "within 1 %"),
        ({"adjacency": Adjacency.REPLACE_ONE}, "within 1 % of the exact one of what is charged", "Cross-check"),
    ],
)
def test_the_statement_says_which_bound_epsilon_is(records, plan, model, settings, said, not_said):
    of_run = replace(plan, steps=2, **settings)
    result = fit(model, records, plan=of_run)
    assert said in result.statement
    assert not_said not in result.statement
    record = json.loads(json.dumps(result.record))
    del record["epsilon"]["bound"]  # as records had it before
    assert "Rényi divergences (dp_accounting): an upper bound" in statement(record)


def test_a_fixed_seed_is_marked_as_not_private(records, plan, model):
    result = fit(model, records, plan=plan, training=Training(seed=5))
    assert "Reproducible, not private" in result.statement
    assert result.record["seed"] == 5


def test_no_noise_is_stated_as_no_privacy(records, model):
    plan = Plan(records=120, batch_size=20, steps=3, noise_multiplier=0.0, delta=1e-3)
    result = fit(model, records, plan=plan)
    assert result.record["epsilon"]["verified"] == "inf"
    assert "**No privacy.**" in result.statement
    assert result.epsilon == math.inf
    json.dumps(result.record, allow_nan=False)


def test_it_learns(records, others, model):
    plan = Plan(records=120, batch_size=60, steps=60, noise_multiplier=0.3, delta=1e-3)
    result = fit(model, records, plan=plan, test=others, training=Training(optimizer=Optimizer(lr=1.0), seed=1))
    assert result.accuracy > 0.85


def test_adaptive_clipping_survives_a_cut(tmp_path, records):
    plan = Plan(
        records=120, batch_size=20, steps=12, noise_multiplier=1.0, delta=1e-3, clip=AdaptiveQuantile(bound=9.0)
    )
    training = Training(seed=2)
    whole = fit(make_model(), records, plan=plan, training=training)
    with pytest.raises(CutOffError):
        fit(make_model(), records, plan=plan, training=training, out=tmp_path / "cut", callbacks=[cut_off_after(8)])
    again = resume(make_model(), records, tmp_path / "cut")
    assert torch.equal(weights(whole.model), weights(again.model))
    assert "by at most the bound in force at that step, which begins at 9 and follows" in again.statement
    assert "a step's sum by at most 9" not in again.statement


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_writes_a_checkpoint_and_wastes_no_step(tmp_path, records, plan, number):
    def watch(now):
        if now.step == 4:
            os.kill(os.getpid(), number)

    with pytest.raises(InterruptedRunError, match=r"stopped after step 4 of 12.*assay\.resume\(model, train"):
        fit(make_model(), records, plan=plan, out=tmp_path / "run", callbacks=[OnStep(watch)])
    result = resume(make_model(), records, tmp_path / "run")
    assert result.record["steps"] == result.record["steps_charged"] == 12
    assert result.record["status"] == "done"


def test_nothing_is_overwritten_unasked(tmp_path, records, plan):
    out = tmp_path / "run"
    fit(make_model(), records, plan=plan, out=out)
    before = (out / "record.json").read_text()
    with pytest.raises(ConfigError, match="finished"):
        fit(make_model(), records, plan=plan, out=out)
    assert (out / "record.json").read_text() == before
    fit(make_model(), records, plan=plan, out=out, force=True)
    assert (out / "record.json").read_text() != before
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="other files"):
        fit(make_model(), records, plan=plan, out=other, force=True)
    assert (other / "thesis.txt").read_text() == "precious"


def test_a_finished_run_is_not_resumed(tmp_path, records, plan):
    fit(make_model(), records, plan=plan, out=tmp_path / "run")
    with pytest.raises(AssayError, match="finished"):
        resume(make_model(), records, tmp_path / "run")


def test_a_run_at_work_is_neither_resumed_beside_itself_nor_replaced(tmp_path, records, plan):
    """Two that train in one directory would each leave the other's steps out of ε."""
    out = tmp_path / "run"
    refused = []

    def watch(now):
        for beside in (
            lambda: resume(make_model(), records, out),
            lambda: fit(make_model(), records, plan=plan, out=out, force=True),
        ):
            with pytest.raises(AssayError) as told:
                beside()
            refused.append(str(told.value))
        raise CutOffError

    with pytest.raises(CutOffError):
        fit(make_model(), records, plan=plan, out=out, callbacks=[OnStep(watch)])
    assert "in use" in refused[0]
    assert "a run is at work" in refused[1]
    result = resume(make_model(), records, out)
    assert result.record["steps"] == plan.steps
    assert result.record["steps_charged"] >= plan.steps


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, records, plan, monkeypatch):
    from assay.runs import checkpoint

    training = Training(seed=4)
    whole = fit(make_model(), records, plan=plan, training=training)
    real = checkpoint.save_file
    calls = []

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save_file", failing)
    with pytest.raises(OSError, match="No space"):
        fit(make_model(), records, plan=plan, training=training, out=tmp_path / "run")
    monkeypatch.undo()
    again = resume(make_model(), records, tmp_path / "run")
    assert torch.equal(weights(whole.model), weights(again.model))


def test_records_with_nan_do_no_harm(records, plan, model):
    x, y = records[:]
    x = x.clone()
    x[7] = math.nan
    result = fit(model, TensorDataset(x, y), plan=plan, training=Training(seed=1))
    assert bool(torch.isfinite(weights(result.model)).all())
    assert result.nonfinite > 0
    assert "nonfinite" not in json.dumps(result.record), "how often is not private, so it is not in the record"


def test_batchnorm_is_refused_with_the_fix(records, plan):
    from assay import UnsupportedModelError

    bad = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(UnsupportedModelError, match="replace_batchnorm"):
        fit(bad, records, plan=plan)


def weighted_by_the_batch(output, target):
    counts = torch.bincount(target, minlength=3)
    return nn.functional.cross_entropy(output, target, reduction="none") / counts[target]


def test_a_loss_that_mixes_records_is_refused(records, plan, model):
    """One record then changes what every other one's gradient is, and no clipping bounds that."""
    with pytest.raises(UnsupportedModelError, match="the loss mixes records"):
        fit(model, records, plan=plan, loss=weighted_by_the_batch)


class RunningCounts:
    """Weights by the counts of all batches so far."""

    def __init__(self):
        self.counts = torch.ones(3)

    def __call__(self, output, target):
        self.counts = self.counts + torch.bincount(target, minlength=3)
        return nn.functional.cross_entropy(output, target, reduction="none") / self.counts[target]


class CountsOfTheFirst(RunningCounts):
    """Weights by the counts of the first batch."""

    def __call__(self, output, target):
        if self.counts.sum() == 3:
            self.counts = self.counts + torch.bincount(target, minlength=3)
        return nn.functional.cross_entropy(output, target, reduction="none") / self.counts[target]


@pytest.mark.parametrize("loss", [RunningCounts(), CountsOfTheFirst()])
def test_a_loss_that_remembers_is_refused(records, plan, model, loss):
    with pytest.raises(UnsupportedModelError, match="the loss remembers"):
        fit(model, records, plan=plan, loss=loss)
    assert loss.counts.tolist() == [1, 1, 1], "and nothing of the trial is left in it"


def test_a_random_loss_that_mixes_records_is_refused(records, plan, model):
    def noisy(output, target):
        return weighted_by_the_batch(output + 0.01 * torch.randn_like(output), target)

    with pytest.raises(UnsupportedModelError, match="the loss mixes records"):
        fit(model, records, plan=plan, loss=noisy)


def test_a_mean_in_place_of_plain_losses_is_refused(records, plan, model):
    """Divided by the number of records in the batch, every loss changes when one joins."""

    def mean(output, target):
        return nn.functional.cross_entropy(output, target, reduction="none") / len(target)

    with pytest.raises(UnsupportedModelError, match="how many records there are"):
        fit(model, records, plan=plan, loss=mean)


class FirstMean(nn.Module):
    """Data-dependent initialisation: of a buffer, or of an attribute."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.seen = kind, None
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if self.kind == "buffer" and not self.ready:
            self.mean.copy_(x.detach().mean(0))
            self.ready.fill_(True)
        if self.kind == "attribute" and self.seen is None:
            self.seen = x.detach().mean(0)
        return x - (self.mean if self.seen is None else self.seen)


@pytest.mark.parametrize("kind", ["buffer", "attribute"])
def test_data_dependent_initialisation_is_refused_and_leaves_nothing(records, plan, kind, tmp_path):
    """The trial before a run must not be what fills it in, for the run to find nothing that is still written."""
    first = FirstMean(kind)
    with pytest.raises(UnsupportedModelError, match=r"writes into buffer|mixes records"):
        fit(nn.Sequential(first, nn.Linear(4, 3)), records, plan=plan, out=tmp_path / "run")
    assert not first.mean.any()
    assert first.seen is None
    assert not (tmp_path / "run").exists()


def test_a_loss_that_draws_random_numbers_is_trained_with_and_repeats(records, plan):
    def noisy(output, target):
        return nn.functional.cross_entropy(output, target, reduction="none") * (1 + torch.rand(len(target)))

    first, again = (fit(make_model(), records, plan=plan, loss=noisy, training=Training(seed=2)) for _ in range(2))
    assert torch.equal(weights(first.model), weights(again.model))


def test_a_regression_model_with_its_own_loss(records):
    x, _ = records[:]
    plan = Plan(records=120, batch_size=30, steps=4, noise_multiplier=1.0, delta=1e-3, clip=Flat(bound=1.0))
    result = fit(
        nn.Linear(4, 1),
        TensorDataset(x, x.sum(1, keepdim=True)),
        plan=plan,
        test=TensorDataset(x + 0.01, x.sum(1, keepdim=True)),
        loss=lambda out, target: (out - target).square().mean(1),
    )
    assert result.accuracy is None
    assert result.record["result"]["test_loss"] > 0


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"ema": 1.5}, "ema"),
        ({"seed": 1, "secure_rng": True}, "seed"),
        ({"max_physical_batch": 0}, "max_physical_batch"),
        ({"scale_from": 0}, "scale_from"),
        ({"scale_from": -256.0}, "scale_from"),
        ({"scale_from": math.inf}, "scale_from"),
        ({"scale_from": math.nan}, "scale_from"),
    ],
)
def test_bad_settings_are_named(settings, field):
    with pytest.raises(ConfigError) as caught:
        Training(**settings)
    assert caught.value.field == field


def test_settings_are_carried_over_to_another_batch_size():
    """κ = 1024/256 = 4: 0.9⁴ = 0.6561, and lr/(1 - β) = 1 becomes 4, so that lr is 4 · (1 - 0.6561).

    0.99⁴ = 0.96059601.
    """
    asked = Training(optimizer=Optimizer(lr=0.1, momentum=0.9), ema=0.99, scale_from=256)
    used = asked.at_batch(1024)
    assert used.optimizer.momentum == pytest.approx(0.6561, rel=1e-12)
    assert used.optimizer.lr == pytest.approx(1.3756, rel=1e-12)
    assert used.ema == pytest.approx(0.96059601, rel=1e-12)
    assert used.at_batch(4096) == used  # what was scaled is not scaled again
    assert Training(optimizer=Optimizer(lr=0.1, momentum=0.0), scale_from=256).at_batch(64).optimizer.lr == 0.025
    for name in ("adam", "adamw"):
        kept = Optimizer(name=name, lr=0.002, weight_decay=0.1, schedule="cosine", warmup=0.1)
        assert kept.scaled(9) == replace(kept, lr=0.006)
    assert asked.at_batch(256) == replace(asked, scale_from=None)
    # a tail is a part of the run at any batch size
    assert Training(tail=0.25, scale_from=256).at_batch(1024).tail == 0.25


def test_momentum_that_fades_away_is_none():
    used = Optimizer(lr=0.1, momentum=0.9).scaled(1e5)
    assert used.momentum == 0.0
    assert used.lr == pytest.approx(1e5)  # lr/(1 - β) = 1, times κ


@pytest.mark.parametrize(
    ("settings", "batch", "because"),
    [
        ({"optimizer": Optimizer(lr=1e30), "scale_from": 1e-300}, 1e3, "lr = inf"),
        ({"optimizer": Optimizer(lr=1e30, momentum=0.0), "scale_from": 1e-30}, 1e3, r"e\+62"),
        ({"optimizer": Optimizer(lr=1e-30, momentum=0.0), "scale_from": 1e200}, 1.0, "lr = 1e-230"),
        ({"optimizer": Optimizer(name="adam", lr=0.1), "scale_from": 1e-300}, 1.0, r"lr = 1e\+149"),
        ({"optimizer": Optimizer(momentum=0.9), "scale_from": 1e30}, 1.0, "lr = 0.0"),
        ({"ema": 0.99, "scale_from": 1e-3}, 1e3, "ema = 0.0"),
        ({"optimizer": Optimizer(momentum=0.0), "ema": 0.99, "scale_from": 1e30}, 1.0, "ema = 1.0"),
    ],
)
def test_nothing_useful_after_scaling_is_refused_before_anything_is_written(
    tmp_path, records, settings, batch, because
):
    with pytest.raises(ConfigError, match=because) as caught:
        Training(**settings).at_batch(batch)
    assert caught.value.field == "scale_from"
    plan = Plan(records=120, batch_size=30, steps=1, noise_multiplier=1.0, delta=1e-3, clip=Flat(bound=1.0))
    with pytest.raises(ConfigError, match="scale_from"):
        fit(make_model(), records, plan=plan, training=Training(ema=0.99, scale_from=1e-5), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_carried_over_is_the_run_with_those_settings(tmp_path, records, plan):
    asked = Training(optimizer=Optimizer(lr=0.1, momentum=0.9), ema=0.9, seed=3, scale_from=plan.batch_size / 4)
    with pytest.raises(CutOffError):
        fit(make_model(), records, plan=plan, training=asked, out=tmp_path / "cut", callbacks=[cut_off_after(5)])
    resumed = resume(make_model(), records, tmp_path / "cut")
    by_hand = fit(make_model(), records, plan=plan, training=asked.at_batch(plan.batch_size))
    assert torch.equal(weights(resumed.model), weights(by_hand.model))
    said = resumed.record["training"]
    assert (said["optimizer"]["lr"], said["optimizer"]["momentum"], said["ema"]) == (0.1, 0.9, 0.9)
    assert said["scale_from"] == plan.batch_size / 4
    assert said["scaled"] == pytest.approx({"lr": 1.3756, "momentum": 0.6561, "ema": 0.6561}, rel=1e-12)
    assert by_hand.record["training"].keys().isdisjoint({"scale_from", "scaled"})


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"name": "sdg"}, "optimizer"),
        ({"lr": 0.0}, "lr"),
        ({"lr": math.inf}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"lr": 1e300}, "lr"),
        ({"lr": 1e-300}, "lr"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": 1 - 1e-12}, "momentum"),
        ({"name": "adam", "momentum": 0.9}, "momentum"),
        ({"schedule": "step"}, "schedule"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"weight_decay": 1e300}, "weight_decay"),
        ({"name": "adamw", "lr": 1e30, "weight_decay": 1e30}, "weight_decay"),
        ({"warmup": 1.0}, "warmup"),
    ],
)
def test_bad_optimizer_settings_are_named(settings, field):
    with pytest.raises(ConfigError) as caught:
        Optimizer(**settings)
    assert caught.value.field == field


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_largest_settings_that_are_accepted_make_a_step(name):
    model = nn.Linear(2, 2)
    optimizer = Optimizer(name=name, lr=2e37, weight_decay=1.0).build(model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
