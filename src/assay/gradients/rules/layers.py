"""A rule for each layer type: how to run it with given parameters, and what its parameters' per-record gradients are.

There are two kinds. A `TapeRule` runs the layer with detached parameters and later computes the gradients from the
recorded input and output gradient. Autograd then computes input gradients only, and no weight gradient twice. An
`ExpandRule` runs the layer with one copy of the parameters for each record (a view, which takes no memory), so that
autograd itself gives per-record gradients. It is for layers whose backend does that in one kernel call (GroupNorm), and
for unknown layers (`assay.gradients.rules.fallback`).

A rule applies to its exact type, and to a subclass that keeps its `forward`. A subclass that computes something else is
unknown, and goes through the fallback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.gradients import products
from assay.gradients.rules.circulant import CirculantRule
from assay.gradients.rules.standardised import through_standardising
from assay.gradients.uses.base import Affine, Apart, Dense, LayerUse, Outer, Rank1, Use
from assay.gradients.uses.convolution import Choice, ConvShape, convolved, same_way
from assay.gradients.uses.tables import Rows, SharedRows
from assay.models.circulant import BlockCirculantLinear
from assay.models.standardised import StandardisedConv2d, standardised

Params = Mapping[str, Tensor | None]
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x Wᵀ + b, of x, W and b."""


@runtime_checkable
class TapeRule(Protocol):
    """Runs a layer with given parameters; the recorded input and output gradient give per-record gradients."""

    def forward(self, module: Any, params: Params, x: Tensor) -> Tensor:
        """What `module.forward(x)` computes, with `params` in place of the module's parameters."""
        ...

    def uses(self, module: Any, wanted: frozenset[str], x: Tensor, g: Tensor) -> tuple[Sequence[str], LayerUse]:
        """The wanted parameters and their use; `g` is the output's gradient. The first dimension is the record."""
        ...


class ExpandRule(Protocol):
    """Runs a layer with one copy of the parameters for each record."""

    def forward(self, module: Any, params: Params, args: tuple[Any, ...], kwargs: dict[str, Any], records: int) -> Any:
        """What the module computes, where `params` are [B, *shape] and record i uses row i."""
        ...

    def records(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """How many records this input holds."""
        ...


@dataclass(frozen=True, slots=True)
class LinearRule:
    """y = x Wᵀ + b over any leading dimensions."""

    linear: Linear = field(default=products.plain_linear, repr=False)

    def forward(self, module: nn.Linear, params: Params, x: Tensor) -> Tensor:  # noqa: ARG002
        weight, bias = params["weight"], params["bias"]
        assert weight is not None
        return self.linear(x, weight, bias)

    def uses(self, module: nn.Linear, wanted: frozenset[str], x: Tensor, g: Tensor) -> tuple[Sequence[str], LayerUse]:  # noqa: ARG002
        if g.dim() == 2:
            if len(wanted) == 2:
                return ("weight", "bias"), Affine(g, x)
            return _found(wanted, lambda: Rank1(g, x), lambda: Dense(g))
        g, x = g.flatten(1, -2), x.flatten(1, -2)
        return _found(wanted, lambda: Outer(g, x), lambda: Dense(g.sum(1)))


@dataclass(frozen=True, slots=True)
class TransposedLinearRule:
    """y = x W + b: the `Conv1D` of GPT-2 as Hugging Face writes it."""

    linear: Linear = field(default=F.linear, repr=False)

    def forward(self, module: Any, params: Params, x: Tensor) -> Tensor:  # noqa: ARG002
        weight, bias = params["weight"], params["bias"]
        assert weight is not None
        return self.linear(x, weight.t(), bias)

    def uses(self, module: Any, wanted: frozenset[str], x: Tensor, g: Tensor) -> tuple[Sequence[str], LayerUse]:  # noqa: ARG002
        if g.dim() == 2:
            return _found(wanted, lambda: Rank1(x, g), lambda: Dense(g))
        g, x = g.flatten(1, -2), x.flatten(1, -2)
        return _found(wanted, lambda: Outer(x, g), lambda: Dense(g.sum(1)))


def _found(
    wanted: frozenset[str], weight: Callable[[], Use], bias: Callable[[], Use]
) -> tuple[Sequence[str], LayerUse]:
    made = {"weight": weight, "bias": bias}
    names = [name for name in made if name in wanted]
    return names, Apart([made[name]() for name in names])


@dataclass(frozen=True, slots=True)
class ConvRule:
    """Conv1d, Conv2d, Conv3d with any stride, padding (also 'same' and non-zero modes), dilation and groups."""

    choose: Choice = field(default=same_way, repr=False)

    def forward(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, params: Params, x: Tensor) -> Tensor:
        weight = params["weight"]
        assert weight is not None
        out: Tensor = module._conv_forward(x, weight, params["bias"])
        return out

    def uses(
        self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, wanted: frozenset[str], x: Tensor, g: Tensor
    ) -> tuple[Sequence[str], LayerUse]:
        return _found(wanted, lambda: self._weight(module, x, g), lambda: Dense(g.flatten(2).sum(2)))

    def _weight(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, g: Tensor) -> Use:
        x, shape = self.laid_out(module, x)
        return convolved(shape, x, g, self.choose)

    @staticmethod
    def laid_out(
        module: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, *, pad: bool = False
    ) -> tuple[Tensor, ConvShape]:
        """The input and the shape; the input is padded unless zeros on both sides will do and `pad` is off."""
        padding = module.padding
        if pad or module.padding_mode != "zeros" or isinstance(padding, str):
            mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
            x = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
            padding = (0,) * len(module.stride)
        return x, ConvShape(module.weight.shape, module.stride, padding, module.dilation, module.groups)


class StandardisedConvRule(ConvRule):
    """Convolutions with standardised kernels."""

    def forward(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, params: Params, x: Tensor) -> Tensor:
        weight = params["weight"]
        assert weight is not None
        return super().forward(module, {**params, "weight": standardised(weight)}, x)

    def _weight(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, g: Tensor) -> Use:
        x, shape = self.laid_out(module, x)
        return through_standardising(module.weight, shape, x, g)


class EmbeddingRule:
    """Rows picked by index. No table is built for a record. `assay.gradients.rules.bags` adds up the rows of a bag."""

    def forward(self, module: nn.Embedding | nn.EmbeddingBag, params: Params, x: Tensor) -> Tensor:
        weight = params["weight"]
        assert weight is not None
        if module.max_norm is not None or module.scale_grad_by_freq:
            raise UnsupportedModelError(
                f"{module} uses max_norm or scale_grad_by_freq, which make one record's gradient depend on the others "
                "in the batch; build it without them"
            )
        return F.embedding(x, weight, padding_idx=module.padding_idx)

    def uses(
        self, module: nn.Embedding | nn.EmbeddingBag, wanted: frozenset[str], x: Tensor, g: Tensor
    ) -> tuple[Sequence[str], LayerUse]:
        index = x.reshape(x.shape[0], -1)
        g = g.reshape(*index.shape, -1)
        if module.padding_idx is not None:
            g = g.masked_fill((index == module.padding_idx).unsqueeze(2), 0.0)
        if len(index) > 1 and index.stride(0) == 0:  # one row of indices, expanded to all records
            return _found(wanted, lambda: SharedRows(index[0], g, module.num_embeddings), lambda: Dense(g))
        return _found(wanted, lambda: Rows(index, g, module.num_embeddings), lambda: Dense(g))


def _elementwise(normalised: Tensor, g: Tensor, wanted: frozenset[str], dims: int) -> tuple[Sequence[str], LayerUse]:
    """Uses of y = normalised · w + b, the parameters spanning the last `dims` dimensions."""
    over = tuple(range(1, g.dim() - dims))

    def summed(values: Tensor) -> Use:
        return Dense(values.sum(over) if over else values)

    return _found(wanted, lambda: summed(g * normalised), lambda: summed(g))


class LayerNormRule:
    """y = (x - mean)/std · w + b over the trailing dimensions of each position."""

    def forward(self, module: nn.LayerNorm, params: Params, x: Tensor) -> Tensor:
        return F.layer_norm(x, module.normalized_shape, params["weight"], params.get("bias"), module.eps)

    def uses(
        self, module: nn.LayerNorm, wanted: frozenset[str], x: Tensor, g: Tensor
    ) -> tuple[Sequence[str], LayerUse]:
        normalised = F.layer_norm(x, module.normalized_shape, eps=module.eps)
        return _elementwise(normalised, g, wanted, len(module.normalized_shape))


class RMSNormRule:
    """y = x / rms(x) · w over the trailing dimensions of each position."""

    def forward(self, module: nn.RMSNorm, params: Params, x: Tensor) -> Tensor:
        return F.rms_norm(x, list(module.normalized_shape), params["weight"], module.eps)

    def uses(self, module: nn.RMSNorm, wanted: frozenset[str], x: Tensor, g: Tensor) -> tuple[Sequence[str], LayerUse]:
        normalised = F.rms_norm(x, list(module.normalized_shape), eps=module.eps)
        return _elementwise(normalised, g, wanted, len(module.normalized_shape))


class ChannelNormRule:
    """GroupNorm and InstanceNorm, with the records folded into the channels.

    One kernel call gives input gradients and per-record gradients.
    """

    def forward(
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
        if records == 0:  # torch divides by the number of groups
            return x + sum(p.sum() for p in (weight, bias) if p is not None)
        folded = F.group_norm(
            x.reshape(1, records * x.shape[1], *x.shape[2:]),
            records * groups,
            None if weight is None else weight.flatten(),
            None if bias is None else bias.flatten(),
            module.eps,
        )
        return folded.view(x.shape)

    def records(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        x = _only_tensor(args, kwargs)
        if isinstance(module, _INSTANCE_NORMS) and x.dim() != next(
            dims for kind, dims in _INSTANCE_DIMS.items() if isinstance(module, kind)
        ):
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
    BlockCirculantLinear: CirculantRule(),
    nn.Conv1d: ConvRule(),
    nn.Conv2d: ConvRule(),
    nn.Conv3d: ConvRule(),
    StandardisedConv2d: StandardisedConvRule(),
    nn.Embedding: EmbeddingRule(),
    nn.EmbeddingBag: EmbeddingRule(),
    nn.LayerNorm: LayerNormRule(),
    nn.RMSNorm: RMSNormRule(),
    nn.GroupNorm: ChannelNormRule(),
    nn.InstanceNorm1d: ChannelNormRule(),
    nn.InstanceNorm2d: ChannelNormRule(),
    nn.InstanceNorm3d: ChannelNormRule(),
}


Rules = Mapping[type[nn.Module], TapeRule | ExpandRule]
"""Rules by layer type."""

_ELSEWHERE: dict[tuple[str, str], TapeRule | ExpandRule] = {
    ("transformers.pytorch_utils", "Conv1D"): TransposedLinearRule(),
}
"""Rules for layers of other libraries, by module and name: nothing is imported for them."""


def is_ordinary(rule: object) -> bool:
    """Whether a rule's gradients are in the parameter's own coordinates, so that those of other uses add to them."""
    return type(rule) in {type(one) for one in (*RULES.values(), *_ELSEWHERE.values())}


def _computes_like(module: nn.Module, kind: type[nn.Module]) -> bool:
    if getattr(module, "track_running_stats", False):  # InstanceNorm that normalises by stored statistics
        return False
    methods = ("forward", "_conv_forward")
    return all(getattr(type(module), name, None) is getattr(kind, name, None) for name in methods)


def foreign() -> dict[type[nn.Module], TapeRule | ExpandRule]:
    """The types of `_ELSEWHERE` whose library is in use."""
    found = {getattr(sys.modules.get(home), name, None): rule for (home, name), rule in _ELSEWHERE.items()}
    return {kind: rule for kind, rule in found.items() if kind is not None}


def rule_for(module: nn.Module, rules: Rules = RULES) -> TapeRule | ExpandRule | None:
    """The rule for this module; None if its type is unknown, changes `forward`, or has other parameters."""
    if "forward" in vars(module):  # another library has replaced this one's forward
        return None
    for kind, rule in {**foreign(), **rules}.items():
        if isinstance(module, kind) and _computes_like(module, kind):
            own = {name for name, _ in module.named_parameters(recurse=False)}
            if own <= {"weight", "bias"} and not any(True for _ in module.children()):
                return rule
    return None
