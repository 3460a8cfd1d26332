"""What server and client exchange in a round, and the plainest exchange: updates, which the server averages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor

from assay.federated.layout import Layout, clipped
from assay.federated.noise import Noise
from assay.federated.wire import Message, Schema
from assay.randomness.streams import Stream

Array = NDArray[Any]
Fields = Mapping[str, Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Work:
    """What a client did in its turn. Sensitive: it stays with the client.

    Attributes:
        start: The model that the server sent.
        update: What training changed; zeros if that held NaN or Inf.
        loss: The sum over the epochs of the mean training loss.
        records: How many records the client has.
        weight: How much this client counts, from 0 to 1. The update is clipped first and weighted then.
        lr: The client's learning rate.
        loss_at: The mean loss of a model, given as a vector, on the client's records.
    """

    start: Tensor
    update: Tensor
    loss: float
    records: int
    weight: float
    lr: float
    loss_at: Callable[[Tensor], float]


class Exchange(Protocol):
    """Both sides of a method. Its state comes from released values only."""

    @property
    def task_arrays(self) -> Mapping[str, tuple[str, int]]:
        """What a task holds beside the model: dtype and length."""
        ...

    def instructions(self, turn: int) -> Arrays:
        """Server: the arrays of this round's task, from released values."""
        ...

    def expects(self, instructions: Arrays) -> Schema:
        """What an answer to these instructions must hold."""
        ...

    def answer(self, work: Work, instructions: Arrays, turn: int, stream: Stream) -> tuple[Fields, Arrays]:
        """Client: what is sent."""
        ...

    def combine(self, answers: Sequence[Message], instructions: Arrays, turn: int, stream: Stream) -> Tensor | None:
        """Server: what to add to the model, released; None if the round must not be opened."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What must survive a restart."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state."""
        ...


class Plain:
    """The defaults of an exchange: a task holds the model only, and nothing must survive a restart."""

    @property
    def task_arrays(self) -> Mapping[str, tuple[str, int]]:
        """None."""
        return {}

    def instructions(self, turn: int) -> Arrays:  # noqa: ARG002
        """None."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """None."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Averaging(Plain):
    """Every client sends its whole update; the model moves by their private average."""

    layout: Layout
    noise: Noise
    bound: float

    def expects(self, instructions: Arrays) -> Schema:  # noqa: ARG002
        """A number for each coordinate."""
        return Schema({"update": (self.noise.dtype, self.layout.size)})

    def answer(self, work: Work, instructions: Arrays, turn: int, stream: Stream) -> tuple[Fields, Arrays]:  # noqa: ARG002
        """The update, clipped, weighted, protected."""
        return {}, {"update": self.noise.send(clipped(work.update, self.bound) * work.weight, stream)}

    def combine(self, answers: Sequence[Message], instructions: Arrays, turn: int, stream: Stream) -> Tensor | None:  # noqa: ARG002
        """The average."""
        return self.noise.average([answer.arrays["update"] for answer in answers], self.layout.size, stream)
