"""Several views of one record as one record: the gradient that is clipped is the sum over the record's rows.

A batch of B records with K views each runs through the model as B·K independent rows, with the views of a record one
after the other. This module combines the rows of a record, as positions of a sequence are combined. Outer products stay
factors, whose norm is a Gram matrix over K·T positions; everything else is added up. This is exact: the norm of a
single view never stands for that of the record.
"""

from __future__ import annotations

from torch import Tensor

from assay.gradients.rules.standardised import Projected
from assay.gradients.uses.base import Apart, Dense, LayerUse, Outer, Rank1, Reshaped, Use
from assay.gradients.uses.convolution import Convolved
from assay.gradients.uses.repeated import Tied
from assay.gradients.uses.tables import Rows


def folded(layer: LayerUse, views: int) -> LayerUse:
    """The use of a layer's parameters by records of `views` rows each."""
    parts = layer.apart()
    return Apart([Reshaped(fold(u.use, views), u.shape) if isinstance(u, Reshaped) else fold(u, views) for u in parts])


def fold(use: Use, views: int) -> Use:
    """The use of one parameter by records of `views` rows each."""
    match use:
        case Rank1():
            return Outer(_apart(use.g, views), _apart(use.x, views))
        case Outer():
            return Outer(_joined(use.g, views), _joined(use.x, views))
        case Rows():
            return Rows(_joined(use.index, views), _joined(use.g, views), use.rows)
        case Tied():
            rows, factors = fold(use.rows, views), Outer(_joined(use.outer.g, views), _joined(use.outer.x, views))
            assert isinstance(rows, Rows)
            return Tied(rows, factors)
        case Convolved():
            return Dense(_convolved(use, views))
        case Projected():
            return Dense(use.onto(_convolved(use.kernel, views)))
        case _:
            return Dense(_apart(use.per_record(), views).sum(1))


def _convolved(use: Convolved, views: int) -> Tensor:
    """[B, *weight]. The records are folded into the groups, and the backend adds up the views as it adds up a batch."""
    x, g = (_apart(t, views).transpose(0, 1).flatten(1, 2) for t in (use.x, use.g))
    return use.shape.gradient(x, g, len(use.x) // views).view(-1, *use.shape.weight)


def _apart(rows: Tensor, views: int) -> Tensor:
    """[B·K, ...] as [B, K, ...]."""
    return rows.reshape(-1, views, *rows.shape[1:])


def _joined(rows: Tensor, views: int) -> Tensor:
    """[B·K, T, ...] as [B, K·T, ...]."""
    return _apart(rows, views).flatten(1, 2)
