"""What the engine proves on the first batch of the user's own model, before any parameter moves.

1. Separation: the first and the last record's loss have gradient zero with respect to every other record's activations, and
   the same gradient with respect to its own by itself as in the sum of all losses. It fails for layers that mix records (batch statistics,
   attention across the batch, a hook that scales gradients by the batch) and for models whose record dimension is not the first one.
2. Isolation (`assay.gradients.proof.isolation`): the first and the last record's output stay what they are when all other records are
   replaced, and whatever their number. It fails where records are mixed outside autograd's sight (before the first trainable layer, in
   detached batch statistics), and where the forward pass writes down what it has seen.
3. Completeness: the per-record gradients add up to autograd's own gradient of the summed loss. It fails where a
   parameter is also used outside the module that owns it.
4. Enclosure: the loss reaches nothing trainable outside the model, whose gradient would leave without noise.

A loss that itself mixes records (scaled by a batch statistic) cannot be seen from its values alone: it must give one value a
record, from that record alone. Who has the loss itself can ask `isolation.separate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.gradients.arithmetic import constant
from assay.gradients.proof import isolation
from assay.gradients.proof.isolation import Call, mixes, writes
from assay.gradients.record_grads import RecordGrads


def run_backward(losses: Tensor) -> None:
    """One backward pass of Σ losses.

    Straight to autograd's engine: the checks of `torch.autograd.backward` cost as much as a small layer.
    """
    ones = constant(1.0, losses.dtype, losses.device).expand(losses.shape[0])
    torch.autograd.Variable._execution_engine.run_backward(
        (losses,), (ones,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def backward(losses: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The one backward pass; returns what autograd gave parameters by itself and leaves every `.grad` as it was."""
    kept = [(p, p.grad) for p in parameters.values() if p.grad is not None]
    for p, _ in kept:
        p.grad = None
    reached: dict[str, Tensor] = {}
    try:
        run_backward(losses)
    finally:
        for name, p in parameters.items():
            if p.grad is not None:
                reached[name], p.grad = p.grad, None
        for p, grad in kept:
            p.grad = grad
    return reached


def used_outside(name: str) -> str:
    """The message for a parameter that autograd reached by another way than its module."""
    return (
        f"parameter {name} gets a gradient that no module's own forward explains: it is used outside the module that "
        "owns it (functional use of another module's weight, or a hook). Call the owning module, or register the "
        "parameter on the module that uses it"
    )


def not_first(path: str, t: Tensor, records: int) -> str:
    """The message for a tensor that does not have the record first."""
    return (
        f"{path or 'the model'} works on a tensor of shape {tuple(t.shape)} while the loss has {records} records: "
        "the first dimension must be the record (batch_first=True), one loss value each"
    )


def enclosed(losses: Tensor, own: Iterable[Tensor]) -> set[Any]:
    """The nodes of the graph of these losses; refuses one in which something is trained that is neither `own` nor a record's.

    Leaves with a row a record (inputs, activations of a frozen part) are nobody's parameters.
    """
    known = {id(t) for t in own}
    seen: set[Any] = set()
    todo: list[Any] = [losses.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor) and id(leaf) not in known:
            rows = leaf.shape[0] if leaf.dim() else 0
            if isinstance(leaf, nn.Parameter) or rows != len(losses):
                raise UnsupportedModelError(
                    f"the loss also reaches a trainable parameter of shape {tuple(leaf.shape)} that is not part of the private "
                    "model; its gradient would carry the records without noise. Give the whole model, or detach/freeze that part"
                )
        todo.extend(parent for parent, _ in node.next_functions)
    return seen


class Proof:
    """Collects what the first forward pass shows and checks it. Passing is remembered by the engine, not here."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, Tensor]] = []
        self._versions: list[int] = []
        self._calls: list[Call] = []
        self._begun: list[tuple[Any, Any, Tensor, dict[str, Tensor], dict[str, Tensor], nn.Module | None]] = []
        self._single = False  # whether a single record has told that the model remembers nothing
        self._within = False

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
        self._seen, self._versions, self._calls, self._begun = [], [], [], []

    @contextmanager
    def within(self) -> Iterator[None]:
        """Calls of the model within a call, record by record, are none of the user's."""
        self._within = True
        try:
            yield
        finally:
            self._within = False

    def watch(self, model: nn.Module, copied: Callable[[], nn.Module | None]) -> list[Any]:
        """Remember the calls of the whole model, to be able to repeat them; `copied` gives the model as it is, sharing its parameters."""

        def start(_module: nn.Module, args: Any, kwargs: Any) -> None:
            if torch.is_grad_enabled() and not self._within:
                buffers, parameters = (
                    isolation.copied(model.named_buffers()),
                    isolation.copied(model.named_parameters()),
                )
                before = None if self._single else copied()  # whoever writes down what it sees has done so by then
                self._begun = [(args, kwargs, torch.get_rng_state(), buffers, parameters, before)]

        def end(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
            if not torch.is_grad_enabled():
                return
            for name, b in model.named_buffers():
                if torch._C._functorch.is_functorch_wrapped_tensor(b):  # of a pass record by record
                    raise UnsupportedModelError(writes(f"buffer {name}"))
            if self._within or not self._begun:
                return
            args, kwargs, state, buffers, parameters, before = self._begun.pop()
            for name in sorted(isolation.changed(parameters, model.named_parameters())):
                raise UnsupportedModelError(writes(f"parameter {name}"))
            self._calls.append(
                Call(
                    args=args,
                    kwargs=kwargs,
                    random_state=state,
                    buffers=buffers,
                    output=output,
                    before=before,
                    values=[t.detach().clone() for t in isolation.tensors(output)],
                    drew=not torch.equal(state, torch.get_rng_state()),
                    wrote=isolation.changed(buffers, model.named_buffers()),
                )
            )

        return [
            # before the model's own hooks, which may change the arguments and will do so again
            model.register_forward_pre_hook(start, with_kwargs=True, prepend=True),
            model.register_forward_hook(end, with_kwargs=True),
        ]

    def before(self, losses: Tensor, own: Iterable[Tensor], model: nn.Module) -> None:
        """Check separation, isolation and enclosure, which need the graph but not the engine's own backward pass."""
        reached = enclosed(losses, own)
        self._separation(losses, reached)
        if len(losses) > 1 or not self._single:
            self._isolation(model, len(losses), reached)

    def _isolation(self, model: nn.Module, records: int, reached: set[Any]) -> None:
        used = [call for call in self._calls if any(t.grad_fn in reached for t in isolation.tensors(call.output))]
        if not used and any(output.grad_fn in reached for _, output in self._seen):
            raise UnsupportedModelError(isolation.OUT_OF_SIGHT)
        for call in used:
            isolation.check(call, model, records)
            # a record of zeros, which stands for an empty batch, cannot tell
            self._single |= any(bool((t != 0).any()) for t in isolation.tensors((call.args, call.kwargs)))

    def lowest_precision(self) -> torch.dtype:
        """The coarsest arithmetic met: completeness cannot hold more closely than that."""
        return max((o.dtype for _, o in self._seen), key=lambda d: torch.finfo(d).eps, default=torch.float64)

    def _separation(self, losses: Tensor, reached: set[Any]) -> None:
        records = len(losses)
        seen = [(path, output) for path, output in self._seen if output.grad_fn in reached]
        for path, output in seen:
            if output.dim() == 0 or output.shape[0] != records:
                raise UnsupportedModelError(not_first(path, output, records))
        outputs = [output for _, output in seen]
        if not outputs:
            return
        mine: list[tuple[int, Sequence[Tensor | None]]] = []
        for one in {0, records - 1}:
            alone = torch.autograd.grad(losses[one], outputs, retain_graph=True, allow_unused=True)
            for (path, _), g in zip(seen, alone, strict=True):
                if g is not None and any(
                    bool(((part != 0) & part.isfinite()).any()) for part in (g[:one], g[one + 1 :])
                ):
                    raise UnsupportedModelError(mixes(path or "the model"))
            mine.append((one, [None if g is None else g[one] for g in alone]))
        together = torch.autograd.grad(losses.sum(), outputs, retain_graph=True, allow_unused=True)
        for one, own in mine:
            for (path, _), by_itself, of_all in zip(seen, own, together, strict=True):
                if by_itself is not None and (of_all is None or not isolation.close(by_itself, of_all[one])):
                    raise UnsupportedModelError(
                        f"the backward pass mixes records: what reaches {path or 'the model'} for one record's loss depends on the losses of the "
                        "others (a hook or a function of its own that scales gradients by the batch). Per-record clipping cannot bound that"
                    )

    def compare(self, grads: RecordGrads, expected: Mapping[str, Tensor], low: torch.dtype) -> bool:
        """True when completeness holds; False when this batch cannot tell (a gradient is not finite); raises otherwise."""
        if not expected:
            raise UnsupportedModelError(
                "these losses depend on no trainable parameter of the model: they were computed without it, or without its own forward"
            )
        norms = grads.norms([0] * grads.layers)
        if grads.nonfinite:
            return False
        scale = float(norms.sum())
        for name, total in grads.total(torch.ones_like(norms)).items():
            theirs = expected.get(name)
            gap = total if theirs is None else total - theirs
            if float(gap.norm()) > max(1e3 * torch.finfo(gap.dtype).eps, 8 * torch.finfo(low).eps) * scale:
                raise UnsupportedModelError(used_outside(name))
        return True
