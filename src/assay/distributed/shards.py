"""A model split over the ranks by FSDP2 (`torch.distributed.fsdp.fully_shard`), for models that do not fit one device.

Parameters, gradients and optimizer state are split by rows. For its pass through a layer, every rank gets the layer's
whole parameters and frees them afterwards. The engine works on that layer as usual: norms and clipped sums of the
rank's own records. Then the sums are added over the ranks, layer by layer, and each rank keeps its rows. A record's
norm needs no other rank, because its whole gradient is on the rank that has the record.

The leader draws the noise as one process would, and sends each rank that of its rows. So every coordinate gets its
noise once, and with a seed the same noise as in one process. The leader needs memory for one whole vector of noise, on
the CPU.

The engine proves itself on the whole model before it is split: afterwards no rank has it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from assay.distributed.world import Ranks
from assay.errors import UnsupportedModelError
from assay.gradients.engine import Engine
from assay.randomness.normal import add_vector
from assay.randomness.streams import Stream, add_normal

# one function, renamed in torch 2.13
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Shards:
    """Every row of a parameter is on one rank."""

    split = True

    def __init__(self, engine: Engine, ranks: Ranks, device: torch.device) -> None:
        self._ranks = ranks
        _split(engine, ranks.size, device)
        # FSDP2 unshards in a hook on the layer's output, which an in-place activation removes if the output is a view.
        engine.use_shards(self._reduced, lambda layer: layer.unshard() if isinstance(layer, FSDPModule) else None)
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        self._shapes = {name: parameter.shape for name, parameter in engine.parameters.items()}

    def noise(self, stream: Stream) -> Stream:
        """The noise of the rank's rows."""
        return _Scattered(self._ranks, stream, list(self._shapes.values()))

    def combine(self, value: Mapping[str, Tensor]) -> None:
        """Nothing to do: the sums were added up layer by layer."""

    def passes(self, count: int) -> int:
        """As many as the rank with the most parts makes."""
        return self._ranks.most(count)

    def gradient(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """The rank's rows."""
        return _like(parameter, value)

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gathered one by one, and kept on the leader only: no other rank needs the memory."""
        out: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self._ranks.leader:
                out[name] = full.cpu()
        return out

    def local(self, parameter: Tensor, value: Tensor) -> Tensor:
        """The rank's rows, if the tensor has the parameter's shape."""
        if value.shape != parameter.shape:
            return value
        start, stop = _rows(len(value), self._ranks.size, self._ranks.rank)
        return _like(parameter, value[start:stop].to(parameter.device).clone())

    def check(self, model: nn.Module) -> None:
        """Nothing to compare: every row is on one rank only."""

    def _reduced(self, total: Tensor) -> Tensor:
        """The rank's rows of a sum over all ranks."""
        rows, ranks = len(total), self._ranks
        each = -(-rows // ranks.size)
        padded = total if each * ranks.size == rows else total.new_zeros(each * ranks.size, *total.shape[1:])
        if padded is not total:
            padded[:rows] = total
        out = total.new_empty(each, *total.shape[1:])
        _reduce_scatter(out, padded.contiguous())
        start, stop = _rows(rows, ranks.size, ranks.rank)
        return out[: stop - start]


def _rows(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """Which rows a rank has: as many as the others, except for the last ranks."""
    each = -(-rows // ranks)
    return min(rank * each, rows), min((rank + 1) * each, rows)


def _like(parameter: Any, value: Tensor) -> Tensor:
    whole: Tensor = DTensor.from_local(
        value, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )
    return whole


def _split(engine: Engine, ranks: int, device: torch.device) -> None:
    """Split every layer by itself, so that one layer at a time is whole.

    Weights that layers share are split together with the model. So are modules that run with a copy of their parameters
    for every record: their calls record by record would run FSDP2's hooks within each other.
    """
    model = engine.model
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 0:
                raise UnsupportedModelError(
                    f"parameter {name} of a {type(module).__name__} is a single number, which cannot be split over "
                    "ranks: give it shape [1]"
                )
            owners.setdefault(id(parameter), []).append(module)
    shared = {key for key, modules in owners.items() if len(modules) > 1}
    mesh = init_device_mesh(device.type, (ranks,))
    done = {inner for outer in engine.expanded() for inner in outer.modules()} | {model}
    for module in list(model.modules()):
        has_parameters = any(True for _ in module.parameters(recurse=False))
        if module in done or not has_parameters or any(id(p) in shared for p in module.parameters()):
            continue
        done.update(module.modules())
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


class _Scattered:
    """Sends each rank its rows of the leader's noise."""

    def __init__(self, ranks: Ranks, stream: Stream, shapes: Sequence[torch.Size]) -> None:
        self._ranks, self._stream, self._shapes = ranks, stream, shapes

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """Draw for the whole model, as one process does, and send each rank its rows."""
        counts = [self._count(rank) for rank in range(self._ranks.size)]
        count, dtype = counts[self._ranks.rank], values[0].dtype
        assert sum(v.numel() for v in values) == count, "noise is for all of a rank's rows at once"
        mine = torch.empty(max(counts), dtype=dtype)
        dist.scatter(mine, self._drawn(max(counts), dtype) if self._ranks.leader else None, 0, group=self._ranks.cpu)
        add_vector(values, std, mine[:count].to(values[0].device))

    def _count(self, rank: int) -> int:
        rows = (_rows(shape[0], self._ranks.size, rank) for shape in self._shapes)
        return sum((stop - start) * shape[1:].numel() for (start, stop), shape in zip(rows, self._shapes, strict=True))

    def _drawn(self, longest: int, dtype: torch.dtype) -> list[Tensor]:
        noise = [torch.zeros(shape, dtype=dtype) for shape in self._shapes]
        add_normal(noise, 1.0, self._stream)
        out = []
        for rank in range(self._ranks.size):
            padded = torch.zeros(longest, dtype=dtype)
            joined = torch.cat([t[slice(*_rows(len(t), self._ranks.size, rank))].reshape(-1) for t in noise])
            padded[: len(joined)] = joined
            out.append(padded)
        return out

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Refused: a split model only adds noise."""
        raise AssertionError(f"a split model asked for {shape} numbers of {dtype} on {device}")

    laplace = normal

    def uniform(self, n: int) -> Tensor:
        """Refused for a split model."""
        raise AssertionError(f"a split model asked for {n} uniform numbers")

    def integers(self, high: int, n: int) -> Tensor:
        """Refused for a split model."""
        raise AssertionError(f"a split model asked for {n} numbers below {high}")
