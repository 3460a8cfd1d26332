"""`PrivateTrainer`: Hugging Face's `Trainer`, privately.

    trainer = PrivateTrainer(
        model=model, args=args, train_dataset=train, eval_dataset=test, data_collator=collator, epsilon=3, delta=1e-5
    )
    trainer.train()
    print(trainer.result.statement)

The loop is Hugging Face's: arguments, callbacks, schedulers, evaluation, checkpoints, adapters. What decides ε is not
(`assay.integrations.outside`): the loop sees neither batches nor training losses. Every argument that would change what
ε covers is refused by name.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_utils import get_last_checkpoint

from assay.accounting.budget import Budget
from assay.data.apart import check_tested
from assay.data.identity import contents as contents_of
from assay.data.persons import Ids
from assay.data.records import Loading, Records
from assay.errors import AssayError, ConfigError
from assay.gradients.clip_rules import ClipRule
from assay.integrations.given import check_dataset, check_together
from assay.integrations.outside import OutsideRun
from assay.integrations.privacy import Privacy
from assay.integrations.record_losses import decoder_inputs, predicts_next, record_losses
from assay.integrations.trainer_arguments import check_arguments, check_distribution
from assay.integrations.trainer_parts import STATE, Epochs, Follow, keep_in, kept_in, settings, usual_loss_bound
from assay.methods import Method
from assay.methods.plan import Plan
from assay.models import copies
from assay.runs.result import Result
from assay.training.preflight import check_precision

_RELIED_ON = (
    "_inner_training_loop",
    "_init_training_state",
    "_finalize_training",
    "_save_rng_state",
    "_load_rng_state",
    "get_batch_samples",
    "set_initial_training_values",
    "floating_point_ops",
    "_track_num_input_tokens",
    "_get_train_sampler",
    "_get_dataloader",
)
"""Methods of `Trainer` that we replace. A version without one of them would do behind our back what we replace."""


class PrivateTrainer(transformers.Trainer):
    """A `Trainer` whose `train` is differentially private.

    Guarantee: the model after every step, every checkpoint, every training loss that is logged, and the state of the
    optimizer are together (ε, δ)-differentially private, with the ε in `result` and in the run's statement. Nothing is
    said about `eval_dataset`, which is not protected, and about what a callback of yours reads from the training set.

    Batches are drawn by Poisson sampling, so that their sizes vary. Without a plan, the expected size is
    `per_device_train_batch_size` × `gradient_accumulation_steps` × processes, and `num_train_epochs` or `max_steps`
    says how long to train. `per_device_train_batch_size` is the largest number of records in memory at once, in any
    case.

    A record is one item of `train_dataset`, and has one loss: the mean over its own words or labels. Positions with the
    label -100 do not count.

    Args:
        *given: As for `Trainer`.
        plan: Everything that decides ε; then none of the next five is given.
        epsilon: The ε to stay within; 1 by default, unless `noise_multiplier` is given.
        delta: δ, 1e-5 by default.
        noise_multiplier: The noise; by default the least that stays within ε.
        method: How a step works, or its name.
        clip: A clipping rule, its text such as `auto:0.5`, or the bound of flat clipping; the method's by default.
        units: Whose each record is, where persons are protected: an id for each item of `train_dataset`.
        out: Where ledger, record and statement go; `privacy` in `output_dir` by default.
        force: Replace an earlier run there. Its ledger stays.
        seed: Makes noise and batches reproducible, and the run therefore not private. `args.seed` does not do that.
        loss_bound: The released training loss counts each record's loss up to here. By default 3, or the loss of
            guessing a word at random where the model predicts words.
        names: Describes model and data in the record.
        budget: What all runs on these records may spend together (`assay.Budget`), or its name. The run reserves its
            whole plan there, and gives back what it did not spend.
        budget_key: The file of the private key, for a budget that is signed.
        contents: What the budget recognises each record by; by default the items of the data set.
        **others: As for `Trainer`. `compute_loss_func(outputs, labels, num_items_in_batch=None)` gives one loss per
            record.

    Attributes:
        result: The model with its record and statement, after `train`.

    Raises:
        ConfigError: An argument would break the guarantee, or settings do not go together.
    """

    model: Any
    optimizer: Any

    def __init__(  # noqa: PLR0913 - what decides ε, each typed so that an editor completes it
        self,
        *given: Any,
        plan: Plan | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        method: Method | str | None = None,
        clip: ClipRule | float | str | None = None,
        units: Ids | None = None,
        out: str | Path | None = None,
        force: bool = False,
        seed: int | None = None,
        loss_bound: float | None = None,
        names: Mapping[str, Any] | None = None,
        budget: Budget | str | Path | None = None,
        budget_key: str | Path | None = None,
        contents: Iterable[bytes] | None = None,
        **others: Any,
    ) -> None:
        self.privacy = Privacy(
            plan=plan, epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, method=method, clip=clip,
            units=units, loss_bound=loss_bound, seed=seed, names=names, force=force, budget=budget,
            budget_key=budget_key, contents=contents,
        )  # fmt: skip
        self.result: Result | None = None
        self._private: OutsideRun | None = None
        self._stepping = False
        self._evaluated: list[Any] = []
        self._check_methods()
        arguments = inspect.signature(transformers.Trainer.__init__).bind_partial(self, *given, **others).arguments
        del arguments["self"]
        asked: Any = arguments.get("args") or transformers.TrainingArguments(output_dir="tmp_trainer")
        check_arguments(asked)
        if arguments.get("train_dataset") is not None:
            check_dataset(arguments["train_dataset"], "train_dataset")
        self._out = Path(asked.output_dir) / "privacy" if out is None else Path(out)
        self._accumulated = asked.gradient_accumulation_steps
        # `take` goes through the parts of a batch by itself, so that in the loop's eyes a step is one batch
        arguments["args"] = inner = copy.copy(asked)
        inner.gradient_accumulation_steps = 1
        super().__init__(**arguments)
        check_distribution(self)
        self.callback_handler.callbacks.insert(0, Follow(lambda: self._running))

    def _check_methods(self) -> None:
        """Refuse a version of transformers whose loop we do not know, and subclasses that draw batches themselves."""
        missing = [name for name in _RELIED_ON if not hasattr(transformers.Trainer, name)]
        if missing:
            raise ConfigError(
                "transformers", transformers.__version__, f"a version whose Trainer has {', '.join(missing)}"
            )
        for name in ("_get_train_sampler", "get_train_dataloader", "training_step"):
            if getattr(type(self), name) is not getattr(PrivateTrainer, name):
                raise ConfigError(
                    name,
                    f"overridden by {type(self).__name__}",
                    "the one of PrivateTrainer: the plan's sampler draws the batches, and ε holds for no others",
                )

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator, which leaves the model unwrapped: ranks meet in the private step alone."""
        super().create_accelerator_and_postprocess()
        self.accelerator.prepare_model = functools.partial(self.accelerator.prepare_model, evaluation_mode=True)

    # What is drawn

    def _get_train_sampler(self, train_dataset: Any = None) -> None:
        """None: the plan's sampler draws the batches."""

    def get_train_dataloader(self) -> Any:
        """The steps of one epoch at a time. They hold no records: `training_step` draws those.

        Raises:
            ConfigError: Nobody is training.
        """
        if self._private is None:
            raise ConfigError(
                "get_train_dataloader", "called outside train()", "train(): a batch that nobody charged for is no "
                "batch of this run. For evaluation use get_eval_dataloader",
            )  # fmt: skip
        return Epochs(self._private, self.train_dataset)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """As `Trainer`; the training records are refused, because no ε covers what is measured on them.

        Raises:
            ConfigError: The data set is the one that is trained on.
        """
        self._check_evaluated(self.eval_dataset if eval_dataset is None else eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def _check_evaluated(self, asked: Any) -> None:
        """Refuse to evaluate on records that are trained on; each data set is compared once."""
        several: Any = self.eval_dataset
        if isinstance(asked, str):  # the name of one of several
            asked = several[asked]
        for one in asked.values() if isinstance(asked, dict) else [asked]:
            if one is None or not hasattr(one, "__len__") or any(one is seen for seen in self._evaluated):
                continue
            if one is self.train_dataset:
                raise ConfigError(
                    "eval_dataset", "the training records", "other records: ε does not cover what is measured on these"
                )
            if self.train_dataset is not None:
                made = super()._get_dataloader(one, "Evaluation", self.args.eval_batch_size)
                check_tested(
                    self._records(), Records(made.dataset, loading=Loading(collate_fn=made.collate_fn)), "eval_dataset"
                )
            self._evaluated.append(one)

    def _records(self) -> Records:
        dataset: Any = self.train_dataset
        check_dataset(dataset, "train_dataset")
        if isinstance(self.data_collator, transformers.DataCollatorWithFlattening):
            raise ConfigError(
                "data_collator",
                "DataCollatorWithFlattening",
                "one that keeps records apart: pack them before training, or pad them",
            )
        made = super()._get_dataloader(dataset, "Training", self._train_batch_size)
        loading = Loading(
            collate_fn=made.collate_fn,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            prefetch_factor=self.args.dataloader_prefetch_factor or 2,
        )
        records = Records(made.dataset, loading=loading)
        check_together(records, "data_collator", self.data_collator, "DataCollatorWithPadding pads words, for example")
        return records

    # One step

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:  # noqa: ARG002
        """Take one private step. Returns the loss that it released, never the loss itself."""
        private = self._private
        if private is None or model is not self.model:
            raise AssayError("this step is not that of the private run: something else wrapped or replaced the model")
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        return torch.tensor(private.take() or 0.0, device=self.args.device)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002 - a count over the batch must not scale a record's loss
    ) -> Any:
        """One loss per record: the mean over its own words or labels.

        Args:
            model: The model.
            inputs: A batch.
            return_outputs: Whether to return the outputs as well.
            num_items_in_batch: Not used: it would make a record's loss depend on the others.

        Returns:
            The losses, and the outputs if asked for.

        Raises:
            ConfigError: We do not know the loss of such a model; `compute_loss_func` says it.
        """
        inner = self.accelerator.unwrap_model(model)
        inputs, labels = decoder_inputs(inner, inputs)
        outputs = model(**inputs)
        if self.compute_loss_func is not None:
            losses = self.compute_loss_func(outputs, labels, num_items_in_batch=None)
        else:
            losses = record_losses(
                outputs,
                labels,
                getattr(inner, "config", None),
                shifts=self._shifts,
                smoothing=self.args.label_smoothing_factor,
            )
        return (losses, outputs) if return_outputs else losses

    @property
    def _has_decoder(self) -> bool:
        """Whether the model is an encoder with a decoder."""
        return bool(getattr(getattr(self.model, "config", None), "is_encoder_decoder", False))

    @functools.cached_property
    def _shifts(self) -> bool:
        """Whether the model predicts the next word, as its own loss shows."""
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        words = type(base).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        guess = self._loss_shifts_labels or (words and not self._has_decoder)
        copied = copies.of_model(self.model)
        if copied is None or self.train_dataset is None:
            return bool(guess)
        records = self._records()
        some = (self._prepare_inputs(records.gather(torch.tensor([i]))) for i in range(min(8, len(records))))
        return predicts_next(copied.eval(), some, bool(guess))

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], None]:  # noqa: ARG002
        """One step, without a count of what is in its batch."""
        return [one for one in [next(epoch_iterator, None)] if one is not None], None

    def floating_point_ops(self, inputs: Any) -> int:  # noqa: ARG002
        """0: the true number tells how many records and words were drawn."""
        return 0

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Nothing: that number tells what was drawn."""

    # The run

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train privately. Record and statement are written at the end, and `result` holds them.

        Args:
            resume_from_checkpoint: A checkpoint of this run, or True for the last one in `output_dir`. Steps since then
                are taken again with fresh noise, and stay charged. A run with a seed repeats them.
            trial: Refused: every trial of a search costs privacy.
            ignore_keys_for_eval: As for `Trainer`.

        Returns:
            What `Trainer.train` returns; the loss in it is the released one.

        Raises:
            ConfigError: The settings do not go together, or the checkpoint is not one of this run.
            BudgetSpentError: No step is left.
        """
        if trial is not None:
            raise ConfigError("trial", trial, "none: every trial is a run of its own, with its own ε")
        folder = resume_from_checkpoint or None
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)  # type: ignore[no-untyped-call,unused-ignore]
            if folder is None:
                raise ConfigError("resume_from_checkpoint", True, f"a checkpoint in {self.args.output_dir}")
        if folder is not None:
            kept_in(Path(str(folder)))  # refuses a checkpoint of another trainer before it is loaded
        return super().train(resume_from_checkpoint=folder, ignore_keys_for_eval=ignore_keys_for_eval)

    def hyperparameter_search(self, *given: Any, **others: Any) -> Any:
        """Refused: every trial trains on the records, and its ε would have to be added up.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("hyperparameter_search", (given, others), "`assay tune`, which charges for every trial")

    def _inner_training_loop(
        self, batch_size: Any = None, args: Any = None, resume_from_checkpoint: Any = None, trial: Any = None,
        ignore_keys_for_eval: Any = None,
    ) -> Any:  # fmt: skip
        kept = None if resume_from_checkpoint is None else kept_in(Path(resume_from_checkpoint))
        with self._begin(kept) as self._private:
            try:
                return super()._inner_training_loop(
                    batch_size, args, resume_from_checkpoint, trial, ignore_keys_for_eval
                )
            finally:
                self._private = None

    def _begin(self, kept: Mapping[str, Any] | None) -> OutsideRun:
        """The run behind `train`, from its start or from a checkpoint."""
        args, model, trainer = self.args, self.model, self
        records = self._records()
        self._check_evaluated(self.eval_dataset)
        physical = args.per_device_train_batch_size
        batch = physical * self._accumulated * args.world_size
        counted = len(records) if self.privacy.units is None else len(set(map(str, self.privacy.units)))
        epochs = args.num_train_epochs if args.max_steps <= 0 else args.max_steps * batch / max(1, counted)
        plan = self.privacy.plan_for(model, records, batch_size=min(batch, counted), epochs=epochs)
        if args.max_steps > 0 and args.max_steps != plan.steps:
            raise ConfigError("max_steps", args.max_steps, f"{plan.steps}, as in the plan, or none")
        check_precision("bf16" if args.bf16 else "float32", args.device)

        def losses(model: nn.Module, batch: Any) -> Tensor:
            trainer._stepping = True
            try:
                with trainer.compute_loss_context_manager():
                    found = trainer.compute_loss(model, trainer._prepare_inputs(batch))
            finally:
                trainer._stepping = False
            if not isinstance(found, Tensor):
                raise ConfigError("compute_loss", type(found).__name__, "a tensor with one loss per record")
            return found.float() if found.dtype == torch.bfloat16 else found

        privacy = self.privacy
        own = self.compute_loss_func is not None or type(self).compute_loss is not PrivateTrainer.compute_loss
        if privacy.loss_bound is None and not own:
            words = self._shifts or self._has_decoder
            bound = usual_loss_bound(getattr(model, "config", None), words=words)
            privacy = replace(privacy, loss_bound=bound)
        if privacy.budget is not None and privacy.contents is None:  # with the columns that the loop leaves out
            items: Any = self.train_dataset
            privacy = replace(privacy, contents=contents_of(items))
        return OutsideRun(
            model,
            losses,
            records,
            plan,
            privacy,
            out=self._out,
            training=settings(self),
            resume_with="PrivateTrainer(...).train(resume_from_checkpoint=True) from Python",
            max_physical_batch=physical,
            kept=kept,
        )

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:  # noqa: ARG002
        """The numbers of the loop, which are the plan's."""
        private = self._running
        each, limit, records = private.steps_per_epoch, private.step.limit, private.plan.records
        epochs = math.ceil(limit / each)
        return epochs, each, records, records * epochs, round(private.plan.batch_size), each, limit

    def _init_training_state(self, *given: Any, **others: Any) -> tuple[int, int]:
        """The epoch to begin with. No batch is skipped: the run draws where it left off."""
        epochs, _ = super()._init_training_state(*given, **others)
        if self.state.global_step != self._running.step.taken:
            raise AssayError(
                f"the checkpoint's {STATE} was written after step {self._running.step.taken}, and its trainer state "
                f"after step {self.state.global_step}: they are not of one checkpoint"
            )
        return epochs, 0

    @property
    def _running(self) -> OutsideRun:
        assert self._private is not None
        return self._private

    def _finalize_training(self, *given: Any, **others: Any) -> Any:
        private = self._running
        private.stop()  # before the last log, which shows ε
        output = super()._finalize_training(*given, **others)  # type: ignore[no-untyped-call,unused-ignore]
        self.result = private.finish()
        if private.measured:
            return output
        metrics = {name: value for name, value in output.metrics.items() if name != "train_loss"}
        return type(output)(output.global_step, math.nan, metrics)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with ε. The loss in `logs` is the released one; where none is released, there is none.

        Raises:
            ConfigError: `compute_loss` logs: what it computes from the records is not covered by ε.
        """
        private = self._private
        if self._stepping:
            raise ConfigError("log", ", ".join(logs), "nothing in compute_loss: ε does not cover it. The released loss "
                              "is logged")  # fmt: skip
        if private is not None and not any(name.startswith("eval") for name in logs):
            if not private.measured:
                logs = {name: value for name, value in logs.items() if name not in ("loss", "train_loss")}
            logs = {**logs, "epsilon": private.epsilon()}
        super().log(logs, start_time)

    # Checkpoints

    def _save_rng_state(self, output_dir: str) -> None:
        """Write where the run is. Generators are not stored: whoever had their states would know the run's dropout."""
        state = self._running.state()
        if self.args.should_save:
            keep_in(Path(output_dir), state)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Nothing: a resumed run has fresh randomness."""
