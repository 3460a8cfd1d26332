"""The one training loop. `fit` and `resume` train a run; `train_again` repeats one for an audit and writes nothing.

A run charges before it moves (`assay.training.step`) and stops by itself when the plan or the budget ends. It writes a
checkpoint every epoch and when asked to stop, and resumes after a kill at any moment. With a seed, a resumed run on a
CPU ends with the bits of an uninterrupted one. Without a seed it continues with fresh randomness, and lost steps stay
charged.

Under `torchrun` all ranks train one model (`assay.distributed`). Only the leader has a directory with all files; the
others get from it what it reads there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from dp_accounting.dp_event import DpEvent
from torch import Tensor, nn
from torch.utils.data import Dataset

from assay.accounting.budget import Budget
from assay.accounting.ledger import Ledger
from assay.data.identity import contents as contents_of
from assay.data.loading import PLAIN, Loading
from assay.data.persons import Ids
from assay.data.records import Records, call, pair
from assay.data.task import Task
from assay.distributed.launch import restarted
from assay.distributed.world import ALONE, World, world
from assay.errors import AssayError, ConfigError
from assay.gradients.clip_rules import ClipRule
from assay.gradients.proof.losses import separate
from assay.gradients.proof.position import check_loss
from assay.methods import Method
from assay.methods.plan import Plan
from assay.methods.stage import Loss, Released, Stage
from assay.models.inputs import adapt_as
from assay.randomness.streams import Randomness, seed_torch
from assay.runs import budgeted, checkpoint
from assay.runs.callbacks import Callback
from assay.runs.directory import RunDirectory
from assay.runs.metrics import cross_entropy, loss_of
from assay.runs.progress import progress as show_progress
from assay.runs.record import Facts
from assay.runs.result import Result
from assay.runs.run import Run, Saved
from assay.runs.schema import CENTRAL
from assay.runs.statement import scored
from assay.training import augment
from assay.training.averaging import Average, moving, tail
from assay.training.batches import unit_records
from assay.training.course import StepCourse
from assay.training.meter import MeanLoss
from assay.training.planning import check_either, plan_for
from assay.training.preflight import check_precision, check_run
from assay.training.record import facts
from assay.training.settings import Training, pick_device, recorded, training_from_json, training_json
from assay.training.stages import release_stage
from assay.training.step import PrivateStep


def fit(
    model: nn.Module,
    train: Dataset[Any],
    *,
    plan: Plan | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    epochs: float | None = None,
    batch_size: float | None = None,
    noise_multiplier: float | None = None,
    method: Method | str | None = None,
    clip: ClipRule | float | str | None = None,
    test: Dataset[Any] | None = None,
    loss: Loss | None = None,
    task: Task | None = None,
    training: Training | None = None,
    out: str | Path | None = None,
    force: bool = False,
    names: Mapping[str, Any] | None = None,
    callbacks: Iterable[Callback] = (),
    units: Ids | None = None,
    budget: Budget | budgeted.Lease | str | Path | None = None,
    budget_key: str | Path | None = None,
    contents: Iterable[bytes] | None = None,
    loading: Loading = PLAIN,
    progress: bool | None = None,
) -> Result:
    """Train `model` in place on `train`, within ε or under a plan.

        assay.fit(model, train, epsilon=3, delta=1e-5, test=test)

    Without a plan the run is the one that `assay train` would make: the defaults are the same
    (`assay.training.defaults`). An interrupted run is continued by `resume`; ranks that torchrun has started again
    continue by themselves.

    Args:
        model: The model; it is trained in place.
        train: Yields (input, target).
        plan: Everything that decides ε, where you say it all; then none of the next seven is given.
        epsilon: The ε to stay within; 1 by default, unless `noise_multiplier` is given.
        delta: δ, 1e-5 by default.
        epochs: Passes over the records, 15 by default.
        batch_size: The expected batch size; 1024 by default, 4096 for rows of numbers, or an eighth of the records if
            that is less.
        noise_multiplier: The noise; by default the least that stays within ε.
        method: How a step works, or its name: `dpadam`.
        clip: A clipping rule, its text such as `auto:0.5`, or the bound of flat clipping; the method's by default.
        test: Records to measure accuracy on after every epoch. They are not protected.
        loss: `loss(output, target)` gives one value for each record. None is the loss of the task, or cross-entropy.
        task: What is predicted (`assay.data.Task`), which decides the loss and what is measured on `test`. None takes
            classes for granted where targets are whole numbers.
        training: How to train, apart from what decides ε; by default the method's optimizer.
        out: A new directory for checkpoints, ledger, record, statement and model. Without one nothing is written.
        force: Replace an earlier run in `out`.
        names: Describes model and data in the record.
        callbacks: See the released progress and the released model, and may end the run (`assay.Callback`).
        units: Whose each row of `train` is, if the plan's unit is a person: an id for each row.
        budget: What all runs on these records may spend together (`assay.Budget`), or its name. The run reserves its
            cost there first. A lease is one that was made before, for these records.
        budget_key: The file of the private key, for a budget that is signed.
        contents: What the budget recognises each record by, if `train` yields something else: features, random views.
        loading: How records are fetched and put together, for training and testing: `assay.data.Loading(collate_fn=...,
            num_workers=2)`. Batches may be dicts with `labels`; the model gets the rest by name.
        progress: Whether to show the progress on standard error. By default a bar is shown on a terminal and in a
            notebook; True prints a line for each epoch elsewhere.

    Returns:
        The model with its record, its privacy statement and what was measured on `test`.

    Raises:
        ConfigError: Before anything is trained or written, for settings that do not go together.
        BudgetSpentError: Before anything is trained or written, if the run does not fit into the budget.
        DataError: The budget is for other records.
        InterruptedRunError: The process was asked to stop; a checkpoint is written.

    >>> data = torch.utils.data.TensorDataset(torch.randn(80, 3), torch.randint(2, (80,)))
    >>> result = fit(torch.nn.Linear(3, 2), data, epsilon=3, delta=1e-3, epochs=1, test=data)
    >>> 2.99 < result.epsilon <= 3
    True
    >>> sorted(result.metrics)
    ['accuracy', 'auc', 'balanced_accuracy', 'calibration_error', 'f1', 'loss']
    """
    ranks = world()
    given: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "epochs": epochs,
        "batch_size": batch_size,
        "noise_multiplier": noise_multiplier,
        "method": method,
        "clip": clip,
    }
    check_either(plan, given)
    if plan is None:
        plan = plan_for(model, train, units=units, loading=loading, ranks=ranks.size, **given)
    training = Training.of_method(plan.method) if training is None else training
    if task is not None:
        names = {**(names or {}), "task": task.to_json()}
    loss = loss_of(_task(names or {})) if loss is None else loss
    if test is not None:
        Records(test, loading=loading).check_pairs("test")
    unit_records(Records(train), units, plan)
    plan = check_run(model, train, loss, plan, training, (names or {}).get("data"), ranks.size, loading=loading)
    lease = budget if isinstance(budget, budgeted.Lease) else None
    if budget is not None and not isinstance(budget, budgeted.Lease):
        _check_whole(train, plan, units, ranks)
        # a restarted rank has reserved already, and must not be refused by its own reservation
        lease = ranks.once(
            lambda: (
                _restarted_lease(out) or lease_for(budget, plan, contents or contents_of(train), names, out, budget_key)
            )
        )
    directory = None
    if out is not None:
        spec = {
            "kind": CENTRAL,
            "plan": plan.to_json(),
            "training": training_json(training),
            "names": dict(names or {}),
        }
        if lease is not None:
            spec[budgeted.FIELD] = lease.to_json()
        directory = ranks.once(lambda: _begun(Path(out), spec, force))
        if ranks.once(lambda: directory.finished):  # by ranks of which one was lost after that
            return _complete(model, directory, ranks)
    return _run(
        model,
        train,
        plan,
        test=test,
        loss=loss,
        training=training,
        directory=directory,
        names=names or {},
        callbacks=callbacks,
        ranks=ranks,
        lease=lease,
        units=units,
        loading=loading,
        progress=progress,
    )


def _check_whole(train: Dataset[Any], plan: Plan, units: Ids | None, ranks: World) -> None:
    """Refuse a share of the records on a rank: a budget recognises records, and the leader must see all of them."""
    there = (
        len(Records(train)) if units is None or plan.unit is None or not plan.unit.whole else len(set(map(str, units)))
    )
    if ranks.size > 1 and there < plan.records:
        raise ConfigError(
            "budget",
            f"{there} of {plan.records} records on this rank",
            "all records on every rank under a budget: it recognises each of them; ranks take shares by themselves",
        )


def lease_for(
    budget: Budget | str | Path,
    plan: Plan,
    contents: Iterable[bytes],
    names: Mapping[str, Any] | None,
    out: str | Path | None,
    key: str | Path | None,
) -> budgeted.Lease:
    """Check that a run fits into a budget; nothing is written.

    Args:
        budget: The budget, or its name.
        plan: What the run may release.
        contents: What its records are recognised by.
        names: Describes model and data.
        out: Where the run will be written, if anywhere.
        key: The file of the private key, for a budget that is signed.

    Returns:
        What goes into its `run.json`.

    Raises:
        ConfigError: The budget's unit or adjacency is another one.
        DataError: The budget is for other records.
        BudgetSpentError: The run does not fit.
    """
    known = names or {}

    def noisier(times: float) -> tuple[DpEvent, float]:
        more = replace(plan, noise_multiplier=times * plan.noise_multiplier, epsilon_limit=None, epsilon_claimed=None)
        return more.event(), more.epsilon()

    return budgeted.lease(
        budget,
        plan,
        contents,
        name="a run from Python" if out is None else str(out),
        what=f"{plan.method.name} on {known.get('data', 'unnamed data')}",
        key=key,
        by=known.get("operator"),
        noisier=noisier if plan.noise_multiplier > 0 else None,
    )


def _restarted_lease(out: str | Path | None) -> budgeted.Lease | None:
    """The lease of the run that ranks which were started again had begun."""
    if out is None or not restarted() or not (found := RunDirectory(Path(out))).spec.exists():
        return None
    return budgeted.Lease.from_json(found.read_spec().get(budgeted.FIELD))


def _run(
    model: nn.Module,
    train: Dataset[Any],
    plan: Plan,
    *,
    test: Dataset[Any] | None,
    loss: Loss,
    training: Training,
    directory: RunDirectory | None,
    names: Mapping[str, Any],
    callbacks: Iterable[Callback],
    ranks: World,
    lease: budgeted.Lease | None = None,
    units: Ids | None = None,
    loading: Loading = PLAIN,
    progress: bool | None = False,
) -> Result:
    """Run from the start, or from the checkpoint in `directory`, to the end."""
    used = training.at_batch(plan.batch_size)

    def begin(ledger: Ledger, directory: RunDirectory | None, saved: Saved | None) -> Loop:
        return Loop(
            model,
            train,
            plan,
            loss,
            used,
            ledger,
            ranks=ranks,
            directory=directory,
            saved=saved,
            units=units,
            loading=loading,
        )

    showing = show_progress(plan.epsilon_limit, leader=ranks.leader, scored=scored(names), lines=progress)
    with showing as shown:
        return Run(
            begin,
            plan=plan,
            training=recorded(training, used),
            names=names,
            test=None if test is None else Records(test, pick_device(training.device), loading),
            directory=directory,
            callbacks=[*callbacks, shown],
            ranks=ranks,
            lease=lease,
        ).go()


def _begun(out: Path, spec: dict[str, Any], force: bool) -> RunDirectory:
    """A new run's directory; for ranks that were started again, the directory of the run that they began."""
    if restarted() and (found := RunDirectory(out)).spec.exists():
        there = found.read_spec()
        if {key: there.get(key) for key in spec} == json.loads(json.dumps(spec)):
            return found
    return RunDirectory.create(out, spec, force=force)


def _complete(model: nn.Module, directory: RunDirectory, ranks: World) -> Result:
    """The result of a run that has all its files."""
    record, statement, tensors = ranks.once(
        lambda: (record := directory.read_record(), directory.read_statement(record), directory.read_model(record))
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
    loss: Loss | None = None,
    callbacks: Iterable[Callback] = (),
    units: Ids | None = None,
    loading: Loading = PLAIN,
    progress: bool | None = None,
) -> Result:
    """Continue the run in directory `out`, under the plan and settings it was started with.

    Args:
        model: A model of the same architecture, with its initial weights.
        train: The records of the run.
        out: The run's directory.
        test: As for `fit`.
        loss: As for `fit`.
        callbacks: As for `fit`.
        units: As for `fit`.
        loading: As for `fit`.
        progress: As for `fit`.

    Returns:
        What `fit` would have returned.

    Raises:
        AssayError: The run is finished.
        InterruptedRunError: The process was asked to stop; a checkpoint is written.
    """
    ranks = world()
    directory, spec = ranks.once(lambda: _unfinished(Path(out)))
    plan, training = Plan.from_json(spec["plan"]), training_from_json(spec["training"])
    lease = budgeted.Lease.from_json(spec.get(budgeted.FIELD))
    loss = loss_of(_task(spec["names"])) if loss is None else loss
    return _run(
        model,
        train,
        plan,
        test=test,
        loss=loss,
        training=training,
        directory=directory,
        names=spec["names"],
        callbacks=callbacks,
        ranks=ranks,
        lease=lease,
        units=units,
        loading=loading,
        progress=progress,
    )


def _task(names: Mapping[str, Any]) -> Task | None:
    """What a run predicts, by its names."""
    said = names.get("task")
    return None if said is None else Task.from_json(said)


def _unfinished(out: Path) -> tuple[RunDirectory, dict[str, Any]]:
    directory = RunDirectory.open(out)
    if directory.finished:
        raise AssayError(f"{out} is finished: there is nothing to resume")
    spec = directory.read_spec()
    if "resume_with" in spec:
        raise AssayError(f"{out} was trained in another loop, which keeps its checkpoints: {spec['resume_with']}")
    return directory, spec


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
    with closing(Loop(model, train, plan, loss, used, ledger, insertion, units=units)) as loop:
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
        insertion: Insertion | None = None,
        *,
        ranks: World = ALONE,
        directory: RunDirectory | None = None,
        saved: Saved | None = None,
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
            self.step = PrivateStep(
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
            if training.shard:
                self._shard()
            self.optimizer = training.optimizer.build(self.model)
            self.average = self._new_average()
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
        self.optimizer.step()
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
        return self.step.placement.whole(tensors | optimizer_tensors), state

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if self.average is not None:
            kept = _below("average.", tensors)
            self.average.load({n: self.step.placement.local(p, kept[n]) for n, p in self.model.named_parameters()})
        checkpoint.restore_optimizer(self.optimizer, tensors, state["optimizer"], self.step.placement.local)
        self.restore_step(state)

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
