"""A stage: what a method does with the records before the first step of training.

A stage releases something about the records, once. Its cost is known beforehand and belongs to the plan's ε. It is
charged as a separate segment of the ledger, on disk, before the stage sees a record. The run keeps the answer, so that
a resumed run uses the same one. After a crash between charge and answer the stage is charged again.

Everything computed from the answer is post-processing: the records that training sees, their loss, and what the model
does with its inputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from assay.data.records import Records
    from assay.mechanisms.types import Denoiser
    from assay.methods.plan import Plan
    from assay.randomness.streams import Randomness

Released: TypeAlias = "dict[str, Tensor]"
"""The answers of a stage, by name."""
WHOLE = "one whole record"
"""The unit of a part that protects a whole record: its presence or its content, as the run's adjacency says."""
Loss: TypeAlias = "Callable[[Any, Any], Tensor]"
PrivateTraining: TypeAlias = "Callable[[nn.Module, Records, Plan, torch.optim.Optimizer, Randomness], None]"
"""Trains a network on the records under the given plan, with this optimizer and randomness."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One answer with separate noise: a row of the statement.

    Attributes:
        name: what is released.
        unit: what the noise protects.
        claimed: the paper's ε for it.
        event: its verified cost over the whole run.
        reason: why there is no ε, if there is none.
        pure: ε at δ = 0, where it has one. (The accountant counts an ε above 1000 as none.)
        each_step: whether the steps release it, and not the stage.
    """

    name: str
    unit: str
    claimed: float | None
    event: DpEvent
    reason: str = ""
    pure: float = math.inf
    each_step: bool = False


class Stage(ABC):
    """What happens to the records before training. The events of `parts` cover all that `release` returns.

    By default a stage leaves records and loss as they are, and draws no picture.
    """

    kept: ClassVar[tuple[str, ...]] = ()
    """The answers that stay in the directory of a finished run. Only resuming needs the others."""
    takes_views: ClassVar[bool] = False
    """Whether training may see random views of a record (`assay.training.augment`) instead of the record."""

    @property
    def takes_fewer(self) -> bool:
        """Whether `release` accepts fewer records than the plan counts, as in an audit that leaves one out."""
        return False

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """The rows of the statement: what is released, and what protects it."""

    @abstractmethod
    def check(self, model: nn.Module, records: Records, data: str | None) -> None:
        """Refuse a model, records or data that do not fit, before anything is written.

        Args:
            model: the model to be trained.
            records: the private records.
            data: the name of the private data set; None if it has none.

        Raises:
            ConfigError: they do not fit.
            DataError: the records do not fit.
        """

    @abstractmethod
    def release(
        self,
        model: nn.Module,
        records: Records,
        randomness: Randomness,
        device: torch.device,
        train_privately: PrivateTraining,
    ) -> Released:
        """Compute the answers. The caller must have charged `event_of` the stage.

        Args:
            model: the model to be trained.
            records: the private records.
            randomness: the source of all noise.
            device: where to compute.
            train_privately: trains a network that the stage needs. (Methods cannot import the training package.)
        """

    @abstractmethod
    def install(self, model: nn.Module, released: Released) -> None:
        """Change the model so that it works on plain records: scaled inputs, initial values."""

    def denoisers(self, model: nn.Module, released: Released) -> Sequence[Denoiser]:  # noqa: ARG002
        """What is done with every noisy gradient, after what the plan says: post-processing by what was released."""
        return ()

    def records(self, data: Dataset[Any], released: Released) -> Dataset[Any]:  # noqa: ARG002
        """The records to train on."""
        return data

    def tested(self, data: Dataset[Any], released: Released) -> Dataset[Any]:  # noqa: ARG002
        """The test records to measure on. They are not protected."""
        return data

    def loss(self, own: Loss) -> Loss:
        """The loss to train with, in place of the run's own."""
        return own

    def draw(self, released: Released, folder: Path) -> None:  # noqa: B027 - most have none
        """Write pictures of the answers into `folder`."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Lines for the statement that say what is done."""


def event_of(stage: Stage) -> DpEvent:
    """The cost of the stage itself."""
    return ComposedDpEvent([part.event for part in stage.parts() if not part.each_step])
