"""The private run behind somebody else's loop: what the integrations share.

A trainer of another library owns the loop, the optimizer, the checkpoints and the logs. `OutsideRun` owns everything
that decides ε: which records are drawn, the one way from losses to `.grad`, the ledger, and what is said about the run.
The other loop never holds a batch or a training loss. It asks for one step at a time (`take`) and gets back the loss
that the step released. So whatever that loop fetches ahead, skips, repeats, scales or logs, it is post-processing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from assay._util.figures import at_most
from assay.accounting.ledger import Ledger
from assay.data.identity import contents as contents_of
from assay.data.records import Records
from assay.distributed.world import World, world
from assay.errors import AssayError, BudgetSpentError, ConfigError
from assay.integrations.privacy import Privacy
from assay.methods.plan import Plan
from assay.randomness.streams import Randomness, seed_torch, source
from assay.runs import checkpoint
from assay.runs.budgeted import FIELD, Lease, id_of
from assay.runs.course import Saved
from assay.runs.directory import RunDirectory
from assay.runs.metrics import cross_entropy
from assay.runs.record import Facts
from assay.runs.result import Result
from assay.runs.run import Run
from assay.runs.schema import CENTRAL
from assay.training.batches import unit_records
from assay.training.course import StepCourse
from assay.training.meter import MeanLoss
from assay.training.preflight import check_ranks, rehearse
from assay.training.record import facts
from assay.training.settings import Training, training_json
from assay.training.step import PrivateStep
from assay.training.trained import TrainedOn, check_untrained

Losses = Callable[[nn.Module, Any], Tensor]
"""`losses(model, batch)` gives one loss per record, of a batch as it was collated.

It is a function and not a method, because copies of the model are asked as well: a method would be copied with them.
"""


class Whole(nn.Module):
    """The way from a batch to its losses as one module.

    The engine proves on it that no record changes another's loss: not in the model, and not in the loss either. A loss
    that is divided by the number of words in the batch would be refused.
    """

    def __init__(self, inner: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.inner, self._losses = inner, losses

    def forward(self, batch: Any) -> Tensor:
        """One loss for each record of the batch."""
        return self._losses(self.inner, batch)


class _Outside(StepCourse):
    """The steps that somebody else's loop asks for."""

    saves_itself = True

    def __init__(
        self, whole: Whole, plan: Plan, ledger: Ledger, ranks: World, randomness: Randomness, *,
        loss_bound: float, max_physical_batch: int | None, state: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        self.world, self.plan, self.whole, self.loss = ranks, plan, whole, cross_entropy
        self.meter = MeanLoss(bound=loss_bound)
        self.measured = bool(self.side(plan))
        self.step = PrivateStep(
            whole,
            plan,
            ledger=ledger,
            randomness=randomness,
            max_physical_batch=max_physical_batch,
            side=self.side(plan),
            taken=0 if state is None else state["step"],
            world=ranks,
        )
        if state is not None:
            try:
                with checkpoint.fitting(None):
                    self.restore_step(state)
            except BaseException:
                self.step.close()
                raise

    def advance(self) -> Iterator[None]:
        """Nobody asks for this: the other loop advances."""
        raise AssertionError("the loop is somebody else's")

    @contextmanager
    def released_model(self) -> Iterator[nn.Module]:
        """The model, in eval mode."""
        try:
            yield self.whole.inner.eval()
        finally:
            self.whole.train()

    def state(self) -> Saved:
        """What the owner of the loop keeps beside its own checkpoint. The ranks' parameters are compared first."""
        self.step.placement.check(self.whole)
        return {}, self.step_state()

    def facts(self, names: Mapping[str, Any], *, stopped: bool) -> Facts:
        """What the record says of a central run."""
        return facts(self.plan, names, None, self.step.randomness, self.step.taken, stopped=stopped)

    def finish(self) -> tuple[nn.Module, Mapping[str, Tensor] | None, int]:
        """The model and what was trained of it: a frozen model under adapters is not written again."""
        model = self.whole.inner
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        whole = all(p.requires_grad for p in model.parameters())
        return model, None if whole else trained, self.left_out()


class OutsideRun:
    """One private run whose loop is somebody else's. Use it as a context: an error leaves the run unfinished.

    Guarantee: that of `PrivateStep`. Everything that leaves through `take`, `.grad` and the files is covered by the ε
    of the ledger.

    Args:
        model: The model, on its device.
        losses: Gives one loss per record of a batch.
        records: All records.
        plan: Everything that decides ε, for this model.
        privacy: What the user said.
        out: Where ledger, record and statement go. Without it nothing is written, and the run cannot be resumed.
        training: How the other loop trains, for the record.
        resume_with: What continues the run, in words.
        max_physical_batch: The largest number of records in memory at once.
        kept: What `state` gave for the checkpoint that the run resumes from.

    Raises:
        ConfigError: The settings do not go together, an earlier run has trained the model on these records, or the
            checkpoint is not one of the run in `out`.
        UnsupportedModelError: The model or the loss mixes records.
        LedgerError: The ledger is damaged, or does not cover the checkpoint.
        BudgetSpentError: The run does not fit into its budget, or no step is left.
        DataError: The budget is for other records.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        records: Records,
        plan: Plan,
        privacy: Privacy,
        *,
        out: Path | None,
        training: Mapping[str, Any],
        resume_with: str,
        max_physical_batch: int | None = None,
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        ranks, whole = world(), Whole(model, losses)
        self.plan, self.whole, self._device = plan, whole, next(model.parameters()).device
        self.records = records
        by_unit = unit_records(records, privacy.units, plan)
        randomness = source(privacy.seed, False)
        check_ranks(plan, ranks.size)
        if plan.stage is not None:
            raise ConfigError(
                *plan.stage_option,
                "nothing that is released before the first step. It changes the records, or what the model does with "
                "its inputs, and whoever loads a checkpoint of this loop would build the model without that. Train "
                "with assay.fit",
            )
        if kept is None:
            check_untrained(model, records, budget=ranks.once(id_of, privacy.budget))
        self._trained_on = TrainedOn(model, records)
        whole.train()
        rehearse(whole, records, plan, lambda trial, batch, _: trial(batch), randomness, type(model).__name__)
        names = {"model": type(model).__name__, **(privacy.names or {})}
        settings = {**training_json(Training(seed=privacy.seed)), "max_physical_batch": max_physical_batch, **training}
        spec = {
            "kind": CENTRAL, "plan": plan.to_json(), "training": settings, "names": names, "resume_with": resume_with,
            "token": secrets.token_hex(8),  # checkpoints of another run with the same settings are not this run's
        }  # fmt: skip
        directory = None
        if kept is not None:
            directory = there = ranks.once(lambda: _same_run(out, spec, kept))
            lease = Lease.from_json(ranks.once(lambda: there.read_spec().get(FIELD)))  # it has reserved already
            if lease is not None:
                ranks.once(lease.check_records, privacy.contents or contents_of(records.dataset))
        else:
            lease = ranks.once(lambda: privacy.lease(plan, records.dataset, names, out))
            spec |= {} if lease is None else {FIELD: lease.to_json()}
            if out is not None:
                directory = ranks.once(lambda: RunDirectory.create(out, spec, force=privacy.force))
        self._digest = ranks.once(lambda: None if directory is None else directory.digest())

        def begin(ledger: Ledger, *, directory: RunDirectory | None, saved: Saved | None) -> _Outside:  # noqa: ARG001
            return _Outside(
                whole,
                plan,
                ledger,
                ranks,
                randomness,
                loss_bound=3.0 if privacy.loss_bound is None else privacy.loss_bound,
                max_physical_batch=max_physical_batch,
                state=None if saved is None else saved[1],
            )

        self._run = Run(
            begin,
            plan=plan,
            training=settings,
            names=names,
            directory=directory,
            ranks=ranks,
            lease=lease,
            saved=None if kept is None else ({}, dict(kept["state"])),
        )
        assert isinstance(self._run.course, _Outside)
        self.course = self._run.course
        self.step = self.course.step
        self._seeded = privacy.seed is not None
        self._parts = self.step.batches_or_none(by_unit)
        self.result: Result | None = None
        self._stopped = False
        if self.is_spent and self.step.taken == 0:  # a run that has taken steps is finished with the model it has
            self.close()
            raise BudgetSpentError(
                f"the budget is spent after {self.step.taken} steps: ε = {at_most(self.step.epsilon())}"
            )

    @property
    def is_spent(self) -> bool:
        """Whether the plan or the budget allows no further step."""
        return self.step.taken >= self.step.limit

    @property
    def steps_per_epoch(self) -> int:
        """As many steps as draw each record once, on average."""
        return max(1, round(1 / self.plan.sampler.rate))

    @property
    def measured(self) -> bool:
        """Whether the training loss is released. Without noise, and with exact noise, it is not."""
        return self.course.measured

    def take(self) -> float | None:
        """Take one private step: draw a batch, and turn its losses into `.grad`. The optimizer steps next.

        Returns:
            The training loss that the step released, which noise may take below 0; None if none is released.

        Raises:
            BudgetSpentError: The plan or the budget allows no further step.
        """
        step, seeded_for = self.step, -1
        if self._stopped:
            raise AssayError("this run was stopped, and takes no further step")
        for part in self._parts:
            if self._seeded and seeded_for != step.taken:  # as `fit` does: dropout is part of what a seed fixes
                seeded_for = step.taken
                seed_torch(step.randomness.stream(step.world.purpose("model"), step.taken), self._device)
            done = step.backward_of_none() if part is None else step.backward(self.whole(part))
            if done:
                return self.course.meter.last if self.measured else None
        raise BudgetSpentError(f"the budget is spent after {step.taken} steps: ε = {at_most(step.epsilon())}")

    def follow(self) -> None:
        """Note the step in the run's history. Call it after the optimizer."""
        self._run.follow()

    def epsilon(self) -> float:
        """The verified ε of the steps taken, without those charged ahead; after `stop`, that of all steps."""
        return self.step.epsilon() if self._stopped else self.step.epsilon_taken()

    def stop(self) -> None:
        """End the run here. If steps are left, it is charged for all of them.

        When to end may depend on what was released, so the ε of the steps taken would be too small
        (`assay.runs.callbacks`).
        """
        if not self.is_spent and not self._stopped:
            self._run.end_early()
        self._stopped = True

    def state(self) -> dict[str, Any]:
        """What belongs into a checkpoint of the other loop. All ranks call it together; it holds released values."""
        return {"run": self._digest, "state": self._run.state()[1]}

    def finish(self) -> Result:
        """Write record and statement. A run that ends before its last step is charged for all of them (`stop`)."""
        self.stop()
        self.result = self._run.finish()
        return self.result

    def close(self, *error: Any) -> None:
        """Detach from the model. A run that has not finished can be resumed from a checkpoint."""
        self._run.__exit__(*(error or (None, None, None)))
        if self.step.taken:
            self._trained_on.end(self._run.ledger)

    def __enter__(self) -> OutsideRun:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close(*error)


def _same_run(out: Path | None, spec: Mapping[str, Any], kept: Mapping[str, Any]) -> RunDirectory:
    """The directory of the run that a checkpoint belongs to; its ledger is charged further.

    Raises:
        ConfigError: There is none, or it is another run's or another plan's.
        AssayError: The run is finished.
    """
    if out is None or not (directory := RunDirectory(out)).spec.exists():
        raise ConfigError(
            "out", None if out is None else str(out), "the directory of the run that the checkpoint belongs to: its "
            "ledger says what was spent, and without it no ε is known",
        )  # fmt: skip
    if directory.digest() != kept["run"]:
        raise ConfigError("out", str(out), "the directory of the run that the checkpoint belongs to; this is another's")
    if directory.finished:
        raise AssayError(f"{out} is finished: there is nothing to resume")
    there, here = directory.read_spec(), json.loads(json.dumps(spec))
    if there["plan"] != here["plan"]:
        different = [name for name in here["plan"] if there["plan"].get(name) != here["plan"][name]]
        raise ConfigError("plan", f"another {', '.join(different)}", "the plan that the run was started with")
    seed = here["training"]["seed"]
    if there["training"]["seed"] != seed:
        raise ConfigError("seed", seed, f"{there['training']['seed']}, as the run was started")
    if seed is not None and there["training"] != here["training"]:
        # the same noise under another model would reveal the difference of their gradients
        raise ConfigError("seed", seed, "the settings that the run was started with: a seed repeats its noise")
    return directory
