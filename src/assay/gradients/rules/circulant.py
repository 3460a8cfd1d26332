"""Per-record gradients of block-circulant linear layers (GReDP, Eq. 19-20).

The gradient of block (p, q)'s defining vector is the circular correlation of output gradient g_p and input x_q. Its
spectrum is x̂_q · conj(ĝ_p), so a record with one position needs no gradients for its norm
(`assay.gradients.rules.spectra`). With several positions per record, their spectra are added up first. The sums are
kept if they are smaller than their factors, and otherwise built in pieces, for the norm only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.gradients.arithmetic import CHUNK_ELEMENTS as _CHUNK_ELEMENTS
from assay.gradients.arithmetic import masked, rounding
from assay.gradients.rules.spectra import Correlations, Torus, power
from assay.gradients.uses.base import Apart, Dense, LayerUse, Use
from assay.models.circulant import BlockCirculantLinear, circulant_linear


class CirculantRule:
    """y = W x + b with W block-circulant, over any leading dimensions."""

    def forward(self, module: BlockCirculantLinear, params: Mapping[str, Tensor | None], x: Tensor) -> Tensor:
        weight = params["weight"]
        assert weight is not None
        return circulant_linear(x, weight, params["bias"], module.out_features)

    def uses(
        self, module: BlockCirculantLinear, wanted: frozenset[str], x: Tensor, g: Tensor
    ) -> tuple[Sequence[str], LayerUse]:
        g, x = g.reshape(len(g), -1, g.shape[-1]), x.reshape(len(x), -1, x.shape[-1])
        found: dict[str, Use] = {}
        if "weight" in wanted:
            found["weight"] = circulant(_blocks(x, module.block_size), _blocks(g, module.block_size))
        if "bias" in wanted:
            found["bias"] = Dense(g.sum(1))
        return list(found), Apart(list(found.values()))


def _blocks(t: Tensor, size: int) -> Tensor:
    """[B, T, n] to [B, T, ⌈n/size⌉, size], with zeros at the end."""
    return F.pad(t, (0, -t.shape[-1] % size)).reshape(*t.shape[:-1], -1, size)


def circulant(x: Tensor, g: Tensor) -> Use:
    """The cheapest form for inputs [B, T, Q, d] and output gradients [B, T, P, d] (see the module's docstring)."""
    torus = Torus(x.shape[3:])
    positions, columns, rows = x.shape[1], x.shape[2], g.shape[2]
    x, g = torus.spectrum(x), torus.spectrum(g)
    if positions == 1:
        return Correlations(torus, x, g)
    several = Positions(torus, x, g)
    return Dense(several.per_record()) if rows * columns <= positions * (rows + columns) else several


@dataclass(slots=True)
class Positions:
    """Several positions per record: spectra `x` [B, T, Q, K] and `g` [B, T, P, K], for gradients too large to keep."""

    torus: Torus
    x: Tensor
    g: Tensor

    def sq_norm(self) -> Tensor:
        step = max(1, _CHUNK_ELEMENTS // (self.g.shape[2] * self.x.shape[2] * self.torus.points))
        pieces = [
            power(_added_up(x, g).flatten(1, 2), 1) for x, g in zip(self.x.split(step), self.g.split(step), strict=True)
        ]
        powers = torch.cat(pieces)
        raised = 1 + powers.shape[1] * torch.finfo(powers.dtype).eps
        norm = (powers * self.torus.counts(powers)).sum(1).mul_(self.torus.points * raised).sqrt_()
        _, lost = self._apart().norms(summing=rounding(norm.dtype, self.x.shape[1]))
        return norm.add_(lost.view(self.x.shape[:2]).sum(1)).square_()

    def _apart(self) -> Correlations:
        """Each position as if it were a record."""
        return Correlations(self.torus, self.x.flatten(0, 1).unsqueeze(1), self.g.flatten(0, 1).unsqueeze(1))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._apart().weighted_sum(weights.repeat_interleave(self.x.shape[1], 0))

    def per_record(self) -> Tensor:
        return self.torus.signal(_added_up(self.x, self.g)).mul_(math.sqrt(self.torus.points))

    def without(self, bad: Tensor) -> Positions:
        return Positions(self.torus, masked(self.x, bad), masked(self.g, bad))


def _added_up(x: Tensor, g: Tensor) -> Tensor:
    """Σ_t x̂_q · conj(ĝ_p) for each record and block, [B, P, Q, K]."""
    return torch.einsum("btpk,btqk->bpqk", g.conj(), x)
