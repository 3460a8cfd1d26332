"""Somebody else's loop around a private run: what such loops do by themselves would make ε too small."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay import AssayError, ConfigError, Plan, UnsupportedModelError
from assay.data.records import Records
from assay.integrations.outside import OutsideRun
from assay.integrations.privacy import Privacy
from assay.runs import verify
from integrations import rows, tiny

pl = pytest.importorskip("lightning.pytorch")
transformers = pytest.importorskip("transformers")

from assay.integrations.lightning import PrivateCallback  # noqa: E402
from assay.integrations.transformers import PrivateTrainer  # noqa: E402

PLAN = Plan(records=40, batch_size=20, steps=6, noise_multiplier=1.0, delta=1e-3)


def records() -> Records:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, 9, (40, 5), generator=generator)
    lengths = torch.randint(2, 6, (40, 1), generator=generator)
    return Records(TensorDataset(words, torch.where(torch.arange(5) < lengths, words.flip(1), -100)))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))


def of_words(model: nn.Module, batch: Any) -> Tensor:
    words, labels = batch
    return F.cross_entropy(model(words).transpose(1, 2), labels, reduction="none", ignore_index=-100)


def by_own_words(model: nn.Module, batch: Any) -> Tensor:
    return of_words(model, batch).sum(1) / (batch[1] != -100).sum(1)


def by_words_of_the_batch(model: nn.Module, batch: Any) -> Tensor:
    """As `num_items_in_batch` of Hugging Face's loop: a long record makes the others' gradients smaller."""
    return of_words(model, batch).sum(1) / (batch[1] != -100).sum()


def begin(out: Path | None, losses: Any = by_own_words, kept: Any = None, model: nn.Module | None = None) -> OutsideRun:
    return OutsideRun(
        model or network(), losses, records(), PLAN, Privacy(plan=PLAN), out=out, training={}, resume_with="again",
        kept=kept,
    )  # fmt: skip


def go(private: OutsideRun, steps: int) -> Any:
    """Some steps of a loop; what it keeps in its checkpoint."""
    with private:
        for _ in range(steps):
            private.take()
            with torch.no_grad():
                for parameter in private.whole.parameters():
                    parameter -= 0.1 * parameter.grad
            private.follow()
        if private.is_spent:
            private.finish()
            return None
        return private.state()


def test_losses_divided_by_the_words_of_the_batch_are_refused(tmp_path):
    with pytest.raises(UnsupportedModelError):
        begin(tmp_path / "wrong", by_words_of_the_batch)
    assert not (tmp_path / "wrong").exists()
    go(begin(tmp_path / "right"), PLAN.steps)
    assert verify(tmp_path / "right").epsilon == pytest.approx(PLAN.epsilon(), rel=1e-9)


def emptied(out: Path) -> None:
    (out / "ledger.jsonl").unlink()


def moved_on(out: Path) -> None:
    """Another run with the same settings took its place, as when a loop starts over in its folder."""
    out.rename(out.with_name("before"))
    go(begin(out), 4)


@pytest.mark.parametrize("wrong", [emptied, moved_on, lambda out: out.rename(out.with_name("gone"))])
def test_a_checkpoint_is_continued_on_its_own_ledger_alone(wrong: Callable[[Path], Any], tmp_path):
    kept = go(begin(tmp_path / "run"), 4)
    early = kept | {"state": kept["state"] | {"step": 2}}  # a checkpoint from before the last
    left = tmp_path / "left"
    again = go(begin(left), 4)
    wrong(tmp_path / "run")
    with pytest.raises(AssayError, match=r"belongs to|damaged|is not what it was"):
        begin(tmp_path / "run", kept=early)
    go(begin(left, kept=again | {"state": again["state"] | {"step": 2}}), 4)
    found = verify(left)
    assert found.holds
    assert found.epsilon is not None
    assert found.epsilon > PLAN.epsilon()  # four steps, and four of them once more


def test_a_loop_that_leaves_a_step_out_or_ends_early_is_charged_all_the_same(tmp_path):
    with begin(tmp_path / "run") as private:
        private.take()  # the loop throws this gradient away, as a loss scaler does
        for parameter in private.whole.parameters():
            parameter.grad = None
        private.follow()
        assert private.step.ledger.total_steps >= 1
        private.finish()  # the loop stops because of what it saw
    found = verify(tmp_path / "run")
    assert found.holds
    assert found.epsilon == pytest.approx(PLAN.epsilon(), rel=1e-9)


def test_a_loop_without_a_directory_cannot_resume():
    with pytest.raises(ConfigError, match="ledger"):
        begin(None, kept=go(begin(None), 2))


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
def test_a_second_trainer_on_the_model_that_the_first_has_trained(bug):
    """As in a notebook whose cell runs again: the second run begins where the first ended."""
    model = network()
    go(begin(None, model=model), PLAN.steps)
    with pytest.raises(ConfigError, match="an earlier run has trained") if bug else contextlib.nullcontext():
        begin(None, model=model if bug else network()).close()


class Reaches(rows.Classifier):
    """Does not log by `self.log`, but by the logger itself."""

    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        self.trained = trained

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        losses = super().training_step(batch, batch_idx)
        if self.trained and self.logger is not None:
            self.logger.log_metrics({"raw": float(losses.mean())})
        return losses

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trained:
            self.logger.log_metrics({"raw": 1.0})


@pytest.mark.parametrize("bug", [True, False], ids=["bug", "twin"])
def test_a_training_step_of_lightning_that_reaches_for_the_logger(bug, tmp_path):
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[PrivateCallback(plan=rows.PLAN)], logger=logger,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, log_every_n_steps=1,
        default_root_dir=tmp_path,
    )  # fmt: skip
    loaders = [torch.utils.data.DataLoader(rows.data(seed), batch_size=20) for seed in (0, 1)]
    with pytest.raises(ConfigError, match="nothing in training_step") if bug else contextlib.nullcontext():
        trainer.fit(Reaches(trained=bug), *loaders)
    assert trainer.loggers == [logger]
    logger.save()
    written = [path.read_text() for path in tmp_path.rglob("metrics.csv")]
    assert any("raw" in text for text in written) is not bug


@pytest.mark.parametrize("bug", ["a copy", "by name", None], ids=["copy", "by name", "twin"])
def test_a_trainer_that_evaluates_on_a_copy_of_its_training_records(bug, tmp_path):
    """The objects differ, and the records are the same: exact losses of theirs would be logged."""
    other, same = tiny.records(tiny.sentence, 6, first=80), tiny.records(tiny.sentence, 6)
    tested = {"a copy": same, "by name": {"other": other, "same": same}, None: other}[bug]
    args = tiny.arguments(tmp_path, num_train_epochs=1, eval_strategy="epoch")
    private = PrivateTrainer(
        model=tiny.bert(), args=args, train_dataset=tiny.records(tiny.sentence), eval_dataset=tested,
        data_collator=tiny.padded, plan=tiny.PLAN,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="training records") if bug else contextlib.nullcontext():
        private.train()
    told = [name for entry in private.state.log_history for name in entry if "eval" in name]
    assert bool(told) is (bug is None)
