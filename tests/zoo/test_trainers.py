"""Somebody else's loop around a private run: what such loops do by themselves would make ε too small."""

from __future__ import annotations

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
    with pytest.raises(AssayError, match=r"belongs to|damaged"):
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
