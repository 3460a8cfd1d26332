"""What a loop does with a batch before the model sees it must keep records apart, too.

A loop may mix records between `batches` and `model(...)`: mixup, centring by the batch's mean, targets that are mixed.
The model sees only the result. So on the first batches the loop gets floating-point tensors that carry a graph, and the
graph shows which records enter which loss.

Let x_j be what the loop was given of record j, l_i the losses, and w_i secret weights. With

    g_j = ∂ Σ_i l_i / ∂x_j   and   h_j = ∂ Σ_i w_i l_i / ∂x_j,

a record that enters one loss alone has h_j = w_i g_j, where i is that loss. A record that enters several has a mixture
of weights, which is none of them but by chance. A few backward passes so check all records at once.

What it does not see: whole numbers (word ids, classes), numbers taken out of the graph (`detach`, `numpy`), and what
begins after the first batches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from assay.gradients.proof.calls import Coins

_SAME = 1.37
FIRST = 4
"""How many batches of a loop are handed out with a graph."""

_MIXED = (
    "a record of the batch enters the losses of several: something between batches() and backward() mixes records "
    "(mixup, CutMix, centring or scaling by the batch, targets that are mixed). Clipping cannot bound what one record "
    "then does. Change each record by itself, in the data set or with `augment`, or use constants"
)


_MOVED = (
    "the losses are in another order than the rows of the batch: the rows of a person, or the views of a record, are "
    "told by their places. Keep the order that batches() gave"
)


class Handed:
    """The tensors of one part of a batch, as the loop got them."""

    def __init__(self, batch: Any) -> None:
        self._leaves: list[Tensor] = []
        self.batch = pytree.tree_map(self._hand_out, batch)
        """The same batch with a graph behind its floating-point tensors."""

    def _hand_out(self, value: Any) -> Any:
        if not (isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0):
            return value
        leaf = value.detach().requires_grad_()
        self._leaves.append(leaf)
        return leaf.clone()  # no leaf: loops may write into their batches

    def fault(self, losses: Tensor, coins: Coins, *, in_order: bool) -> str | None:
        """Why these losses must be refused: several depend on one record, or rows have left their places.

        Args:
            losses: One for each row of the batch.
            coins: Where the weights come from.
            in_order: Whether loss i must be that of row i, because rows belong together by their places.

        Returns:
            A message, or None where nothing is wrong.
        """
        rows = [leaf for leaf in self._leaves if len(leaf) == len(losses)]
        if not rows or len(losses) < 2 or not losses.requires_grad:
            return None
        weights = 0.5 + coins.uniform(len(losses)).to(losses.device)
        plain, weighted = (_gradients(losses, rows, of) for of in (torch.ones_like(weights), weights))
        if plain is None or weighted is None:
            return None
        norms = _norms(weighted)
        told = norms.isfinite() & _norms(plain).isfinite()
        if not bool(told.any()):
            return None
        rounding = 1e-6 * norms[told].max()
        tolerance = rounding + _tolerance(losses, rows) * norms
        if bool(_alone(plain, weighted, weights, tolerance)[told].all()):
            return None
        # one weight for all shows how far rounding goes: the gradient of a loss near its minimum is little else
        scaled = _gradients(losses, rows, torch.full_like(weights, _SAME))
        assert scaled is not None
        told &= _norms(scaled).isfinite()
        seen = 16 * _norms(scaled - _SAME * plain)
        rounding, tolerance = rounding + seen, tolerance + seen
        if bool(_alone(plain, weighted, weights, tolerance)[told].all()):
            return None
        # The loop may have put the rows in another order: then each has the weight of another loss.
        ratio = (plain * weighted).sum(1, dtype=torch.float64) / _norms(plain).square()
        other = (ratio.nan_to_num().unsqueeze(1) - weights).abs().argmin(1)
        moved = _alone(plain, weighted, weights[other], tolerance)
        clear = told & (norms > 1e3 * rounding)
        if not bool(moved[told].all()) or len(other[clear].unique()) < int(clear.sum()):
            return _MIXED
        return _MOVED if in_order else None


def _gradients(losses: Tensor, rows: list[Tensor], weights: Tensor) -> Tensor | None:
    """∂ Σ w_i l_i / ∂x_j, a row for each record; None where the losses depend on nothing that was handed out."""
    summed = (losses * weights.to(losses)).sum()
    found = torch.autograd.grad(summed, rows, retain_graph=True, allow_unused=True)
    flat = [g.to(torch.promote_types(g.dtype, torch.float32)).reshape(len(g), -1) for g in found if g is not None]
    if not flat:
        return None
    return flat[0] if len(flat) == 1 else torch.cat(flat, 1)


def _norms(rows: Tensor) -> Tensor:
    """The norm of each row, added up in double precision: finite if all its numbers are."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


def _alone(plain: Tensor, weighted: Tensor, weights: Tensor, tolerance: Tensor) -> Tensor:
    """Whether h_j = w_j g_j, for every record."""
    alone: Tensor = _norms(torch.addcmul(weighted, weights.to(plain).unsqueeze(1), plain, value=-1)) <= tolerance
    return alone


def _tolerance(losses: Tensor, rows: list[Tensor]) -> float:
    """Rounding of gradients, relative; arithmetic in half precision is coarse."""
    if torch.is_autocast_enabled(losses.device.type):
        return 0.1
    coarsest = max(torch.finfo(t.dtype).eps for t in (losses, *rows))
    return 0.1 if coarsest > 1e-4 else 1e-3
