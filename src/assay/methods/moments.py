"""Second moments of inputs, as one bounded vector: what the stages that release them share.

A symmetric matrix M is released as svec(M), its diagonal and the entries above it times √2. Then ‖svec(M)‖₂ = ‖M‖_F,
so a record with input x moves svec of the sum of x xᵀ by ‖x xᵀ‖_F = ‖x‖², which is at most 1 for inputs cut to norm 1.
Noise of one size in all coordinates of svec is symmetric noise on the matrix whose spectral radius is about z√(2d).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from assay._util.lazy import torch
from assay.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.data.records import Records

MOST = 4096
"""The largest number of inputs: time grows with its third power."""
_BLOCK = 1000  # records in memory at once


def blocks(records: Records, mean: Tensor, norm: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs (u - mean)/norm cut to norm 1, in float64, with their targets. One that is not finite counts as zeros."""
    for start in range(0, len(records), _BLOCK):
        x, y = records.gather(torch.arange(start, min(start + _BLOCK, len(records))))[:2]
        shifted = (x.detach().cpu().double() - mean.double()).flatten(1)
        norms = shifted.norm(dim=1)
        factors = torch.where(norms.isfinite(), 1 / norms.clamp(min=norm), 0.0)
        yield shifted.nan_to_num(0.0, 0.0, 0.0) * factors[:, None], y.cpu()


def packed(matrix: Tensor) -> Tensor:
    """svec of a symmetric matrix."""
    rows, columns = torch.triu_indices(len(matrix), len(matrix))
    packed: Tensor = _weights(rows, columns) * matrix[rows, columns]
    return packed


def unpacked(vector: Tensor, size: int) -> Tensor:
    """The symmetric matrix of this size whose svec is `vector`."""
    rows, columns = torch.triu_indices(size, size)
    above = torch.zeros(size, size, dtype=vector.dtype)
    above[rows, columns] = vector / _weights(rows, columns)
    return above + above.triu(1).T


def radius(noise: float, size: int) -> float:
    """The spectral radius of symmetric noise whose svec has this standard deviation, for large matrices."""
    return noise * math.sqrt(2 * size)


def only_layer(model: nn.Module) -> nn.Linear:
    """The linear layer that is all of the model.

    Raises:
        ConfigError: The model has other parameters.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    if len(layers) != 1 or len(list(model.parameters())) != len(list(layers[0].parameters())):
        raise ConfigError("model", type(model).__name__, "one linear layer and nothing else to train: linear-head")
    return layers[0]


def check_head(model: nn.Module, records: Records, method: str) -> None:
    """Refuse a model that is not one linear layer on the records, and inputs of which there are too many.

    Raises:
        ConfigError: Says what would be accepted.
    """
    layer, x = only_layer(model), records.gather(torch.tensor([0]))[0]
    if layer.in_features != x[0].numel():
        raise ConfigError("model", f"Linear({layer.in_features}, …)", f"a layer of {x[0].numel()} inputs")
    if layer.in_features > MOST:
        raise ConfigError("method", method, f"at most {MOST} inputs, not {layer.in_features}")


def _weights(rows: Tensor, columns: Tensor) -> Tensor:
    weights = torch.full(rows.shape, math.sqrt(2.0), dtype=torch.float64)
    return weights.masked_fill_(rows == columns, 1.0)
