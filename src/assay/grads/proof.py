"""What the engine proves on the first batch of the user's own model, before any parameter moves.

1. Separation: the first and the last record's loss have gradient zero with respect to every other record's activations.
   It fails for layers that mix records (batch statistics, attention across the batch) and for models whose record
   dimension is not the first one.
2. Isolation: the first and the last record's output stay what they are when all other records are replaced. It fails
   where records are mixed outside autograd's sight (before the first trainable layer, in detached batch statistics). What
   the forward pass writes into the model stays what it is, too: parameters are not written, buffers do not depend on records,
   and the same call gives the same output again, also from a model that has seen other records before. What is written there leaves
   with the model, without noise. It is copies of the model as it was before the call that are asked (`assay.grads.copies`): the model itself may
   have written down on its first call what it keeps to from then on.
3. Completeness: the per-record gradients add up to autograd's own gradient of the summed loss. It fails where a
   parameter is also used outside the module that owns it.
4. Enclosure: the loss reaches nothing trainable outside the model, whose gradient would leave without noise.

A loss that itself mixes records (scaled by a batch statistic) cannot be seen from its values alone: it must give one value a
record, from that record alone. Who has the loss itself can ask `separate`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.errors import UnsupportedModelError
from assay.grads import copies
from assay.grads.arithmetic import constant
from assay.grads.record_grads import RecordGrads


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


def mixes(path: str) -> str:
    """The message for a module that mixes records."""
    return (
        f"{path} mixes records: one record's loss depends on other records' activations there. "
        "Per-record clipping cannot bound such a model; replace the layer that mixes (batch statistics, attention "
        "over the batch), or put the record dimension first (batch_first=True)"
    )


def writes(what: str) -> str:
    """The message for what the forward pass writes into the model."""
    return (
        f"the forward pass writes into {what} what it has seen of the records: that would leave with the model without noise. Take it out "
        "(running statistics, data-dependent initialisation), or set it from public data before"
    )


def not_first(path: str, t: Tensor, records: int) -> str:
    """The message for a tensor that does not have the record first."""
    return (
        f"{path or 'the model'} works on a tensor of shape {tuple(t.shape)} while the loss has {records} records: "
        "the first dimension must be the record (batch_first=True), one loss value each"
    )


def _only(one: int, records: int, t: Any) -> Any:
    """The same with every other record replaced by one of them; zeros in the place of a record that is alone."""
    if not (isinstance(t, Tensor) and t.dim() > 0 and t.shape[0] == records):
        return t
    return torch.zeros_like(t) if records == 1 else t[one : one + 1].expand_as(t).clone()


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the whole model, and what is needed to repeat it: randomness and buffers as they were before."""

    args: Any
    kwargs: Any
    random_state: Tensor
    buffers: Mapping[str, Tensor]
    output: Any
    before: nn.Module | None
    """The model as it was, sharing its parameters; None where it cannot be copied."""
    values: list[Tensor]
    """The output as it was: what follows may change it in place."""
    drew: bool
    """Whether it drew random numbers."""
    wrote: frozenset[str]
    """The buffers that it changed."""


def _copies(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in tensors}


def _changed(before: Mapping[str, Tensor], now: Iterable[tuple[str, Tensor]]) -> frozenset[str]:
    """The names whose tensors are not what they were, those that came or went included."""
    left = dict(before)
    changed = set()
    for name, t in now:
        old = left.pop(name, None)
        same = old is not None and old.shape == t.shape and old.dtype == t.dtype
        if not (same and old is not None and torch.equal(old, t.detach())):
            changed.add(name)
    return frozenset(changed | left.keys())


def _another(call: _Call, model: nn.Module) -> nn.Module:
    """The model as it was before the call; the model itself where it cannot be copied."""
    return (None if call.before is None else copies.of_model(call.before, sharing=True)) or model


def _again(call: _Call, model: nn.Module, args: Any, kwargs: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The outputs of the plain model with the randomness and the buffers of another call, and the buffers after it; leaves all as it
    was.
    """
    kept = _copies(model.named_buffers())
    now = torch.get_rng_state()
    try:
        torch.set_rng_state(call.random_state)
        with torch.no_grad():
            _put(model, call.buffers)
            return _tensors(model(*args, **kwargs)), _copies(model.named_buffers())
    finally:
        torch.set_rng_state(now)
        with torch.no_grad():
            _put(model, kept)


def _put(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, b in model.named_buffers():
        if name in values and values[name].shape == b.shape and not torch.equal(b, values[name]):
            b.copy_(values[name])


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return bool((a == b).all())
    tolerance = 1e3 * torch.finfo(a.dtype).eps
    scale = float(a.abs().nan_to_num(0, 0, 0).max())
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def separate(loss: Callable[[Any, Any], Tensor], output: Any, target: Any) -> bool:
    """Refuse a loss whose first or last value changes when all other records are replaced, or that remembers what it has seen; whether
    this batch could tell, which takes two records. Ask before the loss has seen any.
    """
    random_state = torch.get_rng_state()

    def asked(of: Callable[[Any, Any], Tensor], change: Callable[[Any], Any] = lambda t: t) -> Tensor:
        torch.set_rng_state(random_state)
        return of(pytree.tree_map(change, output), pytree.tree_map(change, target))

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        mine = copies.of_loss(loss)
        plain, again = asked(mine), asked(mine)
        if plain.dim() != 1 or len(plain) < 2:
            return False
        for one in (0, len(plain) - 1):
            other = copies.of_loss(loss)
            alone = asked(other, functools.partial(_only, one, len(plain)))
            if not (_close(plain, again) and _close(plain, asked(other))):
                raise UnsupportedModelError(
                    "the same outputs give another loss the second time: the loss remembers what it has seen, and so mixes records (running "
                    "counts), or draws random numbers from a generator that is not torch's own"
                )
            if not _close(plain[one], alone[one]):
                raise UnsupportedModelError(
                    "the loss mixes records: one record's value depends on the others in its batch (weights by the batch's own counts, a "
                    "contrast over the batch). Per-record clipping cannot bound that; use constants that are known beforehand"
                )
    return True


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
        self._calls: list[_Call] = []
        self._begun: list[tuple[Any, Any, Tensor, dict[str, Tensor], dict[str, Tensor], nn.Module | None]] = []
        self._single = False  # whether a single record has told that the model remembers nothing

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

    def watch(self, model: nn.Module, copied: Callable[[], nn.Module | None]) -> list[Any]:
        """Remember the calls of the whole model, to be able to repeat them; `copied` gives the model as it is, sharing its parameters."""

        def start(_module: nn.Module, args: Any, kwargs: Any) -> None:
            if torch.is_grad_enabled():
                buffers, parameters = _copies(model.named_buffers()), _copies(model.named_parameters())
                before = None if self._single else copied()  # whoever writes down what it sees has done so by then
                self._begun.append((args, kwargs, torch.get_rng_state(), buffers, parameters, before))

        def end(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
            if torch.is_grad_enabled():
                args, kwargs, state, buffers, parameters, before = self._begun.pop()
                for name, b in model.named_buffers():
                    if torch._C._functorch.is_functorch_wrapped_tensor(b):  # of a pass record by record
                        raise UnsupportedModelError(writes(f"buffer {name}"))
                for name in sorted(_changed(parameters, model.named_parameters())):
                    raise UnsupportedModelError(writes(f"parameter {name}"))
                self._calls.append(
                    _Call(
                        args=args,
                        kwargs=kwargs,
                        random_state=state,
                        buffers=buffers,
                        output=output,
                        before=before,
                        values=[t.detach().clone() for t in _tensors(output)],
                        drew=not torch.equal(state, torch.get_rng_state()),
                        wrote=_changed(buffers, model.named_buffers()),
                    )
                )

        return [
            # before the model's own hooks, which may change the arguments and will do so again
            model.register_forward_pre_hook(start, with_kwargs=True, prepend=True),
            model.register_forward_hook(end, with_kwargs=True),
        ]

    def before(self, losses: Tensor, own: Iterable[Tensor], model: nn.Module) -> None:
        """Check separation and enclosure, which need the graph but not the engine's own backward pass."""
        reached = enclosed(losses, own)
        self._separation(losses, reached)
        if len(losses) > 1 or not self._single:
            self._repeat(model, len(losses), reached)

    def lowest_precision(self) -> torch.dtype:
        """The coarsest arithmetic met: completeness cannot hold more closely than that."""
        return max((o.dtype for _, o in self._seen), key=lambda d: torch.finfo(d).eps, default=torch.float64)

    def _repeat(self, model: nn.Module, records: int, reached: set[Any]) -> None:
        """Run the plain model again, twice, and with every other record replaced by the first, and by the last; then as it was once more."""
        for call in self._calls:
            if not any(t.grad_fn in reached for t in _tensors(call.output)):
                continue
            again = functools.partial(_again, call)
            mine = _another(call, model)
            plain, after = again(mine, call.args, call.kwargs)
            for seen, now in zip(call.values, plain, strict=True):
                if not call.drew and seen.dtype == now.dtype and not _close(seen, now):
                    raise UnsupportedModelError(
                        "the model computes something else record by record than it does as it is: an argument that all "
                        "records share may have as many rows as there are records, or the model remembers earlier batches"
                    )
            self._remembers_nothing(plain, again(mine, call.args, call.kwargs)[0])
            for one in {0, records - 1}:
                replaced = functools.partial(_only, one, records)
                args, kwargs = pytree.tree_map(replaced, (call.args, call.kwargs))
                other = _another(call, model)
                alone, without_others = again(other, args, kwargs)
                for name in sorted(call.wrote):
                    written, theirs = after.get(name), without_others.get(name)
                    if (
                        written is None
                        or theirs is None
                        or written.shape != theirs.shape
                        or not _close(written, theirs)
                    ):
                        raise UnsupportedModelError(writes(f"buffer {name}"))
                for with_others, without in zip(plain, alone, strict=True):
                    batched = records > 1 and with_others.dim() > 0 and with_others.shape[0] == records
                    if batched and not _close(with_others[one], without[one]):
                        raise UnsupportedModelError(mixes("the model"))
                self._remembers_nothing(plain, again(other, call.args, call.kwargs)[0])
            # a record of zeros, which stands for an empty batch, cannot tell
            self._single |= any(bool((t != 0).any()) for t in _tensors((call.args, call.kwargs)))

    def _remembers_nothing(self, once: list[Tensor], again: list[Tensor]) -> None:
        if not all(_close(a, b) for a, b in zip(once, again, strict=True)):
            raise UnsupportedModelError(
                "the same batch gives another output the second time: the model remembers what it has seen outside its buffers, "
                "or draws random numbers from a generator of its own. What it remembers would mix records"
            )

    def _separation(self, losses: Tensor, reached: set[Any]) -> None:
        records = len(losses)
        seen = [(path, output) for path, output in self._seen if output.grad_fn in reached]
        for path, output in seen:
            if output.dim() == 0 or output.shape[0] != records:
                raise UnsupportedModelError(not_first(path, output, records))
        outputs = [output for _, output in seen]
        for one in {0, records - 1} if outputs else ():
            alone = torch.autograd.grad(losses[one], outputs, retain_graph=True, allow_unused=True)
            for (path, _), g in zip(seen, alone, strict=True):
                if g is None:
                    continue
                if any(bool(((part != 0) & part.isfinite()).any()) for part in (g[:one], g[one + 1 :])):
                    raise UnsupportedModelError(mixes(path or "the model"))

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
