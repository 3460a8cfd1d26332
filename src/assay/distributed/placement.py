"""Where a model's parameters are: whole on every rank, or split over the ranks (`assay.distributed.shards`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from assay.distributed.world import World
from assay.randomness.streams import Stream


class Placement(Protocol):
    """What depends on where parameters are. Every rank calls the same functions in the same order."""

    @property
    def split(self) -> bool:
        """Whether ranks pass through the model together, because each holds parameters that the others need."""
        ...

    def noise(self, stream: Stream) -> Stream:
        """The noise that this rank adds to its sum. Over all ranks, each number of the noise is added once."""
        ...

    def combine(self, value: Mapping[str, Tensor]) -> None:
        """Turn the noisy sums of the ranks into the released gradient, in place."""
        ...

    def passes(self, count: int) -> int:
        """How many passes through the model a rank makes whose batch has `count` parts."""
        ...

    def gradient(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """A released value as `.grad` of this parameter."""
        ...

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors, gathered for the leader to write."""
        ...

    def local(self, parameter: Tensor, value: Tensor) -> Tensor:
        """What this rank keeps of a whole tensor that belongs to this parameter."""
        ...

    def check(self, model: nn.Module) -> None:
        """Stop if the ranks' parameters differ.

        Raises:
            AssayError: They do.
        """
        ...


class Everywhere:
    """Every rank has the whole model."""

    split = False

    def __init__(self, world: World) -> None:
        self._world = world

    def noise(self, stream: Stream) -> Stream:
        """All of it on the leader, none on the others."""
        return self._world.noise(stream)

    def combine(self, value: Mapping[str, Tensor]) -> None:
        """Add up the ranks' sums."""
        self._world.sum(list(value.values()))

    def passes(self, count: int) -> int:
        """One for each part: ranks meet only when all parts are done."""
        return count

    def gradient(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """As it is, in the parameter's precision."""
        return value if value.dtype == parameter.dtype else value.to(parameter.dtype)

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As they are."""
        return dict(tensors)

    def local(self, parameter: Tensor, value: Tensor) -> Tensor:  # noqa: ARG002
        """As it is."""
        return value

    def check(self, model: nn.Module) -> None:
        """Stop if parameters differ by a single bit."""
        self._world.check_alike(model)
