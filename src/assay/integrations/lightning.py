"""`PrivateCallback`: a `Trainer` of Lightning trains privately.

    class Classifier(lightning.LightningModule):
        def training_step(self, batch, batch_idx):
            x, y = batch
            return F.cross_entropy(self.net(x), y, reduction="none")   # one loss per record
        ...

    private = PrivateCallback(epsilon=3, delta=1e-5, out="runs/clinic")
    lightning.Trainer(max_epochs=10, callbacks=[private]).fit(Classifier(), loader)
    print(private.result.statement)

The loop is Lightning's, with automatic optimization. What decides ε is not (`assay.integrations.outside`): the loop
gets step numbers in place of batches, and released losses in place of losses. Settings of the trainer that would change
what ε covers are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from assay.data.apart import check_tested
from assay.data.records import Loading, Records
from assay.errors import AssayError, ConfigError
from assay.integrations.given import check_together
from assay.integrations.lightning_kept import check_nothing_kept, traces
from assay.integrations.lightning_settings import check_loader, check_module, check_trainer
from assay.integrations.outside import OutsideRun
from assay.integrations.privacy import Privacy
from assay.runs.result import Result
from assay.training.preflight import check_precision

_REPLACED = ("training_step", "backward", "log", "log_dict")
"""What we replace on the module while it trains."""


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateCallback(Privacy, pl.Callback):
    """Makes `Trainer.fit` differentially private, for a module whose `training_step` returns one loss per record.

    Guarantee: the model after every step, every checkpoint, the training losses that this callback logs, and the state
    of the optimizer are together (ε, δ)-differentially private, with the ε in `result` and in the run's statement.
    Nothing is said about validation records, and about what other callbacks read from the training set.

    Batches are drawn by Poisson sampling from the data set of the training loader, in place of the loader's own
    sampler. Without a plan, the expected batch size is the loader's times the number of devices, and `max_epochs` or
    `max_steps` says how long to train. `epsilon` and `train_loss`, both released, are logged after every epoch.

    Args:
        plan: Everything that decides ε; then none of the next five is given.
        epsilon: The ε to stay within; 1 by default, unless `noise_multiplier` is given.
        delta: δ, 1e-5 by default.
        noise_multiplier: The noise; by default the least that stays within ε.
        method: How a step works, or its name.
        clip: A clipping rule, its text such as `auto:0.5`, or the bound of flat clipping; the method's by default.
        units: Whose each record is, where persons are protected: an id for each item of the data set.
        out: A new directory for ledger, record and statement. Without one nothing is written, and the run cannot be
            resumed.
        force: Replace an earlier run there. Its ledger stays.
        seed: Makes noise and batches reproducible, and the run therefore not private. `seed_everything` does not do
            that.
        loss_bound: The released training loss counts each record's loss up to here; 3 by default.
        max_physical_batch: The largest number of records in memory at once. Results do not change.
        names: Describes model and data in the record.
        budget: What all runs on these records may spend together (`assay.Budget`), or its name. The run reserves its
            whole plan there, and gives back what it did not spend.
        budget_key: The file of the private key, for a budget that is signed.
        contents: What the budget recognises each record by; by default the items of the data set.

    Attributes:
        result: The module with its record and statement, after `fit`.

    Raises:
        ConfigError: Settings do not go together; `fit` raises it for a trainer, module or loader that would break ε.
    """

    out: str | Path | None = None
    max_physical_batch: int | None = None
    result: Result | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._private: OutsideRun | None = None
        self._kept: Mapping[str, Any] | None = None
        self._last: dict[str, Any] = {}
        self._stepping = False
        self._released: list[float] = []
        self._validated: list[Any] = []

    # The run

    def setup(self, trainer: Any, pl_module: pl.LightningModule, stage: str) -> None:
        """Check the settings, and keep the model unwrapped: ranks meet in the private step, and nowhere else."""
        if stage != "fit":
            return
        check_trainer(trainer)
        check_module(trainer, pl_module)
        trainer.callbacks.remove(self)
        trainer.callbacks.insert(0, self)  # others see what we have made of a step
        strategy: Any = trainer.strategy
        if isinstance(strategy, DDPStrategy):
            setattr(strategy, "configure_ddp", _leave_unwrapped)  # noqa: B010 - a method

    def on_fit_start(self, trainer: Any, pl_module: pl.LightningModule) -> None:
        """Begin the run, or continue it from the checkpoint that the trainer has loaded."""
        if trainer.strategy.model is not pl_module:
            raise AssayError("something wrapped the module: its gradients would not be those of the private step alone")
        if trainer.ckpt_path is not None and self._kept is None:
            raise ConfigError(
                "ckpt_path", str(trainer.ckpt_path), "a checkpoint of a private run. To start from public weights, "
                "load them into the module",
            )  # fmt: skip
        source = trainer.fit_loop._data_source
        loader = check_loader(source.dataloader())
        records = Records(
            loader.dataset,
            loading=Loading(
                collate_fn=loader.collate_fn,
                num_workers=loader.num_workers,
                pin_memory=loader.pin_memory,
                prefetch_factor=loader.prefetch_factor or 2,
            ),
        )
        if not any(one.param_groups for one in trainer.optimizers):
            raise ConfigError("configure_optimizers", None, "one optimizer: without one nothing is trained")
        check_together(records, "collate_fn", loader.collate_fn, "torch.nn.utils.rnn.pad_sequence pads, for example")
        kept = None if trainer.ckpt_path is None else self._kept
        self._begin(trainer, pl_module, records, loader, kept)
        trainer.fit_loop._data_source = _DataLoaderSource(_Steps(self._running), "train_dataloader")

    def on_validation_start(self, trainer: Any, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """Refuse to validate on the training records, because no ε covers what is measured on them."""
        if self._private is None:
            return
        trained = self._private.records
        for loader in pytree.tree_leaves(trainer.val_dataloaders):
            dataset = getattr(loader, "dataset", None)
            if dataset is None or not hasattr(dataset, "__len__") or any(dataset is one for one in self._validated):
                continue
            if dataset is trained.dataset:
                raise ConfigError(
                    "val_dataloaders", "the training records", "other records: ε does not cover what is measured on "
                    "these",
                )  # fmt: skip
            check_tested(trained, Records(dataset, loading=Loading(collate_fn=loader.collate_fn)), "val_dataloaders")
            self._validated.append(dataset)

    def _begin(
        self,
        trainer: Any,
        module: pl.LightningModule,
        records: Records,
        loader: DataLoader[Any],
        kept: Mapping[str, Any] | None,
    ) -> None:
        counted = len(records) if self.units is None else len(set(map(str, self.units)))
        batch = min((loader.batch_size or 1) * trainer.world_size, counted)
        limited = trainer.max_epochs in (None, -1)
        epochs = trainer.max_steps * batch / max(1, counted) if limited else trainer.max_epochs
        plan = self.plan_for(module, records, batch_size=batch, epochs=epochs)
        precision = "bf16" if trainer.precision == "bf16-mixed" else "float32"
        check_precision(precision, module.device)
        self._take_over(module)
        try:
            self._private = OutsideRun(
                module,
                self._losses(trainer, type(module).training_step),
                records,
                plan,
                self,
                out=None if self.out is None else Path(self.out),
                training={
                    "optimizer": _optimizer(trainer),
                    "device": str(module.device),
                    "precision": precision,
                    "loop": f"lightning {version('lightning')}, Trainer",
                },
                resume_with="Trainer(callbacks=[PrivateCallback(...)]).fit(..., ckpt_path=...) from Python",
                max_physical_batch=self.max_physical_batch,
                kept=kept,
            )
        except BaseException:
            self._hand_back(module)
            raise

    def _losses(self, trainer: Any, user: Any) -> Any:
        indexed = is_param_in_hook_signature(user, "batch_idx", min_args=2)

        def losses(module: Any, batch: Any) -> Tensor:
            batch = move_data_to_device(trainer.precision_plugin.convert_input(batch), module.device)
            index = (max(0, trainer.fit_loop.batch_idx),) if indexed else ()
            before, self._stepping = traces(module), True
            loggers, trainer.loggers = trainer.loggers, [_NoLogger() for _ in trainer.loggers]
            try:
                with trainer.precision_plugin.train_step_context():
                    found = user(module, batch, *index)
            finally:
                self._stepping, trainer.loggers = False, loggers
            check_nothing_kept(module, before)
            found = found.get("loss") if isinstance(found, Mapping) else found
            if not isinstance(found, Tensor):
                raise ConfigError(
                    "training_step", found, "one loss per record: a step that is left out shows who was drawn"
                )
            return found.float() if found.dtype == torch.bfloat16 else found

        return losses

    def _take_over(self, module: pl.LightningModule) -> None:
        """Let the loop ask for steps: its closure calls `training_step`, clears `.grad` and calls `backward`."""
        callback, log, log_dict = self, module.log, module.log_dict

        def training_step(batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG001 - what Lightning looks for
            return torch.zeros((), requires_grad=True)

        def backward(loss: Tensor, *_given: Any, **_others: Any) -> None:  # noqa: ARG001
            released = callback._running.take()
            if released is not None:
                callback._released.append(released)

        def allowed(what: Any) -> None:
            if callback._stepping:
                raise _not_logged("log", what)

        def checked_log(name: str, *given: Any, **others: Any) -> None:
            allowed(name)
            log(name, *given, **others)

        def checked_log_dict(values: Any, *given: Any, **others: Any) -> None:
            allowed(", ".join(values))
            log_dict(values, *given, **others)

        for name, made in zip(_REPLACED, (training_step, backward, checked_log, checked_log_dict), strict=True):
            object.__setattr__(module, name, made)

    def _hand_back(self, module: pl.LightningModule) -> None:
        for name in _REPLACED:
            module.__dict__.pop(name, None)

    @property
    def _running(self) -> OutsideRun:
        if self._private is None:
            raise AssayError("no private run is under way: PrivateCallback trains in Trainer.fit alone")
        return self._private

    # Steps and epochs

    def on_train_start(self, trainer: Any, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """End at once where a resumed run has nothing left to spend."""
        trainer.should_stop = trainer.should_stop or self._running.is_spent

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: pl.LightningModule,  # noqa: ARG002
        outputs: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Note the step, and end the loop where the plan or the budget ends."""
        private = self._running
        private.follow()
        if isinstance(outputs, dict):
            outputs.clear()
            outputs["loss"] = torch.tensor(self._released[-1] if self._released else torch.nan)
        if private.is_spent:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """Log ε and the loss that was released in this epoch."""
        values = {"epsilon": self._running.epsilon()}
        if self._released:
            values["train_loss"] = sum(self._released) / len(self._released)
        self._released = []
        pl_module.log_dict(values)

    def on_train_end(self, trainer: Any, pl_module: pl.LightningModule) -> None:
        """Write record and statement."""
        self._last = self._running.state()
        self.result = self._running.finish()
        self._leave(pl_module)
        for logger in trainer.loggers:  # a run that ended early has spent the ε of its whole plan
            logger.log_metrics({"epsilon": self.result.epsilon}, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: pl.LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Leave the run unfinished; its ledger holds what was spent."""
        self._leave(pl_module, type(exception), exception, exception.__traceback__)

    def teardown(self, trainer: Any, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002
        """Give the module its own methods back."""
        if stage == "fit":
            self._leave(pl_module)

    def _leave(self, module: pl.LightningModule, *error: Any) -> None:
        self._hand_back(module)
        private, self._private = self._private, None
        if private is not None:
            private.close(*error)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Which run a checkpoint belongs to, and where that run was."""
        return self._last if self._private is None else self._private.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what a checkpoint says, until `fit` begins."""
        self._kept = state_dict


class _Steps:
    """What the loop takes for a loader: one number for each step of an epoch."""

    def __init__(self, private: OutsideRun) -> None:
        self._private = private

    def __len__(self) -> int:
        return self._private.steps_per_epoch

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the run itself knows where it is. Lightning warns about loaders without this."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to load."""

    def __iter__(self) -> Iterator[int]:
        for number in range(len(self)):
            if self._private.is_spent:
                return
            yield number


class _NoLogger:
    """Stands for every logger while `training_step` runs. What is computed from records there must not be logged."""

    def __getattr__(self, name: str) -> Any:
        raise _not_logged("logger", name)


def _not_logged(field: str, what: Any) -> ConfigError:
    return ConfigError(
        field, what, "nothing in training_step: ε does not cover what is computed from records there. The released "
        "loss is logged as train_loss",
    )  # fmt: skip


def _leave_unwrapped() -> None:
    """Do not wrap the model in DistributedDataParallel."""


def _optimizer(trainer: Any) -> dict[str, Any]:
    """The optimizer, for the record."""
    return {"name": type(one).__name__, "lr": one.param_groups[0]["lr"]} if (one := trainer.optimizers[0]) else {}
