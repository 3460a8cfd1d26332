"""When the engine checks the user's model: in full on the first batch, in part on random later ones and after changes.

Every batch gets the cheap checks: what the losses reach, writes into the model that versions show, and modules that
were added or changed their mode. About one batch in 2000 gets a `Proof` again, and so does a batch that brings
something new. The choices are secret, or follow from the run's seed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import UnsupportedModelError
from assay.gradients.proof import calls, isolation
from assay.gradients.proof.first_batch import Graph, Proof, check_losses
from assay.gradients.proof.replacements import Coins
from assay.gradients.proof.watch import Watch
from assay.gradients.record_grads import RecordGrads
from assay.models import compat

_LOSSES_FIRST, _LOSSES_EVERY = 16, 256  # the losses of the first batches are checked, then those of one in 256
_CALLS = 4  # of the model, before a backward pass, that are remembered to be repeated
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
        self.proof: Proof | None = Proof(model, copied, coins)
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
        self._hooks = self._hooked()

    def _gap(self) -> int:
        """How many batches to wait until the next proof."""
        return 1 + int(math.log1p(-float(self._coins.uniform(1))) / math.log1p(-_AGAIN))

    def _hooked(self) -> list[Any]:
        """Hooks around the calls of the whole model: functions, because copying the model would copy bound methods."""
        model = self._model

        def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
            if module is model and not self.within and torch.is_grad_enabled():
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
            self.proof = Proof(self._model, self._copied, self._coins, full=self._due)
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
        look = Look(len(losses), used, self._written | self._watch_written("forward"), self.proof)
        if graph.normalises:
            look.written.add("statistics of the batch")
        if look.proof is not None:
            compat.check(self._model)
            look.proof.before(losses, graph)
            look.left_alone, look.precision = look.proof.left_alone(), look.proof.lowest_precision()
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
            check_losses(losses, outputs, graph, self._coins, most)
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
                isolation.check(self._repeatable(call, new), self._model, look.records, self._coins)
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
