"""Rules for functions of parameters that are used outside layers (`assay.gradients.rules.shared`).

Linear maps and convolutions are recorded as layers are: their gradients stay factors. Everything else takes a view of
the parameter for each record. A function without a rule runs under `torch.func.vmap`, for each record with the batch
dimension of one record, as the whole module would (`assay.gradients.rules.fallback`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from assay.gradients.rules.fallback import rules_only
from assay.gradients.rules.shared import Call, Rule, Shared, Tracer, UnfitError, Uses
from assay.gradients.uses.base import Dense, Outer, Rank1, Reshaped, Use
from assay.gradients.uses.convolution import ConvShape, convolved
from assay.gradients.uses.tables import Rows

Part = tuple[Shared, Callable[[Tensor, Tensor], Use]]
"""A shared tensor, and its use by input and output gradient."""


def _tape(
    tracer: Tracer, call: Call, x: Tensor, run: Callable[..., Tensor], parts: dict[str, Any], uses: Any
) -> Tensor:
    """Record a function of rows `x` and of `parts`, by name; those that are shared have uses by name."""
    values = {name: tracer.value(t) if type(t) is Shared else t for name, t in parts.items()}

    def found(seen: Tensor, g: Tensor) -> Uses:
        made: list[tuple[str, Use]] = []
        for name, t in parts.items():
            if type(t) is Shared and t.sources:
                made += tracer.pulled(t, uses[name](seen, g))
        return made

    path = next(tracer.path(t.sources[0]) for t in parts.values() if type(t) is Shared and t.sources)
    return tracer.recorder.tape(f"{path} ({call.name})", x, lambda rows: run(rows, **values), found)


def _is_rows(tracer: Tracer, x: Any) -> bool:
    return isinstance(x, Tensor) and type(x) is not Shared and x.dim() > 1 and x.shape[0] == tracer.records


def linear(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:
    """y = x Wᵀ + b."""

    def bound(input: Any, weight: Any, bias: Any = None) -> Any:
        return input, weight, bias

    args, kwargs = call.given(call.leaves)
    x, weight, bias = bound(*args, **kwargs)
    if not _is_rows(tracer, x) or weight.dim() != 2:
        return by_record(tracer, call, rows)
    return _tape(tracer, call, x, tracer.recorder.linear, {"weight": weight, "bias": bias}, _LINEAR)


def _matrix(x: Tensor, g: Tensor) -> Use:
    return Rank1(g, x) if g.dim() == 2 else Outer(g.flatten(1, -2), x.flatten(1, -2))


def _vector(x: Tensor, g: Tensor) -> Use:  # noqa: ARG001
    return Dense(g if g.dim() == 2 else g.flatten(1, -2).sum(1))


_LINEAR = {"weight": _matrix, "bias": _vector}


def matmul(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:
    """y = x W for rows x and a matrix W."""
    args, kwargs = call.given(call.leaves)
    if call.name == "__rmatmul__":
        args = args[::-1]
    if kwargs or len(args) != 2 or not _is_rows(tracer, args[0]) or args[1].dim() != 2:
        return by_record(tracer, call, rows)

    def run(x: Tensor, other: Tensor) -> Tensor:
        return tracer.recorder.linear(x, other.t(), None)

    return _tape(tracer, call, args[0], run, {"other": args[1]}, {"other": lambda x, g: _matrix(g, x)})


def _conv(transposed: bool) -> Rule:
    def conv(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:
        def bound(input: Any, weight: Any, bias: Any = None, *options: Any, **named: Any) -> Any:
            return input, weight, bias, dict(zip(_OPTIONS[transposed], options, strict=False)) | named

        args, kwargs = call.given(call.leaves)
        x, weight, bias, options = bound(*args, **kwargs)
        dims = weight.dim() - 2
        if not _is_rows(tracer, x) or x.dim() != weight.dim() or isinstance(options.get("padding"), str):
            return by_record(tracer, call, rows)

        def sizes(name: str, default: int) -> tuple[int, ...]:
            size = options.get(name, default)
            several = tuple(size) if isinstance(size, (tuple, list)) else (size,)
            return several * dims if len(several) == 1 else several

        if any(more >= step for more, step in zip(sizes("output_padding", 0), sizes("stride", 1), strict=True)):
            return by_record(tracer, call, rows)  # a convolution of what comes out has more positions than there were
        shape = ConvShape(
            weight.shape, sizes("stride", 1), sizes("padding", 0), sizes("dilation", 1), options.get("groups", 1)
        )

        def kernel(x: Tensor, g: Tensor) -> Use:
            # transposed, the roles of input and output gradient change
            return convolved(shape, g, x) if transposed else convolved(shape, x, g)

        def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            out: Tensor = call.func(x, weight, bias, **options)
            return out

        uses = {"weight": kernel, "bias": _per_channel}
        return _tape(tracer, call, x, run, {"weight": weight, "bias": bias}, uses)

    return conv


_OPTIONS = {
    False: ("stride", "padding", "dilation", "groups"),
    True: ("stride", "padding", "output_padding", "groups", "dilation"),
}


def _per_channel(x: Tensor, g: Tensor) -> Use:  # noqa: ARG001
    return Dense(g.flatten(2).sum(2))


def embedding(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:
    """Rows of a table by the indices of each record."""

    def bound(
        input: Any, weight: Any, padding_idx: int | None = None, max_norm: Any = None, norm_type: float = 2.0,  # noqa: ARG001
        scale_grad_by_freq: bool = False, sparse: bool = False,  # noqa: ARG001
    ) -> Any:  # fmt: skip
        return input, weight, padding_idx, max_norm is not None or scale_grad_by_freq

    args, kwargs = call.given(call.leaves)
    index, weight, padding, unusual = bound(*args, **kwargs)
    if unusual:
        raise UnfitError(call.sources, "embedding with max_norm or scale_grad_by_freq")
    if type(index) is Shared or type(weight) is not Shared:
        return by_record(tracer, call, rows)
    size = weight.shape[0]

    def table(x: Tensor, g: Tensor) -> Use:
        flat = x.reshape(len(x), -1)
        g = g.reshape(*flat.shape, -1)
        if padding is not None:
            g = g.masked_fill((flat == padding % size).unsqueeze(2), 0.0)
        return Rows(flat, g, size)

    def run(x: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(x, weight, padding)

    return _tape(tracer, call, index, run, {"weight": weight}, {"weight": table})


def bilinear(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:
    """y = x₁ᵀ W x₂ + b: a linear map of the products of both inputs."""

    def bound(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
        return input1, input2, weight, bias

    args, kwargs = call.given(call.leaves)
    one, two, weight, bias = bound(*args, **kwargs)
    if not (_is_rows(tracer, one) and _is_rows(tracer, two)) or type(weight) is not Shared:
        return by_record(tracer, call, rows)
    products = (one.unsqueeze(-1) * two.unsqueeze(-2)).flatten(-2)

    def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight.flatten(1), bias)

    def matrix(x: Tensor, g: Tensor) -> Use:
        return Reshaped(_matrix(x, g), weight.value.shape)

    return _tape(tracer, call, products, run, {"weight": weight, "bias": bias}, {"weight": matrix, "bias": _vector})


def elementwise(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:
    """Functions that broadcast: the shared tensor gets the dimension of the records, and ones up to the others'."""
    dims = max(call.leaves[i].dim() for i in rows)
    if any(call.leaves[i].dim() != dims for i in rows):
        return by_record(tracer, call, rows)
    leaves = [_beside(tracer, call, leaf, dims) if type(leaf) is Shared else leaf for leaf in call.leaves]
    out = call.on(leaves)
    if not isinstance(out, Tensor) or out.dim() != dims or out.shape[0] != tracer.records:
        raise UnfitError(call.sources, f"{call.name} of shapes that do not broadcast by record")
    return out


def _beside(tracer: Tracer, call: Call, shared: Shared, dims: int) -> Tensor:
    """A view for each record, to be broadcast against rows of this many dimensions."""
    if shared.dim() > dims or (shared.dim() == dims and shared.shape[0] != 1):
        raise UnfitError(call.sources, f"{call.name} with a dimension where the records are")
    copies = tracer.copies(shared)
    if shared.dim() == dims:
        return copies.squeeze(1)
    return copies.view(tracer.records, *[1] * (dims - 1 - shared.dim()), *shared.shape)


def attention(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:
    """`scaled_dot_product_attention` with a shared bias in place of the mask."""

    def bound(query: Any, key: Any, value: Any, attn_mask: Any = None, *more: Any, **named: Any) -> Any:
        return (query, key, value), attn_mask, more, named

    args, kwargs = call.given(call.leaves)
    inputs, mask, more, named = bound(*args, **kwargs)
    if type(mask) is not Shared or not all(_is_rows(tracer, t) for t in inputs):
        return by_record(tracer, call, rows)
    return call.func(*inputs, _beside(tracer, call, mask, inputs[0].dim()), *more, **named)


def _affine(call: Call, names: Sequence[str]) -> tuple[dict[str, Any], Any, Any]:
    """The arguments of a normalisation by name, without weight and bias, and these two."""
    args, kwargs = call.given(call.leaves)
    given = dict(zip(names, args, strict=False)) | kwargs
    return given, given.pop("weight", None), given.pop("bias", None)


def _normalise(names: Sequence[str], channels: int | None) -> Rule:
    """A normalisation, then each record's weight and bias; `channels` is their dimension, None for the last ones."""

    def normalise(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:
        given, weight, bias = _affine(call, names)
        x = given["input"]
        if not _is_rows(tracer, x) or given.get("training"):
            return by_record(tracer, call, rows)
        out = call.func(**given)
        for t, combine in ((weight, torch.mul), (bias, torch.add)):
            if t is None:
                continue
            own = tracer.copies(t) if type(t) is Shared else t.unsqueeze(0)
            after = [1] * (x.dim() - 2) if channels is not None else []
            before = [] if channels is not None else [1] * (x.dim() - 1 - t.dim())
            out = combine(out, own.view(own.shape[0], *before, *t.shape, *after))
        return out

    return normalise


def group_norm(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:
    """With the records folded into the channels, one kernel call gives all gradients."""
    given, weight, bias = _affine(call, ("input", "num_groups", "weight", "bias", "eps"))
    x = given["input"]
    if not _is_rows(tracer, x):
        return by_record(tracer, call, rows)
    weights, biases = (
        None if t is None else (tracer.copies(t) if type(t) is Shared else t.expand(tracer.records, -1)).flatten()
        for t in (weight, bias)
    )
    folded = x.reshape(1, tracer.records * x.shape[1], *x.shape[2:])
    return F.group_norm(folded, tracer.records * given["num_groups"], weights, biases, given.get("eps", 1e-5)).view(
        x.shape
    )


def repeat(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:  # noqa: ARG001
    """`expand`, `repeat` and the like: for all records if the first dimension is repeated once for each of them.

    A tensor with several rows gives every record as many, folded into the first dimension.
    """
    args, kwargs = call.given(call.leaves)
    shared = args[0]
    given = next(iter(kwargs.values())) if kwargs else args[1] if isinstance(args[1], (tuple, list)) else args[1:]
    sizes = list(given)
    added = len(sizes) - shared.dim()
    several = call.name in ("repeat", "tile") or added > 0 or shared.shape[0] == 1
    by_records = added >= 0 and bool(sizes) and sizes[0] == tracer.records and several
    out = call.on([leaf.value if type(leaf) is Shared else leaf for leaf in call.leaves])
    if not tracer.decide((call.name, shared.dim(), out.dim()), by_records, call):
        return tracer.wrapped(call, out)
    if not by_records:
        raise UnfitError(call.sources, f"{call.name} to another number of rows", final=True)
    each = vmap(lambda own: call.func(own, [1, *sizes[1:]]))(tracer.copies(shared))
    return each.flatten(0, 1)


def weight_norm(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:  # noqa: ARG001
    """v · g / ‖v‖ in steps whose gradients torch can batch."""

    def stepwise(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
        over = [d for d in range(v.dim()) if d != dim % v.dim()] if dim != -1 else list(range(v.dim()))
        norm: Tensor = torch.linalg.vector_norm(v, dim=over, keepdim=True)
        return v * (g / norm)

    args, kwargs = call.given([leaf.value if type(leaf) is Shared else leaf for leaf in call.leaves])
    return tracer.wrapped(call, stepwise(*args, **kwargs))


def by_record(tracer: Tracer, call: Call, rows: Sequence[int]) -> Any:
    """Any function, for each record with a batch dimension of one record."""
    if call.name.endswith("_") and not call.name.endswith("__"):
        raise UnfitError(call.sources, f"{call.name}, which changes its argument in place")
    if call.name.startswith(("__i", "__set")):
        raise UnfitError(call.sources, f"{call.name}, which changes its argument in place")
    leaves = [tracer.copies(leaf) if type(leaf) is Shared else leaf for leaf in call.leaves]
    own = [0 if i in rows or type(leaf) is Shared else None for i, leaf in enumerate(call.leaves)]
    structure: list[Any] = []

    def one(*mine: Any) -> tuple[Tensor, ...]:
        out = call.on([t.unsqueeze(0) if i in rows else t for i, t in enumerate(mine)])
        flat, spec = pytree.tree_flatten(out)
        structure[:] = [spec, [isinstance(t, Tensor) for t in flat], flat]
        return tuple(
            t.squeeze(0) if t.dim() and t.shape[0] == 1 else _refuse(call) for t in flat if isinstance(t, Tensor)
        )

    try:
        with rules_only():
            tensors = iter(vmap(one, in_dims=tuple(own), randomness="different")(*leaves))
    except UnfitError:
        raise
    except (RuntimeError, NotImplementedError, ValueError, IndexError, TypeError) as error:
        raise UnfitError(call.sources, f"{call.name}: {str(error).splitlines()[0]}") from error
    spec, is_tensor, flat = structure
    return pytree.tree_unflatten([next(tensors) if t else v for t, v in zip(is_tensor, flat, strict=True)], spec)


def _refuse(call: Call) -> Tensor:
    raise UnfitError(call.sources, f"{call.name}, whose result has no row for each record")


_BROADCAST = ("add", "sub", "mul", "div", "true_divide", "multiply", "subtract", "divide", "rsub", "maximum", "minimum")
_OPERATORS = ("add", "sub", "mul", "truediv", "radd", "rsub", "rmul", "rtruediv", "iadd", "isub", "imul", "itruediv")
FUNCTIONS: dict[str, Rule] = {
    **dict.fromkeys((*_BROADCAST, *(f"{name}_" for name in _BROADCAST), "where", "pow", "__pow__"), elementwise),
    **{f"__{name}__": elementwise for name in _OPERATORS},
    **dict.fromkeys(("matmul", "mm", "__matmul__", "__rmatmul__"), matmul),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv(transposed=False)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _conv(transposed=True)),
    "linear": linear,
    "embedding": embedding,
    "bilinear": bilinear,
    "scaled_dot_product_attention": attention,
    "layer_norm": _normalise(("input", "normalized_shape", "weight", "bias", "eps"), None),
    "rms_norm": _normalise(("input", "normalized_shape", "weight", "eps"), None),
    "batch_norm": _normalise(
        ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"), 1
    ),
    "group_norm": group_norm,
}
"""The rule of each function by its name."""

ALONE: dict[str, Rule] = {
    **dict.fromkeys(("expand", "repeat", "broadcast_to", "tile"), repeat),
    "_weight_norm": weight_norm,
}
"""The rule of functions of shared tensors alone, if they are not simply computed."""
