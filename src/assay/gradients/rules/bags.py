"""`nn.EmbeddingBag` by the rule of an embedding: the rows are recorded, and adding up a bag has no parameter.

torch looks up and adds up in one function, which has no batching rule. Here every bag is one row of indices, padded to
the longest bag, so that no record needs a copy of the table. Bags may be given as a matrix or as a vector with offsets.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from assay.errors import UnsupportedModelError


def add_up(
    module: nn.EmbeddingBag,
    look_up: Callable[[Tensor], Tensor],
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """What `nn.EmbeddingBag.forward` computes, with its rows by `look_up`.

    Raises:
        UnsupportedModelError: The bags are neither a matrix nor a vector with offsets, or weights do not fit.
    """
    if input.dim() == 2 and offsets is None:
        index, inside = input, None
    elif input.dim() == 1 and offsets is not None:
        index, inside, per_sample_weights = _padded(module, input, offsets, per_sample_weights)
    else:
        raise UnsupportedModelError(
            f"EmbeddingBag was given indices of shape {tuple(input.shape)} with offsets {offsets}: a matrix of indices "
            "without offsets, or a vector with offsets, was expected"
        )
    if module.padding_idx is not None:
        kept = index != module.padding_idx % module.num_embeddings
        inside = kept if inside is None else inside & kept
    rows = look_up(index)
    if per_sample_weights is not None:
        if module.mode != "sum":
            raise UnsupportedModelError("EmbeddingBag takes per_sample_weights with mode='sum' only")
        rows = rows * per_sample_weights.unsqueeze(2)
    if module.mode == "max":
        return _largest(rows, inside)
    if inside is not None:
        rows = rows.masked_fill(~inside.unsqueeze(2), 0.0)
    total = rows.sum(1)
    if module.mode == "sum":
        return total
    count = index.shape[1] if inside is None else inside.sum(1, keepdim=True).clamp_min(1)
    return total / count


def _largest(rows: Tensor, inside: Tensor | None) -> Tensor:
    """The largest value of each dimension in each bag; zero for an empty bag."""
    if rows.shape[1] == 0:
        return rows.sum(1)
    if inside is None:
        return rows.max(1).values
    largest = rows.masked_fill(~inside.unsqueeze(2), -torch.inf).max(1).values
    return largest.masked_fill(~inside.any(1, keepdim=True), 0.0)


def _padded(
    module: nn.EmbeddingBag, index: Tensor, offsets: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The bags as a matrix [records, longest], where each has an index, and their weights."""
    ends = offsets.new_tensor([len(index)])
    starts, ends = (
        (offsets[:-1], offsets[1:]) if module.include_last_offset else (offsets, torch.cat([offsets[1:], ends]))
    )
    sizes = ends - starts
    places = torch.arange(int(sizes.max()) if len(sizes) else 0, device=index.device)
    inside = places < sizes.unsqueeze(1)
    place = (starts.unsqueeze(1) + places).clamp_max(max(0, len(index) - 1))
    if not len(index):
        return place, inside, None if weights is None else place.to(weights.dtype)
    return index[place].masked_fill(~inside, 0), inside, None if weights is None else weights[place]
