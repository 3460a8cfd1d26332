"""The processes that train one model together, and where its numbers are.

`Alone` is one process; `Ranks` are several, each with its part of the records. A `Placement` says where the model is: whole on
every rank (`Everywhere`), or each number on one (`assay.distributed.shards`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from assay._util import seals
from assay.distributed import launch
from assay.errors import AssayError, ConfigError, LeaderError
from assay.randomness.streams import Stream

T = TypeVar("T")
_BUCKET = 1 << 22  # numbers that travel together: small tensors are not worth a message each


@dataclass(frozen=True, slots=True)
class Part:
    """The records of one rank: those from `first` to below `last` of the whole, the first of them at `at` in its data set."""

    first: int
    last: int
    at: int

    def own(self, index: Tensor) -> Tensor:
        """Of a batch of the whole, the rank's own records, as places in its data set."""
        mine = index[(index >= self.first) & (index < self.last)]
        return mine - (self.first - self.at)


class Silent:
    """Zeros, for a rank whose part of the sum gets no noise because the leader's has it all.

    A mechanism adds its noise to the sum. It does so with zeros here, and states the event of the release that it takes part in.
    Randomness other than added noise has no place there.
    """

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Zeros."""
        return torch.zeros(tuple(shape), dtype=dtype, device=device)

    laplace = normal

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """Nothing, without the zeros."""

    def uniform(self, n: int) -> Tensor:
        """Nothing that could be added up."""
        raise AssertionError(f"a mechanism asked for {n} uniform numbers, which ranks cannot share as added noise")

    def integers(self, high: int, n: int) -> Tensor:
        """Nothing that could be added up."""
        raise AssertionError(f"a mechanism asked for {n} numbers below {high}, which ranks cannot share as added noise")


class World(Protocol):
    """What training asks of the processes that take part. Every rank calls the same functions in the same order."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    @property
    def leader(self) -> bool:
        """Whether this one owns the files and draws the noise."""
        ...

    def part(self, records: int, whole: int) -> Part:
        """This rank's records, its data set having `records` of them: the whole set, or the rank's share of it."""
        ...

    def once(self, make: Callable[[], T]) -> T:
        """What `make` gives on the leader, where alone it is called; an error there is one everywhere."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether any rank says yes."""
        ...

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes its sum over the ranks, the same bits everywhere."""
        ...

    def noise(self, stream: Stream) -> Stream:
        """What this rank adds of the noise: all of it on one rank, nothing on the others."""
        ...

    def purpose(self, name: str) -> str:
        """The name of a stream that must differ between ranks even where they share a seed."""
        ...

    def alike(self, model: nn.Module) -> None:
        """Give every rank the leader's parameters and buffers."""
        ...

    def check_alike(self, model: nn.Module) -> None:
        """Stop if parameters differ between ranks by a single bit."""
        ...


class Alone:
    """One process."""

    size, leader = 1, True

    def part(self, records: int, whole: int) -> Part:
        """Everything."""
        if records != whole:
            raise ConfigError("dataset", f"{records} records", f"the {whole} records that the plan was made for")
        return _Everything(0, whole, 0)

    def once(self, make: Callable[[], T]) -> T:
        """What it gives."""
        return make()

    def any(self, flag: bool) -> bool:
        """Its own answer."""
        return flag

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sums already."""

    def noise(self, stream: Stream) -> Stream:
        """All of it."""
        return stream

    def purpose(self, name: str) -> str:
        """The name itself."""
        return name

    def alike(self, model: nn.Module) -> None:
        """Like itself."""

    def check_alike(self, model: nn.Module) -> None:
        """Like itself."""


ALONE = Alone()


class _Everything(Part):
    """All records of one process."""

    __slots__ = ()

    def own(self, index: Tensor) -> Tensor:
        """The batch itself."""
        return index


class Ranks:
    """Several processes, each with the whole model and its part of the records."""

    def __init__(self, group: dist.ProcessGroup | None, cpu: dist.ProcessGroup) -> None:
        self._group, self.cpu = group, cpu
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.leader = self.rank == 0

    def part(self, records: int, whole: int) -> Part:
        """Equal shares of the whole set, in order, if every rank has it; else what each has, one after the other."""
        counts = self.gathered(records)
        if sum(counts) == whole:
            first = sum(counts[: self.rank])
            return Part(first, first + records, 0)
        if any(count != whole for count in counts):
            raise ConfigError(
                "dataset",
                f"{records} records here, {counts} on the ranks",
                f"on every rank the {whole} records that the plan was made for, or shares that add up to them",
            )
        first, last = (whole * rank // self.size for rank in (self.rank, self.rank + 1))
        return Part(first, last, first)

    def once(self, make: Callable[[], T]) -> T:
        """The leader's, over the wire."""
        if not self.leader:
            given, error = self._broadcast(None)
            if error is not None:
                raise LeaderError(*error)
            return given  # type: ignore[no-any-return]
        try:
            made = make()
        except Exception as error:
            self._broadcast((None, (str(error), getattr(error, "exit_code", 1))))
            raise
        self._broadcast((made, None))
        return made

    def any(self, flag: bool) -> bool:
        """One number over the wire."""
        asked = torch.tensor(int(flag))
        dist.all_reduce(asked, op=dist.ReduceOp.MAX, group=self.cpu)
        return bool(asked)

    def most(self, count: int) -> int:
        """The largest number of any rank."""
        largest = torch.tensor(count)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.cpu)
        return int(largest)

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Added up in buckets. Every number is added up at one place and sent to all, so that all have the same."""
        for bucket in _buckets(tensors):
            flat = torch.cat([t.reshape(-1) for t in bucket]) if len(bucket) > 1 else bucket[0].contiguous()
            self.reduce(flat)
            for t, own in zip(bucket, flat.view(-1).split_with_sizes([t.numel() for t in bucket]), strict=True):
                t.copy_(own.view_as(t))

    def reduce(self, tensor: Tensor) -> None:
        """One tensor, in place; through the CPU where the device has no way of its own."""
        if tensor.device.type == "cuda":
            dist.all_reduce(tensor, group=self._group)
            return
        there = tensor.cpu()
        dist.all_reduce(there, group=self.cpu)
        if there is not tensor:
            tensor.copy_(there)

    def noise(self, stream: Stream) -> Stream:
        """The leader's is all of it."""
        return stream if self.leader else Silent()

    def purpose(self, name: str) -> str:
        """The leader's as in one process."""
        return name if self.leader else f"{name}, rank {self.rank}"

    def alike(self, model: nn.Module) -> None:
        """Tensor by tensor."""
        with torch.no_grad():
            for _, tensor in _state(model):
                there = tensor.detach().cpu().contiguous()
                dist.broadcast(
                    there.view(-1).view(torch.uint8), 0, group=self.cpu
                )  # bytes: gloo does not know every type
                tensor.copy_(there)

    def check_alike(self, model: nn.Module) -> None:
        """By their digests."""
        if len(set(self.gathered(seals.of_tensors(model.named_parameters())))) > 1:
            raise AssayError(
                "the ranks' parameters differ, though they took the same steps: something outside the private step changed "
                "them, or the ranks compute differently (unequal hardware or versions); the run must not go on"
            )

    def gathered(self, value: T) -> list[T]:
        """What every rank has, by rank."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.cpu)
        return found

    def _broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, 0, group=self.cpu)
        return box[0]


def world() -> World:
    """The processes that this one belongs to. One of several that a launcher started joins the others."""
    if not dist.is_available():
        return ALONE
    if launch.launched():
        launch.join()
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return ALONE
    return _ranks(dist.group.WORLD)


@functools.cache
def _ranks(group: dist.ProcessGroup | None) -> Ranks:
    """One group for what is on the CPU, made once: whatever the ranks were started with, files and counts travel by gloo."""
    return Ranks(group, dist.new_group(backend="gloo"))


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Neighbours of one type and device that are small together."""
    out: list[list[Tensor]] = []
    room = 0
    for t in tensors:
        last = out[-1][-1] if out else None
        if last is None or t.numel() > room or t.dtype != last.dtype or t.device != last.device:
            out.append([])
            room = _BUCKET
        out[-1].append(t)
        room -= t.numel()
    return out


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
