"""What passes between server and client in a round of a method, and the plainest one: an update each, and their average."""

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

    `update` is what training changed (zeros if that held NaN or Inf), `loss` the sum over its epochs of the mean training
    loss, `weight` how much this client counts, from 0 to 1 (a public bound: the update is clipped first and weighted then).
    `loss_at(vector)` is the mean loss of the model `vector` on the client's records.
    """

    start: Tensor
    update: Tensor
    loss: float
    records: int
    weight: float
    lr: float
    loss_at: Callable[[Tensor], float]


class Exchange(Protocol):
    """One method at work, both sides of it. Whatever state it has comes from released values only."""

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
        """Take up a state."""
        ...


class Plain:
    """The half of an exchange that says nothing: a task holds the model only, and nothing must survive a restart."""

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
        """Nothing to take up."""


@dataclass(frozen=True)
class Averaging(Plain):
    """Every client sends its whole update; the model moves by their private average."""

    layout: Layout
    noise: Noise
    bound: float

    def expects(self, instructions: Arrays) -> Schema:  # noqa: ARG002
        """One number a coordinate."""
        return Schema({"update": (self.noise.dtype, self.layout.size)})

    def answer(self, work: Work, instructions: Arrays, turn: int, stream: Stream) -> tuple[Fields, Arrays]:  # noqa: ARG002
        """The update, clipped, weighted, protected."""
        return {}, {"update": self.noise.send(clipped(work.update, self.bound) * work.weight, stream)}

    def combine(self, answers: Sequence[Message], instructions: Arrays, turn: int, stream: Stream) -> Tensor | None:  # noqa: ARG002
        """The average."""
        return self.noise.average([answer.arrays["update"] for answer in answers], self.layout.size, stream)
