"""Runs of other people's loops under a budget: reserved, charged, given back, refused and resumed, as by `fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from assay import Budget, BudgetSpentError, DataError
from assay.data import contents

pl = pytest.importorskip("lightning.pytorch")
transformers = pytest.importorskip("transformers")

from assay.integrations.lightning import PrivateCallback  # noqa: E402
from assay.integrations.transformers import PrivateTrainer  # noqa: E402

from . import rows, tiny  # noqa: E402

Items = Dataset[Any] | list[Any]


def by_trainer(folder: Path, budget: Any, items: Items, *, stop: int | None = None, resume: bool = False) -> Any:
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == stop:
                raise RuntimeError("power cut")

    torch.manual_seed(0)
    args = tiny.arguments(folder, save_strategy="steps", save_steps=1)
    private = PrivateTrainer(
        model=tiny.bert(), args=args, train_dataset=items, data_collator=tiny.padded, plan=tiny.PLAN, budget=budget,
        callbacks=[Stop()],
    )  # fmt: skip
    private.train(resume_from_checkpoint=resume)
    return private.result


def by_lightning(folder: Path, budget: Any, items: Items, *, stop: int | None = None, resume: bool = False) -> Any:
    class Stop(pl.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == stop:
                raise RuntimeError("power cut")

    private = PrivateCallback(plan=rows.PLAN, out=folder / "run", budget=budget)
    saving = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=1, save_last=True)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[private, saving, Stop()], logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(rows.Classifier(), DataLoader(items, batch_size=20), ckpt_path="last" if resume else None)
    return private.result


LOOPS: dict[str, tuple[Callable[..., Any], Any, Callable[[], Items]]] = {
    "Trainer": (by_trainer, tiny.PLAN, lambda: tiny.records(tiny.sentence)),
    "Lightning": (by_lightning, rows.PLAN, rows.data),
}


@pytest.fixture(params=LOOPS)
def loop(request: Any) -> Any:
    return LOOPS[request.param]


def made(folder: Path, plan: Any, items: Items, runs: int) -> Budget:
    ceiling = 1.6 * plan.epsilon(steps=runs * plan.steps)
    return Budget.create(folder / "b", epsilon=ceiling, delta=plan.delta, contents=contents(items))


def test_runs_reserve_and_settle_until_one_does_not_fit(loop: Any, tmp_path: Path) -> None:
    train, plan, items = loop
    budget = made(tmp_path, plan, items(), 1)
    result = train(tmp_path / "1", budget, items())
    assert result.record["budget"]["spent"] == budget.state().spent(with_open=False) > 0

    def others() -> None:
        for i in range(9):
            train(tmp_path / f"{i + 2}", budget, items())

    with pytest.raises(BudgetSpentError):
        others()
    assert budget.state().spent() <= budget.epsilon
    assert not any(account.open for account in budget.state().accounts)


def test_a_budget_for_other_records_is_refused_before_anything_is_written(loop: Any, tmp_path: Path) -> None:
    train, plan, items = loop
    others = TensorDataset(torch.randn(len(items()), 5))
    budget = Budget.create(tmp_path / "b", epsilon=50, delta=plan.delta, contents=contents(others))
    with pytest.raises(DataError):
        train(tmp_path / "1", budget, items())
    assert not (tmp_path / "1" / "privacy").exists()
    assert not (tmp_path / "1" / "run").exists()


def test_a_run_that_broke_off_keeps_its_reservation_and_resumes_on_it(loop: Any, tmp_path: Path) -> None:
    train, plan, items = loop
    budget = made(tmp_path, plan, items(), 3)
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path / "1", budget, items(), stop=2)
    assert len(budget.state().accounts) == 1
    result = train(tmp_path / "1", None, items(), resume=True)  # it knows its budget
    assert result.record["budget"]["id"] == budget.id
    assert len(budget.state().accounts) == 1
