"""`PrivateCallback`: Lightning's loop with ε as by `fit`, seeded runs to the bit, resuming, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, WeightedRandomSampler

from assay import ConfigError, Optimizer, Training, UnsupportedModelError, fit
from assay.runs import verify

pl = pytest.importorskip("lightning.pytorch")
torchmetrics = pytest.importorskip("torchmetrics")

from assay.integrations.lightning import PrivateCallback  # noqa: E402

from .rows import PLAN, Classifier, data  # noqa: E402


class Seen(pl.Callback):
    """What other callbacks get to see."""

    def __init__(self, *, stop: int = -1, fail: int = -1) -> None:
        self.outputs: list[Any] = []
        self.batches: list[Any] = []
        self.epsilons: list[float] = []
        self.stop, self.fail = stop, fail

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch)
        if trainer.global_step == self.fail:
            raise RuntimeError("power cut")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.outputs.append(outputs)
        if trainer.global_step == self.stop:
            trainer.should_stop = True

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        if "epsilon" in trainer.callback_metrics:
            self.epsilons.append(float(trainer.callback_metrics["epsilon"]))


def run(folder: Path, module: Any = None, *, seen: Seen | None = None, ckpt: Any = None, loader: Any = None,
        test: Any = None, saves: bool = False, given: dict[str, Any] | None = None,
        **settings: Any) -> Any:  # fmt: skip
    private = PrivateCallback(**({"plan": PLAN, "out": folder / "run"} | (given or {})))
    callbacks: list[Any] = [] if seen is None else [seen]
    if saves:
        callbacks.append(pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1))
    trainer = pl.Trainer(
        **({"max_epochs": 2, "accelerator": "cpu"} | settings), callbacks=[*callbacks, private], logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=saves, default_root_dir=folder,
    )  # fmt: skip
    module = Classifier() if module is None else module
    loader = DataLoader(data(), batch_size=20, shuffle=True) if loader is None else loader
    trainer.fit(module, loader, DataLoader(data(1) if test is None else test, batch_size=60), ckpt_path=ckpt)
    return private, module, trainer


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_seeded_run_is_that_of_fit_to_the_bit_and_others_see_released_values_only(tmp_path):
    seen = Seen()
    private, module, trainer = run(tmp_path, seen=seen, given={"seed": 4})
    net = Classifier().net
    training = Training(seed=4, optimizer=Optimizer(lr=0.5, momentum=0.0, schedule="constant"), device="cpu")
    result = fit(net, data(), plan=PLAN, training=training)
    assert same(module.net, net)
    assert private.result.epsilon == result.epsilon
    losses = [entry["train_loss"] for entry in result.record["history"]]
    assert [entry["train_loss"] for entry in private.result.record["history"]] == losses
    assert all(type(batch) is int for batch in seen.batches)
    released = [float(output["loss"]) for output in seen.outputs]
    assert [max(0.0, sum(released[i : i + 3]) / 3) for i in (0, 3)] == pytest.approx(losses)
    assert float(trainer.callback_metrics["epsilon"]) == pytest.approx(PLAN.epsilon(), rel=1e-6)
    assert verify(tmp_path / "run").holds
    assert "training_step" not in vars(module)
    assert "log" not in vars(module)


def test_double_precision_takes_records_in_single_precision(tmp_path):
    private, module, _ = run(tmp_path, precision="64-true")
    assert private.result.epsilon == private.plan.epsilon()
    assert {p.dtype for p in module.parameters()} == {torch.float64}


def test_validation_on_the_training_records_is_refused(tmp_path):
    same_records = data()
    for i, test in enumerate((same_records, data(), torch.utils.data.Subset(same_records, range(10)))):
        with pytest.raises(ConfigError, match="val_dataloaders"):
            run(tmp_path / str(i), loader=DataLoader(same_records, batch_size=20), test=test)


def test_a_run_in_parts_from_epsilon_alone(tmp_path):
    private, _, trainer = run(
        tmp_path, given={"plan": None, "epsilon": 2, "delta": 1e-3, "max_physical_batch": 7}, precision="bf16-mixed"
    )
    assert 1.9 < private.result.epsilon <= 2
    assert private.result.record["sampling"]["expected_batch_size"] == 20
    assert trainer.global_step == private.result.record["steps"] == 6


@pytest.mark.parametrize("seed", [None, 2])
def test_a_resumed_run_never_shows_less_and_a_seeded_one_has_the_bits_of_a_whole_one(seed, tmp_path):
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, seen=Seen(fail=5), saves=True, given={"seed": seed})
    (second,) = tmp_path.glob("*step=2.ckpt")
    private, module, _ = run(tmp_path, saves=True, ckpt=second, given={"seed": seed})
    charged = private.result.record["steps_charged"]
    assert private.result.record["steps"] == 6
    if seed is None:
        assert charged == 5 + 4  # five before, and from the third to the sixth once more
        assert private.result.epsilon > PLAN.epsilon()
    else:
        whole, other, _ = run(tmp_path / "whole", given={"seed": seed})
        assert same(module, other)
        assert private.result.epsilon == whole.result.epsilon
    for given, field in (({"out": None}, "out"), ({"out": tmp_path / "new"}, "out")):
        with pytest.raises(ConfigError) as found:
            run(tmp_path, ckpt=second, given=given)
        assert found.value.field == field


def test_a_run_with_nothing_left_to_spend_is_finished_with_the_model_of_its_checkpoint(tmp_path):
    class Fails(Seen):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == PLAN.steps:
                raise RuntimeError("power cut")

    plan = replace(PLAN, epsilon_limit=PLAN.epsilon())
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, seen=Fails(), saves=True, given={"plan": plan})
    (last,) = tmp_path.glob("*step=5.ckpt")
    private, _, _ = run(tmp_path, saves=True, ckpt=last, given={"plan": plan})
    assert private.result.budget_spent
    assert (private.result.record["steps"], private.result.record["steps_charged"]) == (5, 6)


def test_a_run_that_ends_early_is_charged_for_its_whole_plan(tmp_path):
    private, _, _ = run(tmp_path, seen=Seen(stop=2))
    assert private.result.record["status"] == "stopped"
    assert private.result.record["steps"] == 2
    assert private.result.epsilon == pytest.approx(PLAN.epsilon(), rel=1e-9)


def test_a_checkpoint_of_a_run_without_privacy_is_refused(tmp_path):
    class Mean(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx).mean()

    trainer = pl.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Mean(), DataLoader(data(), batch_size=20))
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(ConfigError, match="ckpt_path"):
        run(tmp_path, ckpt=tmp_path / "plain.ckpt")


def module_with(**members: Any) -> Any:
    return type("Changed", (Classifier,), members)()


def _logs(self: Any, batch: Any, batch_idx: int) -> Tensor:
    losses = Classifier.training_step(self, batch, batch_idx)
    self.log("train_loss", losses.mean())
    return losses


def _collects(self: Any, batch: Any, batch_idx: int) -> Tensor:
    losses = Classifier.training_step(self, batch, batch_idx)
    self.collected.append(losses.detach().mean())
    return losses


def _adds_up(self: Any, batch: Any, batch_idx: int) -> Tensor:
    losses = Classifier.training_step(self, batch, batch_idx)
    self.total = getattr(self, "total", 0.0) + float(losses.mean())
    return losses


class Counts(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.hits = torchmetrics.classification.MulticlassAccuracy(3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.hits(self.net(batch[0]), batch[1])
        return super().training_step(batch, batch_idx)


def with_list() -> Any:
    module = module_with(training_step=_collects)
    module.collected = []
    return module


def _mean(self: Any, batch: Any, batch_idx: int) -> Tensor:
    return Classifier.training_step(self, batch, batch_idx).mean()


def _mixes(self: Any, batch: Any, batch_idx: int) -> Tensor:
    losses = Classifier.training_step(self, batch, batch_idx)
    return losses / batch[1].float().mean()


REFUSED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "accumulate_grad_batches": ({"accumulate_grad_batches": 2}, ConfigError),
    "limit_train_batches": ({"limit_train_batches": 2}, ConfigError),
    "overfit_batches": ({"overfit_batches": 1}, ConfigError),
    "reload_dataloaders_every_n_epochs": ({"reload_dataloaders_every_n_epochs": 1}, ConfigError),
    "fast_dev_run": ({"fast_dev_run": True}, ConfigError),
    "precision": ({"precision": "bf16-true"}, ConfigError),
    "sampler": (
        {"loader": DataLoader(data(), batch_size=20, sampler=WeightedRandomSampler([1.0] * 60, 60))}, ConfigError,
    ),
    "drop_last": ({"loader": DataLoader(data(), batch_size=20, drop_last=True)}, ConfigError),
    "configure_optimizers": (
        {"module": lambda: module_with(configure_optimizers=lambda self: None)}, ConfigError,
    ),
    "max_epochs": ({"max_epochs": -1}, ConfigError),
    "collate_fn": ({"loader": DataLoader([(torch.ones(1 + i % 2), 0) for i in range(60)], batch_size=20)}, ConfigError),
    "train_dataloaders": ({"loader": [DataLoader(data()), DataLoader(data())]}, ConfigError),
    "automatic_optimization": ({"module": lambda: module_with(automatic_optimization=False)}, ConfigError),
    "backward": ({"module": lambda: module_with(backward=lambda self, loss: loss.sum().backward())}, ConfigError),
    "on_after_batch_transfer": (
        {"module": lambda: module_with(on_after_batch_transfer=lambda self, batch, i: batch)}, ConfigError,
    ),
    "log": ({"module": lambda: module_with(training_step=_logs)}, ConfigError),
    "losses kept in a list": ({"module": with_list}, ConfigError),
    "losses added up": ({"module": lambda: module_with(training_step=_adds_up)}, ConfigError),
    "hits counted in a metric": ({"module": Counts}, ConfigError),
    "a mean over the batch": ({"module": lambda: module_with(training_step=_mean)}, ConfigError),
    "a loss that depends on other records": (
        {"module": lambda: module_with(training_step=_mixes)}, UnsupportedModelError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_break_epsilon_is_refused_before_anything_is_written(name, tmp_path):
    settings, error = REFUSED[name]
    made = {key: value() if key == "module" else value for key, value in settings.items()}
    with pytest.raises(error) as found:
        run(tmp_path, **made)
    if " " not in name:
        assert found.value.field == name
    assert not (tmp_path / "run").exists()
