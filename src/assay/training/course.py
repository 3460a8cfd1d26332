"""What every central run has in common, whoever owns its loop: its private step, and the training loss it releases."""

from __future__ import annotations

from typing import Any

import torch
from dp_accounting.dp_event import NoOpDpEvent

from assay.distributed.world import World
from assay.mechanisms.types import SideQuery
from assay.methods.plan import Plan
from assay.runs.course import Course
from assay.training.meter import MeanLoss
from assay.training.step import PrivateStep


class StepCourse(Course):
    """The steps of a central run.

    Attributes:
        world: The ranks that train together.
        plan: Everything that decides ε.
        step: The private step.
        meter: The training loss, released with noise.
    """

    world: World
    plan: Plan
    step: PrivateStep
    meter: MeanLoss

    def side(self, plan: Plan) -> list[SideQuery]:
        """What a step releases beside its gradient: the training loss, unless the plan has no noise for it."""
        # with exact noise the training loss is not released, because its sum is rounded
        measured = plan.noise_multiplier > 0 and not plan.exact and not isinstance(plan.step_event, NoOpDpEvent)
        return [self.meter] if measured else []

    def step_state(self) -> dict[str, Any]:
        """What a later course needs to continue with the next step; released values only."""
        return {"step": self.step.taken, "meter": self.meter.state(), "chain": self.step.chain.state()}

    def restore_step(self, state: dict[str, Any]) -> None:
        """Restore what `step_state` gave, on a step that was made with its `taken`."""
        self.meter.restore(state["meter"])
        self.step.chain.restore(state["chain"])

    def left_out(self) -> int:
        """The number of gradients that were not finite, on all ranks."""
        nonfinite = torch.tensor(self.step.nonfinite)
        self.world.sum([nonfinite])
        return int(nonfinite)

    @property
    def taken(self) -> int:
        """The steps taken so far."""
        return self.step.taken

    @property
    def limit(self) -> int:
        """The number of steps that the plan and the budget allow."""
        return self.step.limit

    @property
    def epoch(self) -> float:
        """Passes over the records so far."""
        return self.plan.epochs_after(self.step.taken)

    @property
    def ends_epoch(self) -> bool:
        """Whether the last step ended an epoch."""
        return self.plan.ends_epoch(self.step.taken)

    @property
    def train_loss(self) -> float | None:
        """The mean loss since the epoch began, as released."""
        return self.meter.value

    def settle(self) -> None:
        """Return what was charged ahead and not used."""
        self.step.settle()

    def charge_rest(self) -> None:
        """Charge all steps up to `limit`."""
        self.step.charge_rest()

    def epsilon(self) -> float:
        """The verified ε of all that is charged."""
        return self.step.epsilon()

    def epsilon_taken(self) -> float:
        """The verified ε of the steps taken."""
        return self.step.epsilon_taken()

    def note(self) -> dict[str, Any]:
        """Nothing beside the common facts. The average loss starts again."""
        self.meter.reset()
        return {}

    def close(self) -> None:
        """Settle the ledger and detach from the model."""
        self.step.close()
