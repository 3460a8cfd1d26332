"""Artificial layers whose records may have any gradients, for the audit of one step of a chain.

The shapes are those that methods treat differently: convolution kernels, block-circulant weights, a matrix with a bias.
Gradients are vectors over all parameters and go through the chain's clipping as if a model had computed them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from assay.errors import ConfigError
from assay.gradients.record_grads import RecordGrads
from assay.gradients.uses.base import Apart, Dense
from assay.mechanisms.correlated import Correlated
from assay.mechanisms.types import Bounded
from assay.methods.chain import Chain
from assay.methods.plan import Plan
from assay.randomness.streams import Stream

_KINDS: tuple[Mapping[str, tuple[int, ...]], ...] = (
    {"weight": (1, 1, 3, 3)},
    {"weight": (1, 2, 4)},  # block-circulant: one row of two blocks of four
    {"weight": (2, 3), "bias": (2,)},
    {"weight": (2, 1, 2, 2)},
)


@dataclass(frozen=True)
class Specimen:
    """A number of layers, their kinds taken in turn. Without biases each is one tensor."""

    layers: int = len(_KINDS)
    biases: bool = True

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ConfigError("layers", self.layers, "a whole number, 1 or above")

    @classmethod
    def for_plan(cls, plan: Plan) -> Specimen:
        """A specimen with as many layers as the plan's method was set for, if it was."""
        return cls(plan.method.layers or len(_KINDS), biases=not plan.method.by_tensor)

    @property
    def names(self) -> list[str]:
        """The layers."""
        return [f"layer{i}" for i in range(self.layers)]

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters, in the order of the vectors."""
        return {
            f"{layer}.{name}": nn.Parameter(torch.zeros(shape))
            for i, layer in enumerate(self.names)
            for name, shape in _KINDS[i % len(_KINDS)].items()
            if self.biases or name == "weight"
        }

    @cached_property
    def size(self) -> int:
        """Coordinates of a vector."""
        return sum(p.numel() for p in self.parameters.values())

    def slices(self) -> list[slice]:
        """The slice of a vector for each layer."""
        sizes = [sum(p.numel() for n, p in self.parameters.items() if n.startswith(f"{name}.")) for name in self.names]
        ends = torch.tensor(sizes).cumsum(0).tolist()
        return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def gradients(self, vectors: Tensor) -> RecordGrads:
        """Records with these gradients, [B, size]."""
        columns = vectors.split([p.numel() for p in self.parameters.values()], 1)
        dense = {
            name: Dense(values.reshape(len(vectors), *p.shape))
            for (name, p), values in zip(self.parameters.items(), columns, strict=True)
        }
        by_layer = [[n for n in dense if n.startswith(f"{layer}.")] for layer in self.names]
        return RecordGrads(
            records=len(vectors),
            uses=[(names, Apart([dense[n] for n in names])) for names in by_layer],
            parameters=self.parameters,
            layer_of={n: i for i, names in enumerate(by_layer) for n in names},
            layers=self.layers,
        )

    def total(self, chain: Chain, vectors: Tensor, slots: Tensor | None) -> dict[str, Tensor]:
        """The chain's clipped sum over records with these gradients."""
        return chain.clipped_sum(self.gradients(vectors), chain.clip.groups(self.names), slots)[0]


def flat(values: Mapping[str, Tensor]) -> Tensor:
    """All tensors as one vector."""
    return torch.cat([v.reshape(-1) for v in values.values()])


def releases_of(chain: Chain, total: Mapping[str, Tensor], streams: Sequence[Stream]) -> Tensor:
    """Releases of this sum by the chain, one for each stream, each as one vector: [releases, size]."""
    out = flat(total).repeat(len(streams), 1)
    rows = [
        columns.unflatten(1, value.shape).unbind(0)
        for columns, value in zip(out.split([v.numel() for v in total.values()], 1), total.values(), strict=True)
    ]
    for stream, *row in zip(streams, *rows, strict=True):
        if isinstance(chain.noise, Correlated):  # each release is the first of its run, and independent of the others
            chain = replace(chain, noise=replace(chain.noise))
        value = chain.release(Bounded(dict(zip(total, row, strict=True)), chain.l2), stream).value
        for given, name in zip(row, total, strict=True):
            if value[name] is not given:  # mechanisms may work in place
                given.copy_(value[name])
    return out
