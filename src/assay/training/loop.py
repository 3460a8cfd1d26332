"""The one training loop: `fit`.

It charges before it moves (`assay.training.step`), stops by itself when the plan or the budget ends, writes a checkpoint every
epoch and when asked to stop, and resumes after a kill at any moment: with a fixed seed to the bit where an
uninterrupted run ends (on a CPU), without one with fresh randomness, the lost steps staying charged.

Under `torchrun` all ranks train one model (`assay.distributed`). Only the leader has a directory, and with it all files; what it
reads from there it gives to the others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from dp_accounting.dp_event import NoOpDpEvent
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from assay.accounting.ledger import Ledger
from assay.data.records import Records
from assay.distributed.launch import restarted
from assay.distributed.world import ALONE, World, world
from assay.errors import AssayError, ConfigError
from assay.gradients.proof.isolation import separate
from assay.gradients.proof.position import check_loss
from assay.methods.plan import Plan
from assay.methods.stage import Loss
from assay.models.inputs import adapt_as
from assay.randomness.streams import Randomness, seed_torch
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory
from assay.runs.record import environment, finished_record, number
from assay.runs.result import InterruptedRunError, Progress, Result, cross_entropy, evaluate, finished
from assay.runs.statement import render
from assay.runs.stopping import stop_requests
from assay.training import augment
from assay.training.averaging import Average, moving, tail
from assay.training.meter import MeanLoss
from assay.training.preflight import checked
from assay.training.settings import Training, pick_device, recorded, training_from_json, training_json
from assay.training.stages import release_stage
from assay.training.step import PrivateStep


def fit(
    model: nn.Module,
    train: Dataset[Any],
    *,
    plan: Plan,
    test: Dataset[Any] | None = None,
    loss: Loss = cross_entropy,
    training: Training | None = None,
    out: str | Path | None = None,
    force: bool = False,
    names: Mapping[str, Any] | None = None,
    watch: Callable[[Progress], None] | None = None,
) -> Result:
    """Train `model` in place on `train` under `plan`; returns it with its record and its privacy statement.

    `train` yields (input, target); `loss(output, target)` gives one value a record. `out` names a new directory for
    checkpoints, ledger, record, statement and model. `names` describes model and data in the record. To go on with an
    interrupted run, call `resume`; ranks that torchrun has started again go on by themselves.
    """
    training, ranks = training or Training(), world()
    plan = checked(model, train, loss, plan, training, (names or {}).get("data"), ranks.size)
    directory = None
    if out is not None:
        spec = {"plan": plan.to_json(), "training": training_json(training), "names": dict(names or {})}
        directory = ranks.once(lambda: _begun(Path(out), spec, force))
        if ranks.once(lambda: directory.finished):  # by ranks of which one was lost after that
            return _complete(model, directory, ranks)
    return _Run(model, train, plan, test, loss, training, directory, names or {}, watch, ranks).go()


def _begun(out: Path, spec: dict[str, Any], force: bool) -> RunDirectory:
    """A new run's directory; or, for ranks that were started again, that of the very run which they had begun."""
    if restarted() and (found := RunDirectory(out)).spec.exists():
        there = found.read_spec()
        if {key: there.get(key) for key in spec} == json.loads(json.dumps(spec)):
            return found
    return RunDirectory.create(out, spec, force=force)


def _complete(model: nn.Module, directory: RunDirectory, ranks: World) -> Result:
    """The result of a run that has all its files."""
    record, statement, tensors = ranks.once(
        lambda: (directory.read_record(), directory.statement.read_text(encoding="utf-8"), load_file(directory.model))
    )
    adapt_as(model, tensors)
    model.load_state_dict(tensors)
    model.eval()
    return Result(
        model=model, record=record, statement=statement, directory=directory if ranks.leader else None, nonfinite=0
    )


def resume(
    model: nn.Module,
    train: Dataset[Any],
    out: str | Path,
    *,
    test: Dataset[Any] | None = None,
    loss: Loss = cross_entropy,
    watch: Callable[[Progress], None] | None = None,
) -> Result:
    """Go on with the run in directory `out`, under the plan and settings it was started with."""
    ranks = world()
    directory, spec = ranks.once(lambda: _unfinished(Path(out)))
    plan, training = Plan.from_json(spec["plan"]), training_from_json(spec["training"])
    return _Run(model, train, plan, test, loss, training, directory, spec["names"], watch, ranks).go()


def _unfinished(out: Path) -> tuple[RunDirectory, dict[str, Any]]:
    directory = RunDirectory.open(out)
    if directory.finished:
        raise AssayError(f"{out} is finished: there is nothing to resume")
    return directory, directory.read_spec()


class _Run:
    """One run, from its first step (or its checkpoint) to its record."""

    def __init__(
        self,
        model: nn.Module,
        train: Dataset[Any],
        plan: Plan,
        test: Dataset[Any] | None,
        loss: Loss,
        training: Training,
        directory: RunDirectory | None,
        names: Mapping[str, Any],
        watch: Callable[[Progress], None] | None,
        ranks: World = ALONE,
    ) -> None:
        self.world = ranks
        if not ranks.leader:  # all that is written or shown is the leader's
            directory, watch = None, None
        self.device = pick_device(training.device)
        # a model that is to be split may be larger than the device
        self.model = model.to("cpu" if training.shard else self.device).train()
        self.asked, training = training, training.at_batch(plan.batch_size)
        self.plan, self.loss, self.training, self.directory, self.names = (
            plan,
            loss,
            training,
            directory,
            names,
        )
        self.watch = watch or (lambda _: None)
        self.test = None if test is None else Records(test, self.device)
        self.meter = MeanLoss()
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        ledger = Ledger(
            None if directory is None else directory.ledger,
            delta=plan.delta,
            adjacency=plan.adjacency,
            ceiling=plan.epsilon_limit,
        )
        with ExitStack() as undo:  # what fails here leaves model and ledger to others
            undo.callback(ledger.close)
            ranks.once(ledger.claim)  # from here on the directory is this run's alone
            saved = ranks.once(
                lambda: (
                    checkpoint.load(directory.checkpoint)
                    if directory is not None and directory.checkpoint.exists()
                    else None
                )
            )
            if saved is not None:
                ranks.once(lambda: ledger.check_covers(saved[1]["step"]))
            randomness = training.randomness()
            self._stage(train, ledger, randomness)
            if saved is not None:
                self._restore_model(saved[0])
            # with exact noise the training loss is not released: its sum is one of floating-point numbers
            measured = plan.noise_multiplier > 0 and not plan.exact and not isinstance(plan.step_event, NoOpDpEvent)
            self.step = PrivateStep(
                self.model,
                plan,
                ledger=ledger,
                randomness=randomness,
                max_physical_batch=training.max_physical_batch,
                side=[self.meter] if measured else [],
                augment=None if training.augment is None else augment.parse(training.augment),
                taken=0 if saved is None else saved[1]["step"],
                world=ranks,
            )
            undo.callback(self.step.close)
            if training.shard:
                self._shard()
            self.optimizer = training.optimizer.build(self.model)
            self.average = None
            if training.ema is not None:
                self.average = Average(moving(training.ema), self.model)
            elif training.tail is not None:
                self.average = Average(tail(training.tail, plan.steps), self.model)
            if saved is not None:
                self._restore(*saved)
            self._close = undo.pop_all().close

    def _stage(self, train: Dataset[Any], ledger: Ledger, randomness: Randomness) -> None:
        """What the method does before training, if anything; sets the records and the loss that training has."""
        first = self.plan.stage
        if first is not None:
            if len(Records(train)) != self.plan.records:
                raise ConfigError(
                    "dataset",
                    f"{len(Records(train))} records",
                    f"all {self.plan.records} records on every rank with method {self.plan.method.name}, which releases something about "
                    "all of them before the first step",
                )
            released = self.world.once(
                lambda: release_stage(
                    first,
                    model=self.model,
                    records=Records(train, self.device),
                    ledger=ledger,
                    randomness=randomness,
                    device=self.device,
                    directory=self.directory,
                )
            )
            first.install(self.model, released)
            train, self.loss = first.records(train, released), first.loss(self.loss)
        self.train = Records(train, self.device)

    def _shard(self) -> None:
        records = Records(self.train.dataset)
        if len(records) < 2:
            raise ConfigError(
                "shard", True, "two records or more on every rank: the engine proves itself on them first"
            )
        inputs, targets = records.gather(torch.arange(2))
        self.step.shard(self.loss(self.model(inputs), targets), self.device)

    def go(self) -> Result:
        """Run to the end of the plan or of the budget."""
        try:
            with stop_requests() as stop:
                self._loop(stop)
            return self._finish()
        finally:
            self._close()

    def _loop(self, stop: Callable[[], bool]) -> None:
        step = self.step
        begun = time.monotonic() - self.seconds
        prepared, unseen = -1, True
        for inputs, targets in step.batches(self.train):
            if prepared != step.taken:
                prepared = step.taken
                self._prepare(prepared)
            outputs = self.training.outputs(self.model, inputs, self.device)
            if unseen:
                unseen = not separate(self.loss, outputs, targets)
                if self.plan.exact:
                    check_loss(self.loss, outputs, targets)
            if not step.backward(self.loss(outputs, targets)):
                continue
            self.optimizer.step()
            if self.average is not None:
                self.average.update(step.taken)
            self.seconds = time.monotonic() - begun
            at_end = self.plan.ends_epoch(step.taken) or step.taken == step.limit
            if at_end:
                self._epoch_end()
            self._tell(at_end)
            if self.world.any(stop()) and step.taken < step.limit:
                step.settle()
                self._save()
                kept = (
                    f", checkpoint written; resume with: assay resume {self.directory.path}" if self.directory else ""
                )
                raise InterruptedRunError(f"stopped after step {step.taken} of {step.limit} as asked{kept}")

    def _prepare(self, step: int) -> None:
        self.training.optimizer.set_lr(self.optimizer, step, self.plan.steps)
        if self.training.seed is not None:  # the model's own randomness (dropout) is part of what a fixed seed fixes
            seed_torch(self.step.randomness.stream(self.world.purpose("model"), step), self.device)

    def _epoch_end(self) -> None:
        self.step.settle()
        accuracy, test_loss = self._evaluate()
        self.history.append(
            {
                "epoch": round(self.plan.epochs_after(self.step.taken), 2),
                "step": self.step.taken,
                "epsilon": number(self.world.once(self.step.epsilon_taken)),
                "train_loss": self.meter.value,
                "test_accuracy": accuracy,
                "test_loss": number(test_loss),  # published noise can make it infinite
            }
        )
        self.meter.reset()
        self._save()

    def _tell(self, at_end: bool) -> None:
        last = self.history[-1] if self.history else {}
        self.watch(
            Progress(
                step=self.step.taken,
                steps=self.step.limit,
                epoch=self.plan.epochs_after(self.step.taken),
                loss=last.get("train_loss") if at_end else self.meter.value,
                epsilon=float(last["epsilon"]) if last else None,
                accuracy=last.get("test_accuracy"),
                epoch_end=at_end,
            )
        )

    def _save(self) -> None:
        self.step.placement.check(self.model)
        tensors = {f"model.{n}": t for n, t in self.model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average.{n}": t for n, t in self.average.values.items()}
        optimizer_tensors, optimizer_plain = checkpoint.optimizer_state(self.optimizer)
        state = {
            "step": self.step.taken,
            "optimizer": optimizer_plain,
            "history": self.history,
            "seconds": self.seconds,
            "meter": self.meter.state(),
            "chain": self.step.chain.state(),
        }
        tensors = self.step.placement.whole(tensors | optimizer_tensors)
        if self.directory is not None:
            checkpoint.save(self.directory.checkpoint, tensors, state)

    def _restore_model(self, tensors: dict[str, Tensor]) -> None:
        self.model.load_state_dict(_below("model.", tensors))

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if self.average is not None:
            kept = _below("average.", tensors)
            self.average.load({n: self.step.placement.own(p, kept[n]) for n, p in self.model.named_parameters()})
        checkpoint.restore_optimizer(self.optimizer, tensors, state["optimizer"], self.step.placement.own)
        self.history, self.seconds = state["history"], state["seconds"]
        self.meter.restore(state["meter"])
        self.step.chain.restore(state["chain"])

    def _evaluate(self) -> tuple[float | None, float | None]:
        if self.test is None:
            return None, None
        with self._final_weights(), torch.no_grad():
            self.model.eval()
            try:
                return evaluate(self.model, self.test, self.loss)
            finally:
                self.model.train()

    @contextmanager
    def _final_weights(self) -> Iterator[None]:
        """The averaged weights, if there are any, in place of the current ones."""
        if self.average is None:
            yield
            return
        with self.average.applied():
            yield

    def _last_result(self) -> tuple[float | None, float | None]:
        if not self.history:
            return self._evaluate()
        loss = self.history[-1]["test_loss"]
        return self.history[-1]["test_accuracy"], None if loss is None else float(loss)

    def _finish(self) -> Result:
        self.step.settle()
        accuracy, test_loss = self._last_result()
        record = self.world.once(
            lambda: finished_record(
                plan=self.plan,
                ledger=self.step.ledger,
                training=recorded(self.asked, self.training),
                names=self.names,
                steps=self.step.taken,
                history=self.history,
                result={"test_accuracy": accuracy, "test_loss": test_loss},
                seconds=self.seconds,
                environment=environment(),
            )
        )
        statement = render(record, self.plan, self.step.randomness.describe())
        if self.average is not None:
            self.average.apply()
        nonfinite = torch.tensor(self.step.nonfinite)
        self.world.sum([nonfinite])
        tensors = self.step.placement.whole(self.model.state_dict())
        return finished(self.model, record, statement, self.directory, int(nonfinite), tensors)


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
