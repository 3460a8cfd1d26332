"""The autograd graph of a batch's losses: what it may reach, and the one backward pass through it.

No raw gradient may reach a `.grad`, so after the pass every `.grad` is what it was. The loss may reach nothing that is
trained outside the model, and the losses of some records nothing that the model put out for others.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from assay.errors import UnsupportedModelError
from assay.gradients.arithmetic import constant
from assay.gradients.proof.calls import Coins, splits
from assay.gradients.proof.losses import LOSS_MIXES
from assay.gradients.proof.rows import Where


@functools.lru_cache(maxsize=256)
def _ones(records: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A one for each record, all in one place."""
    return constant(1.0, dtype, device).expand(records)


def run_backward(losses: Tensor) -> None:
    """Run one backward pass of Σ losses.

    It calls autograd's engine directly: the checks of `torch.autograd.backward` cost as much as a small layer.
    """
    ones = _ones(losses.shape[0], losses.dtype, losses.device)
    torch.autograd.Variable._execution_engine.run_backward(
        (losses,), (ones,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def backward(
    losses: Tensor,
    parameters: Mapping[str, nn.Parameter],
    stand_ins: Mapping[int, Tensor],
    outside: Sequence[Tensor] = (),
) -> dict[str, Tensor]:
    """Run the one backward pass, and leave every `.grad` as it was, also of tensors `outside` the model.

    Returns:
        The gradients that autograd gave the parameters' stand-ins.

    Raises:
        UnsupportedModelError: A pass within the pass reached a parameter itself.
    """
    kept = [(p, p.grad) for p in parameters.values() if p.grad is not None]
    theirs = [(t, t.grad) for t in outside]
    for p, _ in (*kept, *theirs):
        p.grad = None
    for standing in stand_ins.values():  # another backward pass through the model may have left a gradient
        standing.grad = None
    reached = []
    try:
        run_backward(losses)
    finally:
        for name, p in parameters.items():
            if p.grad is not None:
                reached.append(name)
                p.grad = None
        for t, grad in (*kept, *theirs):
            t.grad = grad
    for name in reached:
        raise UnsupportedModelError(used_outside(name))
    if not stand_ins:
        return {}
    found = {name: stand_ins[id(p)].grad for name, p in parameters.items() if id(p) in stand_ins}
    return {name: grad for name, grad in found.items() if grad is not None}


def used_outside(name: str) -> str:
    """The message for a parameter that autograd reached, but not through its module."""
    return (
        f"parameter {name} gets a gradient that no module's own forward explains: it is used outside the module that "
        "owns it (functional use of another module's weight, or a hook). Call the owning module, or register the "
        "parameter on the module that uses it"
    )


@dataclass(frozen=True, slots=True)
class Graph:
    """The autograd graph of a batch's losses."""

    nodes: set[Any]
    leaves: dict[int, Tensor]
    """The tensors that the graph ends with, by identity."""
    outside: list[Tensor]
    """The leaves that are not the model's, each with one row per record."""
    normalises: bool
    """Whether statistics of more than one row are used (batch normalisation in train mode)."""

    def holds(self, place: Tensor | GradientEdge) -> bool:
        """Whether the losses depend on this tensor, or on the one that was at this place in the graph."""
        node = place.grad_fn if isinstance(place, Tensor) else place.node
        return id(place) in self.leaves if node is None else node in self.nodes


_NORMALISING = frozenset(("NativeBatchNormBackward0", "CudnnBatchNormBackward0", "MiopenBatchNormBackward0"))


def enclosed(losses: Tensor, own: Iterable[Tensor], parameters: Mapping[int, str]) -> Graph:
    """The graph of these losses; it must reach nothing trainable except `own`.

    Args:
        losses: One loss per record.
        own: What the losses may reach. Leaves with one row per record (inputs, activations of frozen layers) are no
            parameters, and are allowed as well.
        parameters: The names of the model's parameters, by identity. Their modules run with stand-ins, so that a graph
            that reaches a parameter itself does so from outside its module.

    Raises:
        UnsupportedModelError: The losses reach a parameter from outside its module, or one that is not the model's.
    """
    known, records = set(map(id, own)), losses.shape[0]
    seen: set[Any] = set()
    leaves: dict[int, Tensor] = {}
    outside: list[Tensor] = []
    normalises = False
    todo: list[Any] = [] if losses.grad_fn is None else [losses.grad_fn]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            leaf = node.variable
            leaves[id(leaf)] = leaf
            if id(leaf) not in known:
                outside.append(_leaf(leaf, records, parameters))
            continue
        # torch normalises a single record (or a kernel) as a batch of one row
        if kind in _NORMALISING and node._saved_training and node._saved_input.shape[0] > 1:
            normalises = True
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                todo.append(parent)
    return Graph(seen, leaves, outside, normalises)


def _leaf(leaf: Tensor, records: int, parameters: Mapping[int, str]) -> Tensor:
    """A leaf that is not the model's own, if it has one row for each record."""
    if id(leaf) in parameters:
        raise UnsupportedModelError(used_outside(parameters[id(leaf)]))
    rows = leaf.shape[0] if leaf.dim() else 0
    if rows != records or (type(leaf) is not Tensor and isinstance(leaf, nn.Parameter)):
        raise UnsupportedModelError(
            f"the loss also reaches a trainable parameter of shape {tuple(leaf.shape)} that is not part of the "
            "private model; its gradient would carry the records without noise. Give the whole model, or "
            "detach/freeze that part"
        )
    return leaf


def check_losses(
    losses: Tensor, outputs: Iterable[Tensor], graph: Graph, coins: Coins, where: Where, most: int = 1
) -> None:
    """Refuse losses that mix records: the losses of a random half depend on the model's outputs for the others.

    This is cheap, because it goes back no further than the model's outputs. With `most` splits, any two of
    2 to the power of `most` records are on different sides at least once.

    Raises:
        UnsupportedModelError: They mix records.
    """
    records = len(losses)
    held = [(t, dim) for t in outputs if (dim := where.of_output(t, records)) is not None and graph.holds(t)]
    if not held or records < 2:
        return
    rows, dims = zip(*held, strict=True)
    weights = (0.5 + coins.uniform(records)).to(losses)
    for mask in splits(records, coins, most):
        for half in (mask, ~mask):
            mine = half.to(losses.device)
            summed = (losses * (weights * mine)).sum()
            found = torch.autograd.grad(summed, rows, retain_graph=True, allow_unused=True)
            for g, dim in zip(found, dims, strict=True):
                if g is not None and reaches(g.transpose(0, dim), ~mine):
                    raise UnsupportedModelError(LOSS_MIXES)


def reaches(g: Tensor, rows: Tensor) -> bool:
    """Whether a gradient is not zero in these rows."""
    others = g[rows]
    return bool(((others != 0) & others.isfinite()).any())
