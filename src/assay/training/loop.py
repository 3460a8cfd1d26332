"""The one training loop: the steps of a central run. `train_again` repeats a run for an audit and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from assay.accounting.ledger import Ledger
from assay.data.persons import Ids
from assay.data.records import PLAIN, Loading, Records, call, pair
from assay.distributed.world import ALONE, World
from assay.errors import ConfigError
from assay.gradients.proof.losses import separate
from assay.gradients.proof.position import check_loss
from assay.methods.plan import Plan
from assay.methods.stage import Loss, Released, Stage
from assay.randomness.streams import Randomness, seed_torch
from assay.runs import checkpoint
from assay.runs.course import Saved
from assay.runs.directory import RunDirectory
from assay.runs.metrics import cross_entropy
from assay.runs.record import Facts
from assay.training import augment
from assay.training.averaging import Average, moving, tail
from assay.training.batches import unit_records
from assay.training.course import StepCourse
from assay.training.meter import MeanLoss
from assay.training.preflight import check_precision, check_run
from assay.training.record import facts
from assay.training.selecting import SelectiveStep, Selector
from assay.training.settings import Training, pick_device
from assay.training.stages import release_stage
from assay.training.step import PrivateStep


class Insertion:
    """What an audit puts into a run that it trains again. This one puts in nothing: the run is itself, to the bit."""

    def stage(self, plan: Plan) -> Stage | None:
        """What is released before the first step. It must cost what the stage of `plan` costs."""
        return plan.stage

    def records(self, data: Dataset[Any], device: torch.device) -> Records:
        """The records to train on; `data` are those that the stage leaves."""
        return Records(data, device)

    def by_unit(self, records: Records, ids: Ids | None, plan: Plan) -> Records:
        """The records as the plan's unit counts them; `ids` say whose each row of the run is."""
        return unit_records(records, ids, plan)

    def loss(self, own: Loss) -> Loss:
        """The loss to train with; `own` is the one that the stage leaves."""
        return own

    def attach(self, step: PrivateStep) -> None:
        """Called once, when the stage is done and before the first batch is drawn."""


def train_again(
    model: nn.Module,
    train: Dataset[Any],
    *,
    plan: Plan,
    loss: Loss = cross_entropy,
    training: Training | None = None,
    steps: int | None = None,
    insertion: Insertion | None = None,
    units: Ids | None = None,
) -> nn.Module:
    """Train `model` in place exactly as `fit` does, in this process alone, and write no file and no record.

    For audits and attacks, which repeat a run on records that they made themselves. With the plan, the settings and the
    seed of a run, and nothing inserted, the parameters are those of the run to the bit. The ledger is in memory: it
    holds the run to its plan's ceiling, and is thrown away.

    Args:
        model: The model; it is trained in place.
        train: Yields (input, target); what the stage of the plan sees, if it has one.
        plan: Everything that decides ε; its number of records includes those inserted.
        loss: `loss(output, target)` gives one value for each record.
        training: How to train. Settings are scaled to the batch size of `plan`: with more records than the run had,
            pass `training.at_batch(...)` of the run's own batch size.
        steps: How many of the plan's steps to take; all by default. Noise and learning rate of a step follow from its
            place in the whole plan.
        insertion: What to put into the run.
        units: Whose each row of `train` is, where the plan's unit is a person.

    Returns:
        The model as `fit` would release it, in eval mode.

    Raises:
        ConfigError: For settings that do not go together.
    """
    training = Training.of_method(plan.method) if training is None else training
    training = replace(training, shard=False)  # the ranks that a run was split over are not here
    plan = check_run(model, train, loss, plan, training, None, 1)
    ledger = Ledger(None, delta=plan.delta, adjacency=plan.adjacency, ceiling=plan.epsilon_limit)
    used = training.at_batch(plan.batch_size)
    with closing(Loop(model, train, plan, loss, used, ledger, insertion=insertion, units=units)) as loop:
        for _ in loop.advance(steps):
            pass
        loop.apply_average()
    return model.eval()


class Loop(StepCourse):
    """The steps of one run: the one place where a central run trains.

    It writes nothing except what a stage keeps in the directory. `ledger` is charged first.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Dataset[Any],
        plan: Plan,
        loss: Loss,
        training: Training,
        ledger: Ledger,
        *,
        directory: RunDirectory | None = None,
        saved: Saved | None = None,
        insertion: Insertion | None = None,
        ranks: World = ALONE,
        units: Ids | None = None,
        loading: Loading = PLAIN,
    ) -> None:
        """Run the stage, if there is one, and restore `saved`.

        `training` is scaled to the run's batch size; `directory` is where a stage keeps its release.
        """
        self.world, self.plan, self.loss, self.training, self.directory = ranks, plan, loss, training, directory
        self.insertion, self.loading = insertion or Insertion(), loading
        self.device = pick_device(training.device)
        check_precision(training.precision, self.device)  # a run may be resumed on another machine
        # a model that is to be split may be larger than the device
        self.model = model.to("cpu" if training.shard else self.device).train()
        self.meter = MeanLoss()
        where = None if directory is None else directory.checkpoint
        with ExitStack() as undo:  # an error here detaches the step from the model
            randomness = training.randomness()
            self.train = self.insertion.by_unit(self._run_stage(train, ledger, randomness), units, plan)
            if saved is not None:
                with checkpoint.fitting(where):
                    self.model.load_state_dict(_below("model.", saved[0]))
            kind = PrivateStep if plan.selection is None else SelectiveStep
            self.step = kind(
                self.model,
                plan,
                ledger=ledger,
                randomness=randomness,
                max_physical_batch=training.max_physical_batch,
                side=self.side(plan),
                augment=None if training.augment is None else augment.parse(training.augment),
                taken=0 if saved is None else saved[1]["step"],
                world=ranks,
            )
            undo.callback(self.step.close)
            if self._stage_answer is not None:
                stage, released = self._stage_answer
                self.step.chain = self.step.chain.followed_by(stage.denoisers(self.model, released))
            if training.shard:
                self._shard()
            self.optimizer = training.optimizer.build(self.model)
            self.average = self._new_average()
            self.selector = self._new_selector()
            if saved is not None:
                with checkpoint.fitting(where):
                    self._restore(*saved)
            self.insertion.attach(self.step)
            undo.pop_all()

    def _run_stage(self, train: Dataset[Any], ledger: Ledger, randomness: Randomness) -> Records:
        """What the method does before training, if anything; sets the loss of training and returns its records."""
        if (columns := self.plan.columns) is not None:
            self.world.once(lambda: ledger.pay_once(columns.event()))
        first = self.insertion.stage(self.plan)
        self._stage_answer: tuple[Stage, Released] | None = None
        if first is not None:
            there = len(self.insertion.records(train, self.device))
            lacking = self.plan.may_lack_records and first.takes_fewer and there < self.plan.records
            if there != self.plan.records and not lacking:
                raise ConfigError(
                    "dataset",
                    f"{len(Records(train))} records",
                    f"all {self.plan.records} records on every rank with method {self.plan.method.name}, which "
                    "releases something about all of them before the first step",
                )
            released = self.world.once(
                lambda: release_stage(
                    first,
                    model=self.model,
                    records=Records(train, self.device, self.loading),
                    ledger=ledger,
                    randomness=randomness,
                    device=self.device,
                    directory=self.directory,
                )
            )
            first.install(self.model, released)
            self._stage_answer = first, released
            train, self.loss = first.records(train, released), first.loss(self.loss)
        self.loss = self.insertion.loss(self.loss)
        records = self.insertion.records(train, self.device)
        return Records(records.dataset, self.device, self.loading) if type(records) is Records else records

    def tested(self, test: Records) -> Records:
        """The test records as the stage has them."""
        if self._stage_answer is None:
            return test
        stage, released = self._stage_answer
        found = stage.tested(test.dataset, released)
        return test if found is test.dataset else Records(found, self.device, self.loading)

    def _shard(self) -> None:
        records = Records(self.train.dataset, loading=self.loading)
        if len(records) < 2:
            raise ConfigError(
                "shard", True, "two records or more on every rank: the engine proves itself on them first"
            )
        inputs, targets = pair(records.gather(torch.arange(2)))
        self.step.shard(self.loss(call(self.model, inputs), targets), self.device)

    def _new_average(self) -> Average | None:
        if self.training.ema is not None:
            return Average(moving(self.training.ema), self.model)
        if self.training.tail is not None:
            return Average(tail(self.training.tail, self.plan.steps), self.model)
        return None

    def _new_selector(self) -> Selector | None:
        """What tests each step, for methods that do."""
        if self.plan.selection is None:
            return None

        def losses(inputs: Any, targets: Any) -> Tensor:
            found: Tensor = self.loss(self.training.outputs(self.model, inputs, self.device), targets)
            return found

        return Selector(
            self.plan.selection, self.step, self.train, losses, self.model, self.training.max_physical_batch
        )

    def advance(self, steps: int | None = None) -> Iterator[None]:
        """Take the steps of the plan, or the next `steps` of them, and pause after each."""
        step = self.step
        prepared, unseen = -1, True
        for batch in step.batches_or_none(self.train, steps):
            if prepared != step.taken:
                prepared = step.taken
                self._prepare(prepared)
            if batch is None:  # no record was drawn: noise alone, without a call of the model
                if step.backward_of_none():
                    self._move()
                    yield
                continue
            inputs, targets = pair(batch)
            outputs = self.training.outputs(self.model, inputs, self.device)
            if unseen or step.engine.proving:
                unseen = not separate(self.loss, outputs, targets, step.engine.coins) and unseen
                if self.plan.exact:
                    check_loss(self.loss, outputs, targets)
            if not step.backward(self.loss(outputs, targets)):
                continue
            self._move()
            yield

    def _move(self) -> None:
        """Let the optimizer step on the private gradient."""
        if self.selector is None:
            self.optimizer.step()
        else:
            self.selector.around(self.optimizer.step)
        if self.average is not None:
            self.average.update(self.step.taken)

    def _prepare(self, step: int) -> None:
        self.training.optimizer.set_lr(self.optimizer, step, self.plan.steps)
        if self.training.seed is not None:  # the model's own randomness (dropout) is part of what a fixed seed fixes
            seed_torch(self.step.randomness.stream(self.world.purpose("model"), step), self.device)

    def state(self) -> Saved:
        """What a later loop takes as `saved`."""
        self.step.placement.check(self.model)
        tensors = {f"model.{n}": t for n, t in self.model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average.{n}": t for n, t in self.average.values.items()}
        optimizer_tensors, optimizer_plain = checkpoint.optimizer_state(self.optimizer)
        state = {**self.step_state(), "optimizer": optimizer_plain}
        if self.selector is not None:
            state["kept"] = self.selector.kept
        return self.step.placement.whole(tensors | optimizer_tensors), state

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if self.average is not None:
            kept = _below("average.", tensors)
            self.average.load({n: self.step.placement.local(p, kept[n]) for n, p in self.model.named_parameters()})
        checkpoint.restore_optimizer(self.optimizer, tensors, state["optimizer"], self.step.placement.local)
        self.restore_step(state)
        if self.selector is not None:
            self.selector.kept = int(state["kept"])

    def note(self) -> dict[str, Any]:
        """How many steps were kept, where each is tested."""
        return super().note() | ({} if self.selector is None else {"kept": self.selector.kept})

    @contextmanager
    def released_model(self) -> Iterator[nn.Module]:
        """The model as it would be released now: averaged weights if there are any, in eval mode."""
        with ExitStack() as undo:
            if self.average is not None:
                undo.enter_context(self.average.applied())
            undo.callback(self.model.train)
            yield self.model.eval()

    def facts(self, names: Mapping[str, Any], *, stopped: bool) -> Facts:
        """What the record says of a central run."""
        return facts(self.plan, names, self.training.augment, self.step.randomness, self.step.taken, stopped=stopped)

    def finish(self) -> tuple[nn.Module, Mapping[str, Tensor] | None, int]:
        """The model with its averaged weights, its whole tensors, and the number of gradients that were not finite."""
        self.apply_average()
        return self.model, self.step.placement.whole(self.model.state_dict()), self.left_out()

    def apply_average(self) -> None:
        """End with the averaged weights, if there are any."""
        if self.average is not None:
            self.average.apply()


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
