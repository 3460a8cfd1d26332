"""The processes that train one model together, and where its parameters are.

`Alone` is one process; `Ranks` are several with a share of the records each. A `Placement` says where the parameters
are: whole on every rank (`Everywhere`), or split over the ranks (`assay.distributed.shards`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from assay._util import seals
from assay.data.records import Records
from assay.distributed import launch
from assay.errors import AssayError, ConfigError, LeaderError
from assay.randomness.streams import Stream

T = TypeVar("T")
P = ParamSpec("P")
_BUCKET = 1 << 22  # numbers that travel together: small tensors are not worth a message each


@dataclass(frozen=True, slots=True)
class Share:
    """The records of one rank: those from `first` to below `last` of the whole data set."""

    first: int
    last: int
    at: int
    """Where the first of them is in the rank's data set."""

    def local(self, index: Tensor) -> Tensor:
        """The records of a batch that are in this share, as places in the rank's data set."""
        mine = index[(index >= self.first) & (index < self.last)]
        return mine - (self.first - self.at)


class Silent:
    """Zeros, for ranks whose sum gets no noise because the leader adds all of it.

    The mechanism of such a rank adds zeros and states the event of the whole release. Randomness that is not added
    noise is refused.
    """

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Zeros."""
        return torch.zeros(tuple(shape), dtype=dtype, device=device)

    laplace = normal

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """Add nothing."""

    def uniform(self, n: int) -> Tensor:
        """Refused: it cannot be added up."""
        raise AssertionError(f"a mechanism asked for {n} uniform numbers, which ranks cannot share as added noise")

    def integers(self, high: int, n: int) -> Tensor:
        """Refused: it cannot be added up."""
        raise AssertionError(f"a mechanism asked for {n} numbers below {high}, which ranks cannot share as added noise")


class World(Protocol):
    """What training asks of its processes. Every rank calls the same functions in the same order."""

    @property
    def size(self) -> int:
        """The number of processes."""
        ...

    @property
    def leader(self) -> bool:
        """Whether this process writes the files and draws the noise."""
        ...

    def share(self, records: Records, whole: int) -> Share:
        """This rank's share of the records. No record is in two shares, or one record would count twice in a step.

        Args:
            records: The whole data set, or this rank's share of it.
            whole: The size of the whole data set.

        Raises:
            ConfigError: The ranks' data sets do not add up to the whole, have records in common, or are not the same
                where each has the whole.
        """
        ...

    def once(self, make: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """What `make` returns on the leader, which alone calls it. An error there is raised on every rank."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether any rank says yes."""
        ...

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks, with the same bits on all of them."""
        ...

    def noise(self, stream: Stream) -> Stream:
        """The noise that this rank adds: all of it on the leader, nothing on the others."""
        ...

    def purpose(self, name: str) -> str:
        """The name of a stream that must differ between ranks even if they share a seed."""
        ...

    def align(self, model: nn.Module) -> None:
        """Give every rank the leader's parameters and buffers."""
        ...

    def check_alike(self, model: nn.Module) -> None:
        """Stop if parameters differ between ranks by a single bit.

        Raises:
            AssayError: They do.
        """
        ...


class Alone:
    """One process."""

    size, leader = 1, True

    def share(self, records: Records, whole: int) -> Share:
        """All records."""
        if len(records) != whole:
            raise ConfigError("dataset", f"{len(records)} records", f"the {whole} records that the plan was made for")
        return _Everything(0, whole, 0)

    def once(self, make: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """What `make` returns."""
        return make(*given, **named)

    def any(self, flag: bool) -> bool:
        """The flag itself."""
        return flag

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to add up."""

    def noise(self, stream: Stream) -> Stream:
        """All of it."""
        return stream

    def purpose(self, name: str) -> str:
        """The name itself."""
        return name

    def align(self, model: nn.Module) -> None:
        """Nothing to copy."""

    def check_alike(self, model: nn.Module) -> None:
        """Nothing to compare."""


ALONE = Alone()


class _Everything(Share):
    """All records, on one process."""

    __slots__ = ()

    def local(self, index: Tensor) -> Tensor:
        """The batch itself."""
        return index


class Ranks:
    """Several processes, each with its share of the records."""

    def __init__(self, group: dist.ProcessGroup | None, cpu: dist.ProcessGroup) -> None:
        self._group, self.cpu = group, cpu
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.leader = self.rank == 0
        self._apart: set[tuple[Any, ...]] = set()  # shares that were compared record by record

    def share(self, records: Records, whole: int) -> Share:
        """Equal shares in order if every rank has the whole data set; else what each rank has, one after the other.

        Shares are compared by `Records.marks`. Where a share itself holds copies of records, other shares may hold
        some too: up to four for each.
        """
        mine = len(records)
        shares = self.gather((mine, records.digest() if mine else None))
        counts, digests = zip(*shares, strict=True)
        if sum(counts) == whole:
            if tuple(shares) not in self._apart:
                self._check_apart(self.gather(records.marks()))
                self._apart.add(tuple(shares))
            first = sum(counts[: self.rank])
            return Share(first, first + mine, 0)
        if any(count != whole for count in counts):
            raise ConfigError(
                "dataset",
                f"{mine} records here, {counts} on the ranks",
                f"on every rank the {whole} records that the plan was made for, or shares that add up to them",
            )
        if len(set(digests)) > 1:
            raise ConfigError(
                "dataset",
                "other records, or another order, than on another rank",
                "the same records in the same order on every rank: each rank takes its share by their places, and a "
                "record that two ranks took would count twice",
            )
        first, last = (whole * rank // self.size for rank in (self.rank, self.rank + 1))
        return Share(first, last, first)

    def _check_apart(self, marks: list[list[str]]) -> None:
        different = [set(each) for each in marks]
        copies = sum(map(len, marks)) - sum(map(len, different))
        common = sum(map(len, different)) - len(set().union(*different))
        if common > 4 * (self.size - 1) * copies:
            raise ConfigError(
                "dataset",
                f"{common} records on two ranks",
                "shares without a record in common: it would count twice. If the data set holds copies, give every "
                "rank all of it",
            )

    def once(self, make: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Broadcast by the leader."""
        if not self.leader:
            told, error = self._broadcast(None)
            if error is not None:
                raise LeaderError(*error)
            return told  # type: ignore[no-any-return]
        try:
            made = make(*given, **named)
        except Exception as error:
            self._broadcast((None, (str(error), getattr(error, "exit_code", 1))))
            raise
        self._broadcast((made, None))
        return made

    def any(self, flag: bool) -> bool:
        """One number is exchanged."""
        asked = torch.tensor(int(flag))
        dist.all_reduce(asked, op=dist.ReduceOp.MAX, group=self.cpu)
        return bool(asked)

    def most(self, count: int) -> int:
        """The largest number of any rank."""
        largest = torch.tensor(count)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.cpu)
        return int(largest)

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add up in buckets. Every number is added up in one place and sent to all, so that all ranks have the same."""
        for bucket in _buckets(tensors):
            flat = torch.cat([t.reshape(-1) for t in bucket]) if len(bucket) > 1 else bucket[0].contiguous()
            self.reduce(flat)
            for t, piece in zip(bucket, flat.view(-1).split_with_sizes([t.numel() for t in bucket]), strict=True):
                t.copy_(piece.view_as(t))

    def reduce(self, tensor: Tensor) -> None:
        """Add up one tensor in place, by way of the CPU unless it is on CUDA."""
        if tensor.device.type == "cuda":
            dist.all_reduce(tensor, group=self._group)
            return
        there = tensor.cpu()
        dist.all_reduce(there, group=self.cpu)
        if there is not tensor:
            tensor.copy_(there)

    def noise(self, stream: Stream) -> Stream:
        """All of it on the leader, zeros on the others."""
        return stream if self.leader else Silent()

    def purpose(self, name: str) -> str:
        """The name itself on the leader, as in one process."""
        return name if self.leader else f"{name}, rank {self.rank}"

    def align(self, model: nn.Module) -> None:
        """Broadcast tensor by tensor."""
        with torch.no_grad():
            for _, tensor in _state(model):
                there = tensor.detach().cpu().contiguous()
                as_bytes = there.view(-1).view(torch.uint8)  # gloo does not know every type
                dist.broadcast(as_bytes, 0, group=self.cpu)
                tensor.copy_(there)

    def check_alike(self, model: nn.Module) -> None:
        """Compare digests."""
        if len(set(self.gather(seals.of_tensors(model.named_parameters())))) > 1:
            raise AssayError(
                "the ranks' parameters differ, though they took the same steps: something outside the private step "
                "changed them, or the ranks compute differently (unequal hardware or versions); the run must not go on"
            )

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.cpu)
        return found

    def _broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, 0, group=self.cpu)
        return box[0]


def world() -> World:
    """The processes that this one belongs to. If a launcher started several, this one joins the others."""
    if not dist.is_available():
        return ALONE
    if launch.launched():
        launch.join()
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return ALONE
    return _ranks(dist.group.WORLD)


@functools.cache
def _ranks(group: dist.ProcessGroup | None) -> Ranks:
    """The ranks, made once, with a gloo group for values on the CPU, whatever backend the ranks were started with."""
    return Ranks(group, dist.new_group(backend="gloo"))


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Consecutive tensors of one type and device, as many as fit a bucket."""
    out: list[list[Tensor]] = []
    left = 0
    for t in tensors:
        last = out[-1][-1] if out else None
        if last is None or t.numel() > left or t.dtype != last.dtype or t.device != last.device:
            out.append([])
            left = _BUCKET
        out[-1].append(t)
        left -= t.numel()
    return out


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
