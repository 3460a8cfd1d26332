"""Callbacks: they see what is released, may end the run, and cost it nothing."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import Callback, Optimizer, Plan, Training, fit, resume
from assay.runs.callbacks import OnStep

PLAN = Plan(records=60, batch_size=20, steps=9, noise_multiplier=1.0, delta=1e-3)
AVERAGED = Training(optimizer=Optimizer(lr=0.5), seed=2, ema=0.5)


def records(seed: int = 0) -> TensorDataset:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x[:, :3].argmax(1))


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 3)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Notes(Callback):
    """Writes down what it sees."""

    def __init__(self):
        self.steps, self.epochs, self.models, self.ends = [], [], [], []

    def on_step(self, progress):
        self.steps.append(progress)

    def on_epoch(self, progress, model):
        assert not model.training
        assert not torch.is_grad_enabled()
        self.epochs.append(progress)
        self.models.append(weights(model))

    def on_end(self, result):
        self.ends.append(result)


class Broken(Callback):
    """Fails after this many steps."""

    def __init__(self, step):
        self.step = step

    def on_step(self, progress):
        if progress.step == self.step:
            raise ValueError("my own mistake")


def test_they_see_the_progress_the_released_model_and_the_result():
    notes = Notes()
    result = fit(network(), records(), plan=PLAN, test=records(1), training=AVERAGED, callbacks=[notes])
    assert [now.step for now in notes.steps] == list(range(1, 10))
    assert [now.step for now in notes.epochs] == [3, 6, 9]
    assert [now.epsilon for now in notes.epochs] == [entry["epsilon"] for entry in result.record["history"]]
    assert [now.accuracy for now in notes.epochs] == [entry["test_accuracy"] for entry in result.record["history"]]
    assert torch.equal(notes.models[-1], weights(result.model)), "the averaged weights"
    assert [end is result for end in notes.ends] == [True]


def test_a_run_that_is_watched_is_the_same_run():
    class Meddler(Callback):
        def on_epoch(self, progress, model):
            model.train()
            torch.randn(5)

    plain = fit(network(), records(), plan=PLAN, training=AVERAGED)
    watched = fit(network(), records(), plan=PLAN, training=AVERAGED, callbacks=[Notes(), Meddler()])
    assert torch.equal(weights(plain.model), weights(watched.model))
    assert plain.record["history"] == watched.record["history"]


@pytest.mark.parametrize("at", [3, 4])
@pytest.mark.parametrize("seed", [2, None])
def test_one_that_asks_to_stop_ends_a_finished_run_with_the_whole_epsilon(tmp_path, at, seed):
    """When a run ends follows from what was released: the ε of the steps taken would be too small."""
    notes = Notes()
    result = fit(
        network(),
        records(),
        plan=PLAN,
        test=records(1),
        training=Training(seed=seed),
        out=tmp_path / "run",
        callbacks=[notes, OnStep(lambda now: now.step == at)],
    )
    assert result.record["status"] == "stopped"
    assert not result.budget_spent
    assert (result.record["steps"], result.record["steps_charged"]) == (at, 9)
    assert result.epsilon == pytest.approx(PLAN.epsilon(), rel=1e-9)
    assert result.record["epsilon"]["claimed"] == pytest.approx(PLAN.claimed())
    assert result.record["history"][-1]["step"] == at
    assert float(result.record["history"][-1]["epsilon"]) == result.epsilon
    assert result.accuracy is not None
    assert "A callback ended this run before its planned last step" in result.statement
    assert len(notes.ends) == 1
    assert (tmp_path / "run/record.json").exists()
    assert not (tmp_path / "run/UNFINISHED.txt").exists()


def test_the_model_of_a_stopped_run_is_that_of_its_last_step():
    notes = Notes()
    fit(network(), records(), plan=PLAN, training=AVERAGED, callbacks=[notes])

    class Second(Callback):
        def on_epoch(self, progress, model):
            return progress.epoch > 1.5

    stopped = fit(network(), records(), plan=PLAN, training=AVERAGED, callbacks=[Second()])
    assert torch.equal(weights(stopped.model), notes.models[1])


def test_asking_to_stop_after_the_last_step_changes_nothing():
    result = fit(network(), records(), plan=PLAN, training=AVERAGED, callbacks=[OnStep(lambda now: now.step == 9)])
    assert result.record["status"] == "done"


@pytest.mark.parametrize("at", [1, 3, 5, 9])
def test_an_error_of_a_callback_loses_no_step(tmp_path, at):
    whole = fit(network(), records(), plan=PLAN, training=AVERAGED)
    with pytest.raises(ValueError, match="my own mistake"):
        fit(network(), records(), plan=PLAN, training=AVERAGED, out=tmp_path / "run", callbacks=[Broken(at)])
    steps = Notes()
    again = resume(network(), records(), tmp_path / "run", callbacks=[steps])
    assert [now.step for now in steps.steps] == list(range(at + 1, 10))
    assert torch.equal(weights(whole.model), weights(again.model))


def test_an_error_of_a_callback_costs_no_privacy(tmp_path):
    with pytest.raises(ValueError, match="my own mistake"):
        fit(network(), records(), plan=PLAN, out=tmp_path / "run", callbacks=[Broken(4)])
    assert resume(network(), records(), tmp_path / "run").record["steps_charged"] == 9


def test_an_error_at_the_end_leaves_a_finished_run(tmp_path):
    class Late(Callback):
        def on_end(self, result):
            raise ValueError("too late")

    with pytest.raises(ValueError, match="too late"):
        fit(network(), records(), plan=PLAN, out=tmp_path / "run", callbacks=[Late()])
    assert (tmp_path / "run/record.json").exists()
