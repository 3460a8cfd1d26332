"""When the engine checks the user's model: in full on the first batch, in part on random later ones and after changes.

Every batch gets the cheap checks: what the losses reach, writes into the model that versions show, and modules that
were added or changed their mode. About one batch in 2000 gets a `Proof` again, and so does a batch that brings
something new. The choices are secret, or follow from the run's seed.

Version counters are cheap to read: torch raises a tensor's version at every write in place, and a tensor that replaced
another is another object. A pass that writes into a parameter is refused at once. A buffer, an attribute or extra state
may be written if the values do not depend on the records, which is checked at the first write
(`assay.gradients.proof.isolation`). Versions do not show writes through `.data`, by kernels of other libraries or into
lists. Comparing values shows these, on the first batch and on random later ones (`assay.gradients.proof.first_batch`).
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from assay.errors import UnsupportedModelError
from assay.gradients.proof import calls, isolation
from assay.gradients.proof.calls import Coins, extra_state, has_extra_state
from assay.gradients.proof.first_batch import Proof
from assay.gradients.proof.graph import Graph, check_losses
from assay.gradients.proof.isolation import writes
from assay.gradients.proof.rows import Where
from assay.gradients.record_grads import RecordGrads
from assay.models import compat

_LOSSES_FIRST, _LOSSES_EVERY = 16, 256  # the losses of the first batches are checked, then those of one in 256
_CALLS = 4  # of the model, before a backward pass, that are remembered to be repeated
_STALE = (
    "the model was called with the records of an earlier batch, or of an earlier part of this one: they would count "
    "twice. Give it what batches() gave last"
)
_AGAIN = 1 / 2000  # of the later batches get a proof again, which costs as much as five to fifteen steps


@dataclass(slots=True)
class _Made:
    """A call of the whole model that records gradients."""

    args: Any
    kwargs: Any
    outputs: list[Tensor] = field(default_factory=list)


@dataclass(slots=True)
class Look:
    """What is known about a batch before its backward pass."""

    records: int
    calls: list[_Made]
    """The calls of the model that the losses come from."""
    written: set[str]
    """What the forward passes wrote."""
    proof: Proof | None
    left_alone: frozenset[str] = frozenset()
    """The modules whose outputs nothing changes in place; known with a proof."""
    precision: torch.dtype = torch.float64
    """The coarsest arithmetic met."""


class Inspector:
    """Watches the calls of a model, and checks each batch before and after its backward pass.

    Args:
        model: The model.
        copied: Gives the model as it is, sharing its parameters; None where it cannot be copied.
        coins: Which records and batches are chosen.
    """

    def __init__(self, model: nn.Module, copied: Callable[[], nn.Module | None], coins: Coins) -> None:
        self._model, self._copied, self._coins = model, copied, coins
        self.proven = False
        self._where = Where()
        self.proof: Proof | None = Proof(model, copied, coins, self._where)
        self.within = False
        """Whether a module is being called record by record: calls of the model within are not the user's."""
        self.split = False
        """Whether parameters are split over ranks, which pass through the model together: none may call it alone."""
        self._watch = Watch(model)
        self._independent: set[str] = set()  # what passes may write, because it does not depend on the records
        self._due = False  # whether the next batch gets a full proof
        self._left = self._gap()
        self._calls: deque[_Made] = deque(maxlen=_CALLS)
        self._written: set[str] = set()
        self._moved: set[str] = set()  # what was changed between steps; each leads to one more proof
        self._batches, self._turn = 0, -1
        self._handed: list[TensorWeakRef] = []
        self._handed_before: list[TensorWeakRef] = []
        self._hooks = self._hooked()

    def _gap(self) -> int:
        """How many batches to wait until the next proof."""
        return 1 + int(math.log1p(-float(self._coins.uniform(1))) / math.log1p(-_AGAIN))

    def _hooked(self) -> list[Any]:
        """Hooks around the calls of the whole model: functions, because copying the model would copy bound methods."""
        model = self._model

        def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
            if module is model and not self.within and torch.is_grad_enabled():
                calls.check_untransformed(module, model)
                self._begin(args, kwargs)

        def end(module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
            if module is model and torch.is_grad_enabled():
                self._end(output)

        outside: Any = torch.compiler.disable if compat.compiled(model) else lambda hook: hook
        return [
            # before the model's own hooks, which may change the arguments and will do so again
            model.register_forward_pre_hook(outside(begin), with_kwargs=True, prepend=True),
            model.register_forward_hook(outside(end), with_kwargs=True),
        ]

    def hand_out(self, batch: Any) -> None:
        """Say what the next losses are to be made of."""
        now = calls.tensors(batch)
        again = set(map(id, now))
        before = [(ref, t) for ref in (*self._handed_before, *self._handed) if (t := ref()) is not None]
        self._handed_before = [ref for ref, t in before if id(t) not in again]
        self._handed = [TensorWeakRef(t) for t in now]

    def _check_current(self, used: list[_Made]) -> None:
        """Refuse calls with what was handed out before, which somebody has kept, and not with this part."""
        earlier = [t for ref in self._handed_before if (t := ref()) is not None]
        if not earlier:  # as in most loops, on every batch
            return
        before = set(map(_memory, earlier)) - {None}
        before -= {_memory(t) for ref in self._handed if (t := ref()) is not None}
        if before and any(_memory(t) in before for call in used for t in calls.tensors((call.args, call.kwargs))):
            raise UnsupportedModelError(_STALE)

    def _begin(self, args: Any, kwargs: Any) -> None:
        """The whole model is about to be called."""
        if self._watch.reformed() and self.proven:
            compat.check(self._model)
            self._due = True
        changed = self._watch.state()
        if self._calls:  # an earlier call, of this step or for a purpose of the user's own
            self._written |= changed
        elif self.proven:
            # between two steps: a buffer or an attribute may switch on what was not there on the first batch
            new = (changed | self._watch.attributes()) - self._independent - self._moved
            if new:
                self._moved |= new
                self._due = True
        self._watch.mark()
        if self.proof is None and self.proven and not self.split and (self._due or self._left <= 0):
            self.proof = Proof(self._model, self._copied, self._coins, self._where, full=self._due)
        self._calls.append(_Made(args, kwargs))
        if self.proof is not None:
            self.proof.begin(args, kwargs)

    def _end(self, output: Any) -> None:
        """The whole model was called."""
        if self.within:
            if self.proof is not None:
                self.proof.check_buffers()
            return
        if self.proof is not None:
            self.proof.end(output)
        if self._calls:
            self._calls[-1].outputs = calls.tensors(output)

    def before(self, losses: Tensor, graph: Graph) -> Look:
        """Check a batch before its backward pass.

        Raises:
            UnsupportedModelError: The model or the losses mix records, or the forward pass writes into the model.
        """
        used = [call for call in self._calls if any(map(graph.holds, call.outputs))]
        self._check_current(used)
        look = Look(losses.shape[0], used, self._written | self._watch_written("forward"), self.proof)
        if graph.normalises:
            look.written.add("statistics of the batch")
        if look.proof is not None:
            compat.check(self._model)
            look.proof.before(losses, graph)
            look.left_alone, look.precision = look.proof.left_alone, look.proof.lowest_precision
        self._check_losses(losses, used, graph)
        return look

    def after(self, look: Look, *, reached: bool) -> None:
        """Check a batch after its backward pass.

        Args:
            look: What `before` returned.
            reached: Whether the losses depend on trainable parameters.

        Raises:
            UnsupportedModelError: The losses come from no call of the model, or a pass writes what depends on records.
        """
        if reached and not look.calls:
            raise UnsupportedModelError(isolation.OUT_OF_SIGHT)
        for what in sorted(self._watch_written("backward") - look.written - self._independent):
            raise UnsupportedModelError(isolation.writes(what, "backward"))
        if look.proof is not None:
            look.proof.after()
        self._check_independent(look)

    def conclude(self, look: Look, grads: RecordGrads, expected: Mapping[str, Tensor]) -> bool:
        """Plan the next proof. True for the batch that proves the engine: its gradients add up to autograd's own."""
        proof = look.proof
        if self.proven:
            self.proof = None
            self._left = self._left - 1 if proof is None else self._gap()
            if proof is not None and proof.full and look.records > 1:
                self._due = False
            return False
        if proof is None or not proof.compare(grads, expected, look.precision) or look.records < 2:
            return False
        self.proof, self.proven = None, True
        return True

    def forget(self) -> None:
        """Forget the calls of the model so far."""
        self._written = set()
        self._calls.clear()
        if self.proof is not None:
            self.proof.forget()

    def start_over(self, args: Any, kwargs: Any) -> None:
        """Take the call that has just begun for one of the first batch: nothing is proven yet."""
        self.proven = False
        self.proof = Proof(self._model, self._copied, self._coins, self._where)
        self.proof.begin(args, kwargs)

    def prove_again(self) -> None:
        """Check the next batch in full."""
        self._due = True

    def split_over_ranks(self) -> None:
        """Parameters come and go from here on, and no rank may call the model alone."""
        self.split, self._watch.by_versions = True, False

    def stop(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def _watch_written(self, during: str) -> set[str]:
        """What was written since the model was called; nothing if it was not called, because nothing was marked."""
        return self._watch.written(during) if self._calls else set()

    def _check_losses(self, losses: Tensor, used: list[_Made], graph: Graph) -> None:
        """Refuse losses that mix what the model put out: on each of the first batches, then on a random few."""
        if self.split:  # a backward pass of one rank alone would wait for the others' parameters
            return
        self._batches += 1
        if self._batches % _LOSSES_EVERY == self._turn or self._batches <= _LOSSES_FIRST:
            outputs = [t for call in used for t in call.outputs]
            most = 1 if self.proven else (len(losses) - 1).bit_length()
            check_losses(losses, outputs, graph, self._coins, self._where, most)
        if self._batches % _LOSSES_EVERY == 0:
            self._turn = int(self._coins.uniform(1) * _LOSSES_EVERY)

    def _check_independent(self, look: Look) -> None:
        """Refuse passes that wrote something for the first time, unless it does not depend on the records."""
        new = (look.written | self._watch.attributes()) - self._independent
        if not new:
            return
        if self.split:
            for what in sorted(new):
                if not what.startswith("attribute"):  # the ranks' own bookkeeping
                    raise UnsupportedModelError(isolation.writes(what))
        elif look.proof is None or not look.proof.full:  # a full proof has checked it
            for call in look.calls:
                isolation.check(self._repeatable(call, new), self._model, look.records, self._coins, self._where)
            self._due = True  # the next batch shows whether the backward pass depends on it
        if look.records > 1:
            self._independent |= new

    def _repeatable(self, made: _Made, written: set[str]) -> calls.Call:
        """A call that was made, with the model as it is now."""
        return calls.Call(
            args=made.args,
            kwargs=made.kwargs,
            random_state=calls.random_state(),
            buffers=calls.copied(self._model.named_buffers()),
            output=None,
            before=self._copied(),
            values=[],
            drew=True,
            wrote=frozenset(name.removeprefix("buffer ") for name in written),
        )


_MODES = 16  # a model with more modes is checked on random batches only
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_GLOBAL_HOOKS: list[dict[int, Any]] = [getattr(nn.modules.module, f"_global{kind}") for kind in _HOOKS]


class Watch:
    """Tells what has changed in a model since `mark`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.by_versions = True
        """Whether parameters stay the same tensors; those of a model that is split over ranks do not."""
        self._modes: set[tuple[bool, ...]] = set()
        self._hooks: set[Any] = set()  # that were there before
        self._survey()

    def _survey(self) -> None:
        named = list(self._model.named_modules())
        self._modules = [m for _, m in named]
        self._children = [m._modules for m in self._modules]
        self._form = self._placed()
        self._hooked = [*_GLOBAL_HOOKS, *(getattr(m, kind) for m in self._modules for kind in _HOOKS)]
        self._parameters = [(n, p) for n, p in self._model.named_parameters() if not p.is_inference()]
        self._values = [p for _, p in self._parameters]
        self._buffers = [(f"{n}." if n else "", m._buffers) for n, m in named]
        self._with_buffers = [b for _, b in self._buffers if b]
        self._without = [b for _, b in self._buffers if not b]
        # torch's layers write into buffers and parameters only
        own = [(n, m) for n, m in named if not type(m).__module__.startswith("torch.nn.modules.")]
        self._attributes = [(n or "the model", vars(m)) for n, m in own]
        self._extra = [(n or "the model", m) for n, m in own if has_extra_state(m)]
        self.mark()

    def _placed(self) -> list[nn.Module | None]:
        return list(chain.from_iterable(map(dict.values, self._children)))

    def reformed(self) -> bool:
        """Whether modules were added or removed, or have modes together, or hooks, that were not there before."""
        if self._placed() != self._form:
            self._modes.clear()
            self._survey()
        mode = tuple([m.training for m in self._modules])
        if hooks := set(map(_code, chain.from_iterable(map(dict.values, self._hooked)))) - self._hooks:
            self._hooks |= hooks
        elif mode in self._modes or len(self._modes) >= _MODES:
            return False
        self._modes.add(mode)
        return True

    def mark(self) -> None:
        """Remember the current state, to compare with."""
        self._versions = [p._version for p in self._values] if self.by_versions else []
        self._held = [list(b.values()) for b in self._with_buffers]
        self._held_versions = [[_version(t) for t in held] for held in self._held]
        self._seen = [a.copy() for _, a in self._attributes]
        self._seen_versions = [[_version(v) for v in seen.values() if type(v) is Tensor] for seen in self._seen]
        self._told = [extra_state(m) for _, m in self._extra]

    def written(self, during: str) -> set[str]:
        """The buffers and extra states that were written since the mark.

        Raises:
            UnsupportedModelError: A parameter was written, or a buffer in a pass record by record.
        """
        if self.by_versions and self._versions != [p._version for p in self._values]:
            for (name, p), version in zip(self._parameters, self._versions, strict=True):
                if p._version != version:
                    raise UnsupportedModelError(writes(f"parameter {name}", during))
        return self.state(during)

    def state(self, during: str = "forward") -> set[str]:
        """The same without checking parameters, which an optimizer may have moved."""
        found: set[str] = set()
        for held, versions, now in zip(self._held, self._held_versions, self._with_buffers, strict=True):
            if list(map(id, held)) != list(map(id, now.values())) or versions != [_version(t) for t in held]:
                found |= self._names(held, versions, now, during)
        if any(self._without):
            for now in self._without:
                found |= self._names([], [], now, during)
        for (path, module), told in zip(self._extra, self._told, strict=True):
            if extra_state(module) != told:
                found.add(f"the extra state of {path}")
        return found

    def attributes(self) -> set[str]:
        """The attributes that were set or written since the mark, of modules that are not torch's own."""
        found = set()
        for (path, now), seen, versions in zip(self._attributes, self._seen, self._seen_versions, strict=True):
            if list(map(id, seen.values())) != list(map(id, now.values())):
                found |= {f"attribute {name} of {path}" for name, v in now.items() if seen.get(name, seen) is not v}
            if versions and versions != [_version(v) for v in seen.values() if type(v) is Tensor]:
                found.add(f"a tensor of {path}")
        return found

    def _names(
        self, held: list[Tensor | None], versions: list[int], now: dict[str, Tensor | None], during: str
    ) -> set[str]:
        prefix = next(p for p, b in self._buffers if b is now)
        before = {id(t): v for t, v in zip(held, versions, strict=True)}
        found = set()
        for name, t in now.items():
            if t is not None and torch._C._functorch.is_functorch_wrapped_tensor(t):
                raise UnsupportedModelError(writes(f"buffer {prefix}{name}", during))
            if before.get(id(t)) != _version(t):
                found.add(f"buffer {prefix}{name}")
        return found


def _code(hook: Any) -> Any:
    """What a hook runs: one that is registered again for every batch is the same."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return getattr(hook, "__code__", type(hook))


def _version(t: Tensor | None) -> int:
    return 0 if t is None or t.is_inference() else t._version


def check_hooks(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Refuse parameters with hooks on their gradient: a hook would see the sum of the records' gradients without noise.

    Raises:
        UnsupportedModelError: A parameter has such a hook; the message names it and says what to do.
    """
    for name, p in parameters:
        after: Any = p._post_accumulate_grad_hooks
        if after:
            raise UnsupportedModelError(
                f"parameter {name} has a hook that runs when its gradient is there "
                "(register_post_accumulate_grad_hook, an optimizer fused into the backward pass): it would act on the "
                "records' gradients without noise. Remove it, and call optimizer.step() after step.backward(losses), "
                "when .grad is private"
            )
        if p._backward_hooks:
            raise UnsupportedModelError(
                f"parameter {name} has a hook on its gradient (register_hook): it would see the records' gradients "
                "without noise. Remove it, and change .grad after step.backward(losses), when it is private"
            )


def _memory(t: Tensor) -> int | None:
    """Where a tensor's numbers are; None for one that has none in plain memory."""
    try:
        return t.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # sparse, or wrapped by vmap
        return None
