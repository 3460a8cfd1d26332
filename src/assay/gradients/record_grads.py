"""The per-record gradients of one batch, by the uses of parameters that a pass has recorded.

Norms come first: a record whose gradient holds NaN or Inf is zeroed and counted there. All later sums are finite, and
no record contributes more to them than its norm.

Where any of several correct computations may be fastest, `choose_all` and `quickest_way` let a measurement decide
(`assay.gradients.quickest`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from assay.gradients.arithmetic import corner, zeros_for
from assay.gradients.products import summed
from assay.gradients.quickest import remembered, rounded_up, timed_records
from assay.gradients.rules.correlation import Basis, Filtered
from assay.gradients.rules.recurrent import Joined
from assay.gradients.uses.base import Affine, Apart, Found, Outer, Rank1, keeps_product
from assay.gradients.uses.convolution import ConvShape, Way, ways

Reduce = Callable[[Tensor], Tensor]
"""Turns a parameter's weighted sum into what is kept of it; called for the parameters in their order."""


@dataclass(slots=True)
class RecordGrads:
    """The per-record gradients of one batch, in the cheapest form. Sensitive: they live for one step only."""

    records: int
    uses: Found
    parameters: Mapping[str, nn.Parameter]
    layer_of: Mapping[str, int]
    layers: int
    nonfinite: int = 0
    padding: int = 0
    """How many rows at the end are not records. Only sums on a grid leave them out (`assay.gradients.on_grid`)."""
    reduce: Reduce | None = None

    def norms(self, groups: list[int]) -> Tensor:
        """l2 norm of each record's gradient in each clipping group, [B, L].

        Records whose gradient holds NaN or Inf are zeroed from here on, and counted.
        """
        norms = self.plain_norms(groups)
        if not math.isfinite(norms.sum().item()):
            bad = ~torch.isfinite(norms.sum(1))
            self.nonfinite += int(bad.sum())
            self.uses = [(names, Apart([part.without(bad) for part in use.apart()])) for names, use in self.uses]
            norms = norms.masked_fill(bad.unsqueeze(1), 0.0)
        return norms

    def plain_norms(self, groups: list[int]) -> Tensor:
        """The norms including NaN and Inf; nothing is zeroed or counted."""
        if len(self.uses) == 1 and max(groups) == 0:
            return self.uses[0][1].norm()
        by_group: dict[int, Tensor] = {}
        for names, use in self.uses:
            group, squares = groups[self.layer_of[names[0]]], use.sq_norm()
            by_group[group] = by_group[group] + squares if group in by_group else squares
        first = next(iter(self.parameters.values()))
        zeros = torch.zeros(self.records, dtype=first.dtype, device=first.device)
        return torch.stack([by_group.get(group, zeros) for group in range(max(groups) + 1)], 1).sqrt_()

    def weighted_sum(self, weights: Tensor, groups: list[int]) -> dict[str, Tensor]:
        """Σ_i weights[i, group] · gradient_i for every parameter. Call `norms` first: it zeroes NaN and Inf."""
        columns = [weights] if weights.shape[1] == 1 else weights.t().contiguous().unsqueeze(2).unbind(0)
        if self.reduce is not None:
            return self._reduced_sum(columns, groups, self.reduce)
        out: dict[str, Tensor] = {}
        for names, use in self.uses:
            out.update(zip(names, use.weighted_sums(columns[groups[self.layer_of[names[0]]]]), strict=True))
        return {n: out[n] if n in out else zeros_for(p) for n, p in self.parameters.items()}

    def _reduced_sum(self, columns: Sequence[Tensor], groups: list[int], reduce: Reduce) -> dict[str, Tensor]:
        """Layer by layer in the parameters' order, so that only one layer's sums are whole at a time."""
        of = {name: (names, use) for names, use in self.uses for name in names}
        made: dict[str, Tensor] = {}
        out: dict[str, Tensor] = {}
        for name, p in self.parameters.items():
            if name in of and name not in made:
                names, use = of[name]
                made.update(zip(names, use.weighted_sums(columns[groups[self.layer_of[name]]]), strict=True))
            total = made.pop(name) if name in made else zeros_for(p)
            out[name] = reduce(total)
        return out

    def bases(self) -> dict[str, Basis]:
        """The bases of those parameters whose weighted sum is in coordinates."""
        parts = [(name, part) for names, use in self.uses for name, part in zip(names, use.apart(), strict=True)]
        return {name: part.basis for name, part in parts if isinstance(part, Filtered)}

    def total(self, weights: Tensor) -> dict[str, Tensor]:
        """The weighted sum of the gradients in the parameters' shapes; weights are [B, 1]."""
        whole: Found = [
            (n, Apart([p.whole() if isinstance(p, Filtered) else p for p in u.apart()])) for n, u in self.uses
        ]
        sums = replace(self, uses=whole).weighted_sum(weights, [0] * self.layers)
        return {name: corner(value, self.parameters[name].shape) for name, value in sums.items()}

    def per_record(self) -> dict[str, Tensor]:
        """The gradients themselves for each parameter, [B, *shape], or a map whose leading corner they are.

        Records whose gradient holds NaN or Inf are zeroed and counted.
        """
        self.norms([0] * self.layers)
        found = {name: part for names, use in self.uses for name, part in zip(names, use.apart(), strict=True)}
        whole: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            shape = (self.records, *parameter.shape)
            values = found[name].per_record() if name in found else parameter.new_zeros(shape)
            whole[name] = values.view(shape) if values.numel() == math.prod(shape) else values
        return whole


_MOST_RECORDS = 32
_LAYERS = 6


def choose_all(found: Found) -> None:
    """Let measurements choose how every use of a pass is computed."""
    for _, use in found:
        if isinstance(use, Apart):
            for part in use.uses:
                if isinstance(part, Outer):
                    choose(part)
                elif isinstance(part, Rank1):
                    part.product = summed
        elif isinstance(use, Affine):
            use.product = summed
        elif isinstance(use, Joined):
            choose(use.weights)


def choose(use: Outer) -> None:
    """Set `keep` where the shape leaves a choice, and how the sum is multiplied out."""
    positions, out, inp = use.shape
    use.keep, use.product = keeps_product(positions, out, inp), summed
    if use.keep is not None:
        return
    records, g = min(_MOST_RECORDS, rounded_up(len(use.g))), use.g
    shape = (records, rounded_up(positions), out, inp)
    use.keep = bool(remembered(("keep", *shape, g.dtype), lambda: _both_ways(*shape, g), g.device))


def quickest_way(shape: ConvShape, x: Tensor, g: Tensor) -> Way:
    """The fastest way to a convolution's gradients, with their norms and their sum."""
    last = x.is_contiguous(memory_format=torch.channels_last)
    all_ways = ways(shape, x, g)
    if len(all_ways) == 1:
        return all_ways[0]

    def runs() -> list[functools.partial[list[Tensor]]]:
        source = torch.Generator().manual_seed(0)

        records = min(timed_records(x), timed_records(g))

        def made(like: Tensor) -> Tensor:
            drawn = torch.randn(records, *like.shape[1:], generator=source).to(like)
            return drawn.contiguous(memory_format=torch.channels_last) if last else drawn

        some_x, some_g = made(x), made(g)
        weights = some_x.new_ones(len(some_x), 1)

        def run(way: Way) -> list[Tensor]:
            use = way(shape, some_x, some_g)
            return [use.sq_norm(), use.weighted_sum(weights)]

        return [functools.partial(run, way) for way in all_ways]

    return all_ways[remembered((shape, rounded_up(len(x)), x.shape[1:], last, x.dtype), runs, x.device)]


def _both_ways(records: int, positions: int, out: int, inp: int, like: Tensor) -> list[functools.partial[list[Tensor]]]:
    source = torch.Generator().manual_seed(0)  # torch's global state belongs to the user

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source).to(like)

    g, x, weights = made(records, positions, out), made(records, positions, inp), made(records, 1)

    def way(keep: bool) -> list[Tensor]:
        # as in a step: all norms before the first sum, so that what is kept is no longer in the caches
        uses = [Outer(g, x, keep, summed) for _ in range(_LAYERS)]
        for use in uses:
            use.sq_norm()
        return [use.weighted_sum(weights) for use in uses]

    return [functools.partial(way, keep) for keep in (False, True)]
