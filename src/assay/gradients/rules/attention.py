"""`nn.MultiheadAttention` by the rule of a linear layer: its projections are recorded, and attention has no parameter.

torch computes the whole module in one function, which reads the output projection's weight without calling that layer.
Here the same is computed step by step, so that no record needs a copy of a projection. The input projections are one
recorded linear map for each distinct input, and the output projection is an ordinary layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.gradients.uses.base import Apart, Dense, LayerUse, Outer, Use
from assay.gradients.uses.repeated import Block


class Project(Protocol):
    """Runs a recorded linear map by rows `start` to `stop` of the packed input projection."""

    def __call__(self, x: Tensor, start: int, stop: int) -> Tensor:
        """x Wᵀ + b, the record first."""
        ...


def ruled(module: nn.Module) -> bool:
    """Whether `attend` computes what this module does: torch's class, one packed projection, nothing added to keys."""
    return (
        isinstance(module, nn.MultiheadAttention)
        and type(module).forward is nn.MultiheadAttention.forward
        and "forward" not in vars(module)
        and module._qkv_same_embed_dim
        and module.bias_k is None
        and module.bias_v is None
        and not module.add_zero_attn
        and {name for name, _ in module.named_parameters(recurse=False)} <= {"in_proj_weight", "in_proj_bias"}
        and type(module.out_proj).forward is nn.Linear.forward
    )


def attend(
    module: nn.MultiheadAttention,
    project: Project,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention.forward` computes, with its projections by `project` and `module.out_proj`.

    Raises:
        UnsupportedModelError: The query has no record dimension.
    """
    if query.dim() != 3:
        raise UnsupportedModelError(
            f"MultiheadAttention was given a query of shape {tuple(query.shape)} without a record dimension"
        )
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")  # as torch does
    if is_causal and key_padding_mask is None and not need_weights:
        attn_mask = None  # the hint is enough
    else:
        is_causal = False
    mask = _mask(module, query, key_padding_mask, attn_mask)
    q, k, v = _projected(module, project, query, key, value)
    dropout = module.dropout if module.training else 0.0
    weights = None
    if need_weights:
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
        out = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
    out = module.out_proj(out.transpose(1, 2).flatten(2))
    return out if module.batch_first else out.transpose(0, 1), weights


def _projected(
    module: nn.MultiheadAttention, project: Project, query: Tensor, key: Tensor, value: Tensor
) -> Sequence[Tensor]:
    """Queries, keys and values, [records, heads, positions, width of a head]; equal inputs are projected together."""
    width, parts = module.embed_dim, []
    inputs = [query, key, value]
    start = 0
    while start < 3:
        stop = start + 1
        while stop < 3 and inputs[stop] is inputs[start]:
            stop += 1
        x = inputs[start] if module.batch_first else inputs[start].transpose(0, 1)
        parts += project(x, start * width, stop * width).split(width, -1)
        start = stop
    return [part.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for part in parts]


def _mask(
    module: nn.MultiheadAttention, query: Tensor, padding: Tensor | None, attention: Tensor | None
) -> Tensor | None:
    """Both masks as one to add to the scores, broadcast to [records, heads, targets, sources]."""
    padding = F._canonical_mask(
        padding,
        "key_padding_mask",
        F._none_or_dtype(attention),
        "attn_mask",
        query.dtype,
    )
    attention = F._canonical_mask(attention, "attn_mask", None, "", query.dtype, check_other=False)
    if attention is not None and attention.dim() == 3:  # one for each record and head
        attention = attention.unflatten(0, (-1, module.num_heads))
    if padding is None:
        return attention
    padding = padding[:, None, None, :]
    return padding if attention is None else padding + attention


@dataclass(frozen=True, slots=True)
class Projection:
    """A `TapeRule` for some rows of the packed input projection."""

    start: int
    stop: int
    linear: Callable[..., Tensor] = F.linear

    def forward(self, module: nn.MultiheadAttention, params: Any, x: Tensor) -> Tensor:  # noqa: ARG002
        """x Wᵀ + b."""
        bias = params["in_proj_bias"]
        rows = slice(self.start, self.stop)
        return self.linear(x, params["in_proj_weight"][rows], None if bias is None else bias[rows])

    def uses(
        self, module: nn.MultiheadAttention, wanted: frozenset[str], x: Tensor, g: Tensor
    ) -> tuple[Sequence[str], LayerUse]:
        """The uses of a linear layer, in these rows of the packed parameters."""
        rows = 3 * module.embed_dim
        whole = self.stop - self.start == rows
        made: dict[str, Callable[[], Use]] = {
            "in_proj_weight": lambda: Outer(g, x),
            "in_proj_bias": lambda: Dense(g.sum(1)),
        }
        names = [name for name in made if name in wanted]
        uses = [made[name]() for name in names]
        return names, Apart(uses if whole else [Block(use, self.start, self.stop, rows) for use in uses])
