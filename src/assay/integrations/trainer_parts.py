"""What `PrivateTrainer` puts into Hugging Face's loop: steps in place of batches, a callback, a file in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers

from assay._util import seals
from assay._util.files import replace_json
from assay.errors import ConfigError
from assay.integrations.outside import OutsideRun
from assay.runs import schema

STATE = "assay.json"
"""The file in every checkpoint that says which run it belongs to, and where that run was."""
_SCHEMA = "assay.outside/1"
_SHAPE: schema.Shape = {"run": str, "state": {"step": int, "meter": dict, "history": [dict], "seconds": (int, float)}}
_LEAST_BOUND = 3.0


class Follow(transformers.TrainerCallback):
    """Notes every step in the history of the run, before other callbacks look."""

    def __init__(self, running: Callable[[], OutsideRun]) -> None:
        self._running = running

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """The loop counts epochs from where it resumed; the run knows better."""
        private = self._running()
        state.epoch = private.step.taken / private.steps_per_epoch
        private.follow()


class Epochs:
    """What the loop takes for a loader: the steps that are left in an epoch, by their number."""

    def __init__(self, private: OutsideRun, dataset: Any) -> None:
        self._private, self.dataset = private, dataset

    def __len__(self) -> int:
        return self._private.steps_per_epoch

    def __iter__(self) -> Iterator[int]:
        private = self._private
        each = private.steps_per_epoch
        end = min(private.step.limit, (private.step.taken // each + 1) * each)
        return iter(range(private.step.taken, end))


def keep_in(folder: Path, state: Mapping[str, Any]) -> None:
    """Write into a checkpoint which run it belongs to, and where that run was.

    Args:
        folder: The checkpoint's.
        state: What `OutsideRun.state` says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    replace_json(folder / STATE, seals.sealed({"schema": _SCHEMA, **state}))


def kept_in(folder: Path) -> Mapping[str, Any]:
    """What a checkpoint says about its run.

    Args:
        folder: The checkpoint's.

    Raises:
        ConfigError: It is not a checkpoint of a private run.
        AssayError: The file is damaged.
    """
    path = folder / STATE
    if not path.is_file():
        raise ConfigError(
            "resume_from_checkpoint", str(folder), f"a checkpoint that PrivateTrainer wrote, with its {STATE}. To "
            "start from public weights, load them into the model",
        )  # fmt: skip
    kept = schema.read(path, {_SCHEMA: True})
    schema.check(path, kept, _SHAPE)
    return kept


def usual_loss_bound(config: Any, *, words: bool) -> float:
    """Up to where a record's loss counts in the released one: that of guessing at random, where words are predicted.

    Args:
        config: The model's.
        words: Whether the model predicts words.
    """
    return max(_LEAST_BOUND, math.log(getattr(config, "vocab_size", None) or 1)) if words else _LEAST_BOUND


def settings(trainer: Any) -> dict[str, Any]:
    """How the loop trains, for the record.

    Args:
        trainer: The trainer, before its loop begins.
    """
    args, made = trainer.args, trainer.optimizer
    optimizer = {
        "name": str(getattr(args.optim, "value", args.optim)) if made is None else type(made).__name__,
        "lr": args.learning_rate if made is None else made.param_groups[0]["lr"],
        "weight_decay": args.weight_decay,
        "schedule": str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
        "max_grad_norm": args.max_grad_norm,
    }
    return {
        "optimizer": optimizer,
        "device": str(args.device),
        "precision": "bf16" if args.bf16 else "float32",
        "loop": f"transformers {transformers.__version__}, Trainer",
    }
