"""Whose each row is, where a model gives a layer some rows of the batch: an expert sees the records that chose it.

Nobody tells the engine which rows these are, and every batch has others. So the losses are weighted by powers of two,
by the digits of each record's number, and what comes back to a row is the plain gradient times one of them. A backward
pass is linear, and a power of two changes no bit of a mantissa. A row that depends on records with different digits is
no such multiple, so rows of several records are found on every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from assay.gradients.uses.persons import Persons

_BITS, _BITS_OF_HALF = 4, 2  # of a digit: float16 has few exponents
_ROUNDING = 1e-6  # kernels that add up in any order
_NOTHING = 1e-30


def owners(losses: Tensor, places: Sequence[Any]) -> list[Tensor | None]:
    """Which record each row of some tensors belongs to.

    Args:
        losses: One for each record. Their graph is kept.
        places: The tensors, or their places in the graph.

    Returns:
        For each place the number of the record of each row, or None if a row belongs to several. It is -1 where the
        gradient is nothing, or not finite, which nobody can attribute; the record is then not finite elsewhere.
    """
    records = len(losses)

    def back(weights: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(
            (losses * weights.to(losses)).sum(), places, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return [g.unsqueeze(1).flatten(1) for g in found]

    plain = back(torch.ones(records))
    bits = _BITS_OF_HALF if any(g.dtype is torch.float16 for g in plain) else _BITS
    sizes = [g.abs().amax(1, keepdim=True).nan_to_num(0, 0, 0) if g.shape[1] else g.sum(1, keepdim=True) for g in plain]
    told = [(size > _NOTHING) & g.isfinite().all(1, keepdim=True) for g, size in zip(plain, sizes, strict=True)]
    found = [torch.zeros(len(g), dtype=torch.int64, device=g.device) for g in plain]
    fits = [True] * len(plain)
    number = torch.arange(records)
    for shift in range(0, max(1, (records - 1).bit_length()), bits):
        digits = number >> shift & ((1 << bits) - 1)
        for i, weighted in enumerate(back(2.0**digits)):
            factor = torch.where(told[i], weighted.abs().amax(1, keepdim=True) / sizes[i], 1.0)
            digit = factor.double().log2().round()
            gap = (weighted - plain[i] * (2.0**digit).to(plain[i])).abs().amax(1, keepdim=True)
            fits[i] &= bool((~told[i] | (gap <= _ROUNDING * factor * sizes[i])).all())
            found[i] += digit.nan_to_num(0, 0, 0).long().flatten() << shift
    return [
        torch.where(known.flatten(), at, -1) if fit and bool((at < records).all()) else None
        for at, known, fit in zip(found, told, fits, strict=True)
    ]


def by_record(rows: Tensor, records: int, *tensors: Tensor) -> tuple[Persons, list[Tensor]]:
    """Rows in the order of their records, and how many each record has; those of nobody are left out.

    Args:
        rows: Whose each row is, from `owners`.
        records: How many records there are.
        tensors: With these rows.
    """
    kept = (rows >= 0).nonzero().flatten()
    order = kept[rows[kept].argsort(stable=True)]
    return Persons(rows[kept].bincount(minlength=records).cpu()), [
        t.index_select(0, order.to(t.device)) for t in tensors
    ]
