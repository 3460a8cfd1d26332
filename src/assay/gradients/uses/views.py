"""Several views of one record as one record: the gradient that is clipped is the sum over the record's rows.

A batch of B records with K views each runs through the model as B·K independent rows, the views of a record one after the
other. What a layer's rule says of the rows is folded here: the views of a record are to it what positions of a sequence are,
so that outer products stay factors (their norm is a Gram matrix over K·T positions) and everything else is added up.
Exact: no norm of a single view is ever taken for that of the record.
"""

from __future__ import annotations

from torch import Tensor

from assay.gradients.rules.standardised import Projected
from assay.gradients.uses.base import Apart, Dense, LayerUse, Outer, Rank1, Use
from assay.gradients.uses.convolution import Convolved
from assay.gradients.uses.repeated import Tied
from assay.gradients.uses.tables import Rows


def folded(layer: LayerUse, views: int) -> LayerUse:
    """The use of a layer's parameters by records of so many rows each."""
    return Apart([fold(use, views) for use in layer.apart()])


def fold(use: Use, views: int) -> Use:
    """The use of one parameter by records of so many rows each."""
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
    """[B, *weight]: with the records folded into the groups and the views in the batch's place, the backend adds up the views."""
    x, g = (_apart(t, views).transpose(0, 1).flatten(1, 2) for t in (use.x, use.g))
    return use.shape.gradient(x, g, len(use.x) // views).view(-1, *use.shape.weight)


def _apart(rows: Tensor, views: int) -> Tensor:
    """[B·K, ...] as [B, K, ...]."""
    return rows.reshape(-1, views, *rows.shape[1:])


def _joined(rows: Tensor, views: int) -> Tensor:
    """[B·K, T, ...] as [B, K·T, ...]."""
    return _apart(rows, views).flatten(1, 2)
