"""A rule for each layer type: how to run it with given parameters, and what its parameters' per-record gradients are.

Two kinds. A `TapeRule` runs the layer with detached parameters and later reads the gradients off the recorded input and
output gradient: autograd then computes input gradients only, and no weight gradient twice. An `ExpandRule` runs the
layer with one copy of the parameters a record (a view, no memory), so that autograd itself hands back one gradient a
record; it serves where the backend can do that in the same kernel call (GroupNorm), and for anything unknown
(`assay.grads.fallback`).

A rule applies to exactly its type, or to a subclass that keeps its `forward`: a subclass that computes something else is
unknown, and goes through the fallback.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.grads.convolution import ConvShape, convolved
from assay.grads.uses import Dense, Rank1, Rows, Use, outer

Params = Mapping[str, Tensor | None]


class TapeRule(Protocol):
    """Forward with given parameters; per-record gradients from the recorded input and output gradient."""

    anchor_by_bias: bool
    """In the first layer of a pass something must require grad for the output to have a gradient. Where the backend computes a
    bias gradient alone cheaply, the bias does it; else an autograd function written in Python, which costs more."""

    def forward(self, module: Any, params: Params, x: Tensor) -> Tensor:
        """What `module.forward(x)` computes, with `params` in place of the module's own."""
        ...

    def uses(self, module: Any, wanted: frozenset[str], x: Tensor, g: Tensor) -> list[tuple[str, Use]]:
        """Each wanted parameter's use; `g` is the gradient of the output and every tensor has the record first."""
        ...


class ExpandRule(Protocol):
    """Forward with one copy of the parameters a record."""

    def forward(
        self, module: Any, params: Params, args: tuple[Any, ...], kwargs: dict[str, Any], records: int
    ) -> Any:
        """What the module computes, where `params` are [B, *shape] and record i uses row i."""
        ...

    def records(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """How many records this input holds."""
        ...


class LinearRule:
    """y = x Wᵀ + b over any leading dimensions."""

    anchor_by_bias = True

    def forward(self, module: nn.Linear, params: Params, x: Tensor) -> Tensor:  # noqa: ARG002, D102
        weight = params["weight"]
        assert weight is not None
        return F.linear(x, weight, params["bias"])

    def uses(self, module: nn.Linear, wanted: frozenset[str], x: Tensor, g: Tensor) -> list[tuple[str, Use]]:  # noqa: ARG002, D102
        found: list[tuple[str, Use]] = []
        if g.dim() == 2:
            squares = torch.linalg.vecdot(g, g)
            weight: Use = Rank1(g, x, squares)
            bias = Dense(g, squares)
        else:
            g, x = g.flatten(1, -2), x.flatten(1, -2)
            weight = outer(g, x) if "weight" in wanted else Dense(g)
            bias = Dense(g.sum(1))
        if "weight" in wanted:
            found.append(("weight", weight))
        if "bias" in wanted:
            found.append(("bias", bias))
        return found


class ConvRule:
    """Conv1d, Conv2d, Conv3d with any stride, padding (also 'same' and non-zero modes), dilation and groups."""

    anchor_by_bias = False

    def forward(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, params: Params, x: Tensor) -> Tensor:  # noqa: D102
        weight = params["weight"]
        assert weight is not None
        return module._conv_forward(x, weight, params["bias"])

    def uses(  # noqa: D102
        self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, wanted: frozenset[str], x: Tensor, g: Tensor
    ) -> list[tuple[str, Use]]:
        found: list[tuple[str, Use]] = []
        if "weight" in wanted:
            padding = module.padding
            if module.padding_mode != "zeros" or isinstance(padding, str):
                mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
                x = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
                padding = (0,) * len(module.stride)
            shape = ConvShape(module.weight.shape, module.stride, padding, module.dilation, module.groups)
            found.append(("weight", convolved(shape, x, g)))
        if "bias" in wanted:
            found.append(("bias", Dense(g.flatten(2).sum(2))))
        return found


class EmbeddingRule:
    """Rows picked by index. Never builds a table a record."""

    anchor_by_bias = False

    def forward(self, module: nn.Embedding, params: Params, x: Tensor) -> Tensor:  # noqa: D102
        weight = params["weight"]
        assert weight is not None
        if module.max_norm is not None or module.scale_grad_by_freq:
            raise UnsupportedModelError(
                f"{module} uses max_norm or scale_grad_by_freq, which make one record's gradient depend on the others in "
                "the batch; build it without them"
            )
        return F.embedding(x, weight)

    def uses(
        self, module: nn.Embedding, wanted: frozenset[str], x: Tensor, g: Tensor
    ) -> list[tuple[str, Use]]:  # noqa: ARG002, D102
        index = x.reshape(x.shape[0], -1)
        g = g.reshape(*index.shape, -1)
        if module.padding_idx is not None:
            g = g.masked_fill((index == module.padding_idx).unsqueeze(2), 0.0)
        return [("weight", Rows(index, g, module.num_embeddings))]


def _affine(
    scaled: Tensor, g: Tensor, wanted: frozenset[str], over: tuple[int, ...]
) -> list[tuple[str, Use]]:
    found: list[tuple[str, Use]] = []
    if "weight" in wanted:
        found.append(("weight", Dense(scaled.sum(over) if over else scaled)))
    if "bias" in wanted:
        found.append(("bias", Dense(g.sum(over) if over else g)))
    return found


class LayerNormRule:
    """y = (x - mean)/std · w + b over the trailing dimensions of each position."""

    anchor_by_bias = False

    def forward(self, module: nn.LayerNorm, params: Params, x: Tensor) -> Tensor:  # noqa: D102
        return F.layer_norm(x, module.normalized_shape, params["weight"], params.get("bias"), module.eps)

    def uses(
        self, module: nn.LayerNorm, wanted: frozenset[str], x: Tensor, g: Tensor
    ) -> list[tuple[str, Use]]:  # noqa: D102
        normalised = F.layer_norm(x, module.normalized_shape, eps=module.eps)
        return _affine(g * normalised, g, wanted, tuple(range(1, x.dim() - len(module.normalized_shape))))


class RMSNormRule:
    """y = x / rms(x) · w over the trailing dimensions of each position."""

    anchor_by_bias = False

    def forward(self, module: nn.RMSNorm, params: Params, x: Tensor) -> Tensor:  # noqa: D102
        return F.rms_norm(x, list(module.normalized_shape), params["weight"], module.eps)

    def uses(self, module: nn.RMSNorm, wanted: frozenset[str], x: Tensor, g: Tensor) -> list[tuple[str, Use]]:  # noqa: D102
        normalised = F.rms_norm(x, list(module.normalized_shape), eps=module.eps)
        return _affine(g * normalised, g, wanted, tuple(range(1, x.dim() - len(module.normalized_shape))))


class ChannelNormRule:
    """GroupNorm and InstanceNorm, with the records folded into the channels: one kernel call gives input and per-record gradients."""

    def forward(  # noqa: D102
        self,
        module: nn.GroupNorm | nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d,
        params: Params,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        records: int,
    ) -> Tensor:
        x = _only_tensor(args, kwargs)
        groups = module.num_groups if isinstance(module, nn.GroupNorm) else module.num_features
        weight, bias = params["weight"], params["bias"]
        folded = F.group_norm(
            x.reshape(1, records * x.shape[1], *x.shape[2:]),
            records * groups,
            None if weight is None else weight.flatten(),
            None if bias is None else bias.flatten(),
            module.eps,
        )
        return folded.view(x.shape)

    def records(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:  # noqa: D102
        x = _only_tensor(args, kwargs)
        if isinstance(module, _INSTANCE_NORMS) and x.dim() != _INSTANCE_DIMS[type(module)]:
            raise UnsupportedModelError(
                f"{module} was given input of shape {tuple(x.shape)} without a record dimension"
            )
        return x.shape[0]


def _only_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    (x,) = (*args, *kwargs.values())
    assert isinstance(x, Tensor)
    return x


_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_INSTANCE_DIMS: dict[type[nn.Module], int] = {
    nn.InstanceNorm1d: 3,
    nn.InstanceNorm2d: 4,
    nn.InstanceNorm3d: 5,
}

RULES: dict[type[nn.Module], TapeRule | ExpandRule] = {
    nn.Linear: LinearRule(),
    nn.Conv1d: ConvRule(),
    nn.Conv2d: ConvRule(),
    nn.Conv3d: ConvRule(),
    nn.Embedding: EmbeddingRule(),
    nn.LayerNorm: LayerNormRule(),
    nn.RMSNorm: RMSNormRule(),
    nn.GroupNorm: ChannelNormRule(),
    nn.InstanceNorm1d: ChannelNormRule(),
    nn.InstanceNorm2d: ChannelNormRule(),
    nn.InstanceNorm3d: ChannelNormRule(),
}


def rule_for(
    module: nn.Module, rules: Mapping[type[nn.Module], TapeRule | ExpandRule] = RULES
) -> TapeRule | ExpandRule | None:
    """The rule for this module, or None if its type is unknown, changes `forward`, or carries parameters of its own."""
    if "forward" in vars(module):  # another library has replaced this one's forward
        return None
    for kind, rule in rules.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            own = {name for name, _ in module.named_parameters(recurse=False)}
            if own <= {"weight", "bias"} and not any(True for _ in module.children()):
                return rule
    return None
