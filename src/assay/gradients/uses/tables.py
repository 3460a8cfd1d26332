"""Uses of a table by its rows (an embedding). A table per record is built only if a method needs the gradients.

A record may pick one row several times: its gradients for that row are added up before a norm is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.gradients.arithmetic import EPS, masked, rounding
from assay.gradients.uses.base import Dense

_MANY = 256
"""Up to this many terms, `rounding` also covers errors that all have one sign."""


@dataclass(slots=True)
class Rows:
    """Rows of a table: record b adds `g[b, t]` to row `index[b, t]` of a [rows, D] parameter (an embedding)."""

    index: Tensor
    g: Tensor
    rows: int

    def sq_norm(self) -> Tensor:
        records = self.g.shape[0]
        key = self.index + self.rows * torch.arange(records, device=self.index.device).unsqueeze(1)
        distinct, place, times = key.flatten().unique(return_inverse=True, return_counts=True)
        sums = self.g.new_zeros(len(distinct), self.g.shape[2]).index_add_(0, place, self.g.flatten(0, 1))
        whose, terms = distinct // self.rows, self.g.shape[1]
        norm = self.g.new_zeros(records).index_add_(0, whose, sums.square().sum(1)).sqrt_()
        norm = norm.add_(self.size(), alpha=rounding(self.g.dtype, terms))
        if terms > _MANY:
            # Rounding errors that all have one sign grow with the number of terms, and a record may have them (one word
            # again and again). Sums of n terms lose n/2 · eps of their sizes, here and in the weighted sum.
            eps = EPS[norm.dtype]
            sizes = torch.linalg.vector_norm(self.g, dim=2).flatten()
            lost = self.g.new_zeros(len(distinct)).index_add_(0, place, sizes).mul_(times).square_()
            norm = norm.mul_(1 + terms * eps).add_(
                self.g.new_zeros(records).index_add_(0, whose, lost).sqrt_(), alpha=eps
            )
        return norm.square_()

    def size(self) -> Tensor:
        """Σ_t ‖g_t‖ for each record."""
        norms: Tensor = torch.linalg.vector_norm(self.g, dim=2)
        return norms.sum(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = (self.g * weights.unsqueeze(2)).flatten(0, 1)
        return self.g.new_zeros(self.rows, self.g.shape[2]).index_add_(0, self.index.flatten(), scaled)

    def per_record(self) -> Tensor:
        out = self.g.new_zeros(self.g.shape[0], self.rows, self.g.shape[2])
        return out.scatter_add_(1, self.index.unsqueeze(2).expand_as(self.g), self.g)

    def without(self, bad: Tensor) -> Rows:
        return Rows(self.index, masked(self.g, bad), self.rows)


@dataclass(slots=True)
class SharedRows:
    """Rows of a table where every record uses the same ones (positions): `index` [T], `g` [B, T, D] added to them."""

    index: Tensor
    g: Tensor
    rows: int
    _sums: Dense | None = None
    _distinct: Tensor | None = None

    def _summed(self) -> tuple[Dense, Tensor]:
        """The gradient of each row that is used, [B, distinct, D], and which rows these are."""
        if self._sums is None or self._distinct is None:
            self._distinct, place = self.index.unique(return_inverse=True)
            sums = self.g.new_zeros(self.g.shape[0], len(self._distinct), self.g.shape[2])
            self._sums = Dense(sums.index_add_(1, place, self.g))
        return self._sums, self._distinct

    def sq_norm(self) -> Tensor:
        return self._summed()[0].sq_norm()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        sums, distinct = self._summed()
        table = self.g.new_zeros(self.rows, self.g.shape[2])
        table[distinct] = sums.weighted_sum(weights)
        return table

    def each(self) -> Rows:
        """The same with separate rows for each record."""
        return Rows(self.index.expand(self.g.shape[:2]), self.g, self.rows)

    def per_record(self) -> Tensor:
        return self.each().per_record()

    def without(self, bad: Tensor) -> SharedRows:
        return SharedRows(self.index, masked(self.g, bad), self.rows)
