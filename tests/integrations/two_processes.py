"""What two processes of `accelerate launch` run: each trainer, and a loop of one's own.

`two_processes.py OUT` writes what every process ends with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import accelerate
import lightning.pytorch as pl
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import nn

from assay import PrivateStep, Result
from assay.integrations.lightning import PrivateCallback
from assay.integrations.transformers import PrivateTrainer
from assay.randomness.streams import Seeded
from integrations.rows import PLAN as ROWS
from integrations.rows import Classifier, data
from integrations.tiny import PLAN, arguments, bert, padded, records, sentence

Outcome = tuple[nn.Module, float]


def _result(result: Result | None) -> float:
    assert result is not None
    return result.epsilon


def by_trainer(out: Path, **settings: Any) -> Outcome:
    torch.manual_seed(0)
    args = arguments(out / "trainer", save_strategy="steps", save_steps=2, per_device_train_batch_size=3)
    private = PrivateTrainer(
        model=bert(), args=args, train_dataset=records(sentence), eval_dataset=records(sentence, 6, first=80),
        data_collator=padded, plan=PLAN, seed=7, **settings,
    )  # fmt: skip
    private.train()
    assert private.evaluate()["eval_loss"] > 0
    return private.model, _result(private.result)


def by_lightning(out: Path, devices: int) -> Outcome:
    private = PrivateCallback(plan=ROWS, out=out / "lightning", seed=8)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto",
        callbacks=[private], logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=out / "folder",
    )  # fmt: skip
    module = Classifier()
    module.net[2] = nn.Identity()  # processes drop out other units
    trainer.fit(module, torch.utils.data.DataLoader(data(), batch_size=10, shuffle=True))
    return module, _result(private.result)


def by_loop(_out: Path) -> Outcome:
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(2)
    model = nn.Linear(5, 3).to(accelerator.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = PrivateStep(model, ROWS, randomness=Seeded(9))
    for x, y in step.batches(data()):
        if step.backward(F.cross_entropy(model(x.to(accelerator.device)), y, reduction="none")):
            optimizer.step()
    step.close()
    return model, step.epsilon()


def outcomes(out: Path, devices: int) -> dict[str, Outcome]:
    transformers.logging.set_verbosity_error()
    return {"trainer": by_trainer(out), "lightning": by_lightning(out, devices), "loop": by_loop(out)}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    rank = accelerate.PartialState(cpu=True).process_index
    for name, (model, epsilon) in outcomes(folder, 2).items():
        save_file({n: p.detach().clone() for n, p in model.named_parameters()}, folder / f"{name}-{rank}.safetensors")
        (folder / f"{name}-{rank}.json").write_text(json.dumps(epsilon))
