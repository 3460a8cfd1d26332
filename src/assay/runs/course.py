"""How a run advances: the base class of every kind of run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from assay.accounting.ledger import Ledger
from assay.data.records import Records
from assay.methods.stage import Loss
from assay.runs.directory import RunDirectory
from assay.runs.record import Facts

Saved = tuple[dict[str, Tensor], dict[str, Any]]
"""A checkpoint: tensors by name, and what is plain JSON."""


class Course(ABC):
    """How a run advances. It charges the ledger before it moves; `Run` does everything else.

    Attributes:
        word: What one advance is called: "step" or "round".
        saves_always: Whether a checkpoint follows every advance, and not only the end of an epoch.
        saves_itself: Whether whoever owns the loop keeps the checkpoints, so that the run writes none.
        loss: The loss that the test records are measured with.
    """

    word: ClassVar[str] = "step"
    saves_always: ClassVar[bool] = False
    saves_itself: ClassVar[bool] = False
    loss: Loss

    @property
    @abstractmethod
    def taken(self) -> int:
        """The advances behind the model."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """How many the plan and the budget allow."""

    @property
    @abstractmethod
    def epoch(self) -> float:
        """Passes over the data, or over the clients, so far."""

    @property
    @abstractmethod
    def ends_epoch(self) -> bool:
        """Whether the last advance ended an epoch: the history gets an entry."""

    @property
    def train_loss(self) -> float | None:
        """The training loss that was released last, since the epoch began; None if there is none."""
        return None

    @abstractmethod
    def advance(self) -> Iterator[None]:
        """Go to the limit, and pause after each advance."""

    @abstractmethod
    def released_model(self) -> AbstractContextManager[nn.Module]:
        """The model as it would be released now, in eval mode."""

    def tested(self, test: Records) -> Records:
        """The test records to measure on, where the method measures on others than it was given."""
        return test

    @abstractmethod
    def state(self) -> Saved:
        """The course's state for a checkpoint, whole on every rank."""

    def settle(self) -> None:  # noqa: B027 - most courses charge exactly as they go
        """Reduce the ledger's charge to what was taken, where it was charged ahead."""

    @abstractmethod
    def charge_rest(self) -> None:
        """Charge all advances up to `limit`, for a run that ends here because of what it released."""

    @abstractmethod
    def epsilon(self) -> float:
        """The verified ε of everything that is charged."""

    @abstractmethod
    def epsilon_taken(self) -> float:
        """The verified ε of the advances taken."""

    @abstractmethod
    def note(self) -> dict[str, Any]:
        """What a history entry has beside the common facts. A new epoch begins."""

    @abstractmethod
    def facts(self, names: Mapping[str, Any], *, stopped: bool) -> Facts:
        """What the record says about this kind of run.

        Args:
            names: Describes model and data.
            stopped: Whether a callback ended the run.
        """

    @abstractmethod
    def finish(self) -> tuple[nn.Module, Mapping[str, Tensor] | None, int]:
        """The model, its tensors if it does not hold them whole, and how many gradients or answers were left out."""

    def close(self) -> None:  # noqa: B027 - a course may hold nothing
        """Free what the course holds."""


class Begin(Protocol):
    """Makes the course of a run: its ledger, its directory (on the leader), and the checkpoint to continue from."""

    def __call__(self, ledger: Ledger, *, directory: RunDirectory | None, saved: Saved | None) -> Course: ...
