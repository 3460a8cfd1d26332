"""The per-record gradients of one batch, by the uses of parameters that a pass has recorded.

Norms come first: a record whose gradient holds NaN or Inf is zeroed and counted there. All later sums are finite, and
no record contributes more to them than its norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from assay.gradients.arithmetic import corner, zeros_for
from assay.gradients.rules.correlation import Basis, Filtered
from assay.gradients.uses.base import Apart, Found

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
