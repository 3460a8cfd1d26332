"""What the engine proves on the first batch of the user's own model, before any parameter moves.

1. Separation: the first record's loss has gradient zero with respect to every other record's activations. It fails for
   layers that mix records (batch statistics, attention across the batch) and for models whose record dimension is not
   the first one.
2. Completeness: the per-record gradients add up to autograd's own gradient of the summed loss. It fails where a
  parameter
   is also used outside the module that owns it.
3. Enclosure: the loss reaches no trainable parameter outside the model, whose gradient would leave without noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from assay.errors import UnsupportedModelError

if TYPE_CHECKING:
    from assay.grads.engine import RecordGrads


def run_backward(losses: Tensor) -> None:
    """One backward pass of Σ losses. Straight to autograd's engine: the checks of `torch.autograd.backward` cost as much as a small layer."""
    torch.autograd.Variable._execution_engine.run_backward(
        (losses,), (torch.ones_like(losses),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


class Proof:
    """Collects what the first forward pass shows and checks it. Passing is remembered by the engine, not here."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, Tensor]] = []
        self._versions: list[int] = []

    def saw(self, path: str, output: Tensor) -> None:
        """A recorded output (or a module's per-record parameters), the record first."""
        self._seen.append((path, output))
        self._versions.append(output._version)

    def left_alone(self) -> frozenset[str]:
        """The modules whose outputs nothing has changed in place."""
        changed = {
            path for (path, output), made in zip(self._seen, self._versions, strict=True) if output._version != made
        }
        return frozenset(path for path, _ in self._seen) - changed

    def forget(self) -> None:
        """Let go of the graph."""
        self._seen, self._versions = [], []

    def before(self, losses: Tensor, parameters: Mapping[str, nn.Parameter]) -> None:
        """Check separation and enclosure, which need the graph but not the engine's own backward pass."""
        self._separation(losses)
        self._enclosure(losses, parameters)

    def backward(self, losses: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor | None]:
        """The one backward pass; returns autograd's own parameter gradients and leaves `.grad` as it was."""
        kept = {name: p.grad for name, p in parameters.items()}
        try:
            for p in parameters.values():
                p.grad = None
            run_backward(losses)
            return {name: p.grad for name, p in parameters.items()}
        finally:
            for name, p in parameters.items():
                p.grad = kept[name]

    def _separation(self, losses: Tensor) -> None:
        records = len(losses)
        for path, output in self._seen:
            if output.dim() == 0 or output.shape[0] != records:
                raise UnsupportedModelError(
                    f"{path or 'the model'} works on a tensor of shape {tuple(output.shape)} while the loss has {records} records: "
                    "the first dimension must be the record (batch_first=True), one loss value each"
                )
        outputs = [output for _, output in self._seen]
        alone = torch.autograd.grad(losses[0], outputs, retain_graph=True, allow_unused=True)
        for (path, _), g in zip(self._seen, alone, strict=True):
            if g is None:
                continue
            others = g[1:]
            if bool(((others != 0) & others.isfinite()).any()):
                raise UnsupportedModelError(
                    f"{path or 'the model'} mixes records: the first record's loss depends on other records' activations there. "
                    "Per-record clipping cannot bound such a model; replace the layer that mixes (batch statistics, attention "
                    "over the batch), or put the record dimension first (batch_first=True)"
                )

    def _enclosure(self, losses: Tensor, parameters: Mapping[str, nn.Parameter]) -> None:
        own = {id(p) for p in parameters.values()}
        seen: set[Any] = set()
        todo: list[Any] = [losses.grad_fn]
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            if isinstance(variable, nn.Parameter) and id(variable) not in own:
                raise UnsupportedModelError(
                    f"the loss also reaches a trainable parameter of shape {tuple(variable.shape)} that is not part of the private "
                    "model; its gradient would carry the records without noise. Give the whole model, or detach/freeze that part"
                )
            todo.extend(parent for parent, _ in node.next_functions)

    def compare(self, grads: RecordGrads, expected: Mapping[str, Tensor | None]) -> bool:
        """True when completeness holds; False when this batch cannot tell (a gradient is not finite); raises otherwise."""
        norms = grads.norms([0] * grads.layers)
        if grads.nonfinite:
            return False
        scale = float(norms.sum())
        ours = grads.weighted_sum(torch.ones_like(norms), [0] * grads.layers)
        for name, total in ours.items():
            theirs = expected[name]
            gap = total if theirs is None else total - theirs
            if float(gap.norm()) > 1e3 * torch.finfo(gap.dtype).eps * scale:
                raise UnsupportedModelError(
                    f"parameter {name} gets a gradient that no module's own forward explains: it is used outside the module that "
                    "owns it (functional use of another module's weight, or a hook). Call the owning module, or register the "
                    "parameter on the module that uses it"
                )
        return True
