"""`fit` trains a run, and `resume` continues one: checks, budget, directory, and then the loop.

A run charges before it moves (`assay.training.step`) and stops by itself when the plan or the budget ends. It writes a
checkpoint every epoch and when asked to stop, and resumes after a kill at any moment. With a seed, a resumed run on a
CPU ends with the bits of an uninterrupted one. Without a seed it continues with fresh randomness, and lost steps stay
charged.

Under `torchrun` all ranks train one model (`assay.distributed`). Only the leader has a directory with all files; the
others get from it what it reads there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent
from torch import nn
from torch.utils.data import Dataset

from assay.accounting.budget import Budget
from assay.data.apart import check_tested
from assay.data.identity import contents as contents_of
from assay.data.persons import Ids
from assay.data.records import PLAIN, Loading, Records, units_of
from assay.data.task import KINDS, Task
from assay.distributed.launch import restarted
from assay.distributed.world import World, world
from assay.errors import AssayError, ConfigError
from assay.gradients.clip_rules import ClipRule
from assay.methods import Method
from assay.methods.plan import Plan
from assay.methods.stage import Loss
from assay.models.inputs import adapt_as
from assay.runs import budgeted
from assay.runs.callbacks import Callback
from assay.runs.callbacks import progress as show_progress
from assay.runs.directory import RunDirectory
from assay.runs.metrics import loss_of
from assay.runs.result import Result
from assay.runs.run import Run
from assay.runs.schema import CENTRAL
from assay.runs.statement import scored
from assay.training.batches import unit_records
from assay.training.loop import Loop
from assay.training.planning import check_either, plan_for
from assay.training.preflight import check_run
from assay.training.settings import Training, pick_device, recorded, training_from_json, training_json
from assay.training.trained import TrainedOn, check_untrained


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
        units: Whose each row of `train` is, if the plan's unit is a person: an id for each row. Rows that were loaded
            with a unit know it themselves.
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

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.randn(90, 3), torch.randint(2, (90,)))
    >>> train, test = torch.utils.data.random_split(data, [80, 10])
    >>> result = fit(torch.nn.Linear(3, 2), train, epsilon=3, delta=1e-3, epochs=1, test=test)
    >>> 2.99 < result.epsilon <= 3
    True
    >>> sorted(result.metrics)
    ['accuracy', 'auc', 'balanced_accuracy', 'calibration_error', 'commonest', 'f1', 'loss']
    """
    _check_kinds(model, task, callbacks := tuple(callbacks))
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
    units = units_of(train) if units is None else units
    if plan is None:
        plan = plan_for(model, train, units=units, loading=loading, ranks=ranks.size, **given)
    training = Training.of_method(plan.method) if training is None else training
    if task is not None:
        names = {**(names or {}), "task": task.to_json()}
    loss = loss_of(_task(names or {})) if loss is None else loss
    if test is not None:
        Records(test, loading=loading).check_pairs("test")
        check_tested(Records(train, loading=loading), Records(test, loading=loading))
    unit_records(Records(train), units, plan)
    check_untrained(model, Records(train, loading=loading), budget=ranks.once(budgeted.id_of, budget))
    plan = check_run(model, train, loss, plan, training, (names or {}).get("data"), ranks.size, loading=loading)
    lease = budget if isinstance(budget, budgeted.Lease) else None
    if budget is not None and not isinstance(budget, budgeted.Lease):
        _check_whole(train, plan, units, ranks)
        draws = training.randomness().fingerprint
        # a restarted rank has reserved already, and must not be refused by its own reservation
        lease = ranks.once(
            lambda: (
                _restarted_lease(out)
                or lease_for(budget, plan, contents or contents_of(train), names, out, budget_key, draws)
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
        directory, finished = ranks.once(RunDirectory.begin, Path(out), spec, force=force, again=restarted())
        if finished:  # by ranks of which one was lost after that
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


def _check_kinds(model: object, task: object, callbacks: Iterable[object]) -> None:
    """Refuse what has nothing of a model, a task or a callback, before something fails for want of it."""
    if not isinstance(model, nn.Module):
        raise ConfigError("model", type(model).__name__, "a torch.nn.Module")
    if task is not None and not isinstance(task, Task):
        raise ConfigError("task", task, f"assay.data.Task(kind=...), of kind {', '.join(KINDS)}")
    for one in callbacks:
        if not hasattr(one, "on_step"):
            raise ConfigError("callbacks", one, "objects of classes that derive from assay.Callback")


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
    draws: str | None,
) -> budgeted.Lease:
    """Check that a run fits into a budget; nothing is written.

    Args:
        budget: The budget, or its name.
        plan: What the run may release.
        contents: What its records are recognised by.
        names: Describes model and data.
        out: Where the run will be written, if anywhere.
        key: The file of the private key, for a budget that is signed.
        draws: Names its random numbers, if they can be drawn again.

    Returns:
        What goes into its `run.json`.

    Raises:
        ConfigError: The budget's unit or adjacency is another one, or another run has drawn the same numbers.
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
        draws=draws,
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
    trained_on = TrainedOn(model, Records(train, loading=loading))
    begin = functools.partial(Loop, model, train, plan, loss, used, ranks=ranks, units=units, loading=loading)
    showing = show_progress(plan.epsilon_limit, leader=ranks.leader, scored=scored(names), lines=progress)
    with showing as shown:
        run = Run(
            begin,
            plan=plan,
            training=recorded(training, used),
            names=names,
            test=None if test is None else Records(test, pick_device(training.device), loading),
            directory=directory,
            callbacks=[*callbacks, shown],
            ranks=ranks,
            lease=lease,
        )
        try:
            return run.go()
        finally:
            if run.course.taken:
                trained_on.end(run.ledger)  # as the run leaves it: averages are written after its last step


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
    contents: Iterable[bytes] | None = None,
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
        contents: As for `fit`.
        loading: As for `fit`.
        progress: As for `fit`.

    Returns:
        What `fit` would have returned.

    Raises:
        AssayError: The run is finished.
        ConfigError: Test records are training records.
        DataError: The run is under a budget and began on other records.
        InterruptedRunError: The process was asked to stop; a checkpoint is written.
    """
    ranks = world()
    directory, spec = ranks.once(lambda: _unfinished(Path(out)))
    if test is not None:
        check_tested(Records(train, loading=loading), Records(test, loading=loading))
    plan, training = Plan.from_json(spec["plan"]), training_from_json(spec["training"])
    if (lease := budgeted.Lease.from_json(spec.get(budgeted.FIELD))) is not None:
        ranks.once(lease.check_records, contents or contents_of(train))
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
