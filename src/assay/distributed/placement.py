"""Where the numbers of a model are: whole on every rank, or each on one (`assay.distributed.shards`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from assay.distributed.world import World
from assay.randomness.streams import Stream


class Placement(Protocol):
    """How a gradient is released, and what of a model is kept, where. Every rank calls the same functions in the same order."""

    @property
    def split(self) -> bool:
        """Whether ranks pass through the model in step with each other, since each holds what the others need."""
        ...

    def noise(self, stream: Stream) -> Stream:
        """What is added to this rank's part of the sum: over all ranks, each number of the noise once."""
        ...

    def released(self, value: Mapping[str, Tensor]) -> None:
        """Each rank's part with its noise becomes the released gradient, in place."""
        ...

    def passes(self, count: int) -> int:
        """How many passes through the model a rank makes that has `count` parts of a batch."""
        ...

    def gradient(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """A released value as `.grad` of this parameter."""
        ...

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is kept on the ranks, put together for the leader to write."""
        ...

    def own(self, parameter: Tensor, value: Tensor) -> Tensor:
        """A whole tensor as it is kept with this parameter."""
        ...

    def check(self, model: nn.Module) -> None:
        """Stop if ranks have come apart."""
        ...


class Everywhere:
    """Every rank has the whole model."""

    split = False

    def __init__(self, world: World) -> None:
        self._world = world

    def noise(self, stream: Stream) -> Stream:
        """All of it in the leader's part."""
        return self._world.noise(stream)

    def released(self, value: Mapping[str, Tensor]) -> None:
        """The sum of the parts."""
        self._world.sum(list(value.values()))

    def passes(self, count: int) -> int:
        """One a part: ranks meet only when all parts are done."""
        return count

    def gradient(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """As it is, in the parameter's own precision."""
        return value if value.dtype == parameter.dtype else value.to(parameter.dtype)

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As they are."""
        return dict(tensors)

    def own(self, parameter: Tensor, value: Tensor) -> Tensor:  # noqa: ARG002
        """As it is."""
        return value

    def check(self, model: nn.Module) -> None:
        """All parameters have the same bits everywhere."""
        self._world.check_alike(model)
