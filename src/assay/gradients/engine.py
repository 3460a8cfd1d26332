"""The engine: one forward, one backward, every record's gradient norm, and one clipped sum.

Each module that owns trainable parameters runs with those parameters detached, so that the one backward pass computes
input gradients only; its input and the gradient of its output are handed to the rule of its layer type, which knows the
norm of each record's gradient and their weighted sum (`assay.gradients.uses.base`). No second backward pass, no weight gradient
computed twice, no [records, parameters] tensor unless it is the smallest thing to keep.

Nothing is kept between steps: what a forward pass records hangs on its autograd graph and is gone with it. A backward
pass that is not ours (a generator's loss through a private discriminator) collects nothing.

On its first batch the engine proves itself on the user's model (`assay.gradients.proof.first_batch`): the sum of the per-record
gradients must equal autograd's own, one record's loss must not touch another record's activations, and no pass may write into the model
what it has seen. It looks again, in part, on random later batches, and at once where something begins that was not there before
(`assay.gradients.proof.watch`).
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import ConfigError, UnsupportedModelError
from assay.gradients import cost
from assay.gradients.arithmetic import full
from assay.gradients.forwards import Forwards
from assay.gradients.proof import first_batch as proof
from assay.gradients.proof import isolation
from assay.gradients.proof.replacements import Coins
from assay.gradients.proof.watch import Watch, check_hooks
from assay.gradients.record_grads import RecordGrads, Reduce
from assay.gradients.rules import attention
from assay.gradients.rules.fallback import PerRecordCall
from assay.gradients.rules.layers import (
    RULES,
    ConvRule,
    EmbeddingRule,
    ExpandRule,
    Rules,
    TapeRule,
)
from assay.gradients.rules.shared_indices import SharedIndices
from assay.gradients.units import Unit, Units
from assay.gradients.uses.base import Apart, Dense, Found
from assay.gradients.uses.persons import Persons
from assay.gradients.uses.repeated import gathered
from assay.gradients.uses.views import folded
from assay.models import compat, copies
from assay.models.layers import layer_path, trainable_layers
from assay.randomness.streams import OsSeeded

_SMALL_OUTPUT = 1 << 16
_LOSSES_FIRST, _LOSSES_EVERY = 16, 256  # batches whose losses are looked at: the first ones, then one of so many
_CALLS = 4  # of the model, before a backward pass, that are remembered to be repeated
_ASKED_AGAIN = 1 / 2000  # of the later batches; to ask costs five to fifteen steps


class _Anchor(torch.autograd.Function):
    """Makes an output part of the autograd graph, in place, so that in-place activations after it stay legal."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, anchor: Tensor) -> Tensor:  # noqa: ARG004
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:  # noqa: ARG004
        return grads[0], None


@dataclass(slots=True)
class _Made:
    """A call of the whole model that records gradients."""

    args: Any
    kwargs: Any
    outputs: list[Tensor] = field(default_factory=list)


class Engine:
    """Attaches to a model; turns losses, one a record, into `RecordGrads`. `detach()` gives the model back as it was.

    `measured` lets a short measurement decide between two ways to the same result where the shapes leave a choice; their last
    bits differ, so that two runs may. `coins` decide which records a proof compares, and on which later batches: the run's own secret
    randomness, or that of its seed; by default the operating system's.
    """

    def __init__(
        self, model: nn.Module, rules: Rules = RULES, *, measured: bool = False, coins: Coins | None = None
    ) -> None:
        compat.check(model)
        # glibc returns large blocks to the system and fetches them anew, every step, until a process has freed one of this
        # size; then it keeps them. The page faults cost up to a fifth of a step.
        torch.empty(2**25 - 2**16, dtype=torch.uint8)
        self.model = model
        self._measured = measured
        if measured:
            rules = {k: ConvRule(cost.by_windows) if type(r) is ConvRule else r for k, r in rules.items()}
        self.parameters: dict[str, nn.Parameter] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise UnsupportedModelError("the model has no trainable parameter: requires_grad is off everywhere")
        check_hooks(self.parameters.items())
        units = Units(model, self.parameters, rules)
        self._expanded = units.expanded
        self.layers = trainable_layers(model)
        index = {path: i for i, path in enumerate(self.layers)}
        self._layer_of = {name: index[layer_path(name)] for name in self.parameters}
        self._frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
        self._constant = compat.constant_in_eval(model)
        self._records = 0
        self._anchor = torch.zeros((), requires_grad=True)
        self._collecting: Found | None = None
        self._reduce: Reduce | None = None
        self._ready: Callable[[nn.Module], object] | None = None
        self.coins: Coins = OsSeeded().stream("proof", 0) if coins is None else coins
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._stand_ins: dict[int, Tensor] = {}
        self._proven = False
        self._proof: proof.Proof | None = proof.Proof(model, self._as_it_is, self.coins)
        self._watch = Watch(model)
        self._independent: set[str] = set()  # what passes may write, for it does not depend on the records
        self._due = False  # whether the next batch is to be looked at in full
        self._left = self._gap()
        self._calls: deque[_Made] = deque(maxlen=_CALLS)
        self._written: set[str] = set()
        self._moved: set[str] = set()  # what was changed between steps; each is a reason to look again once
        self._batches, self._turn = 0, -1
        self._within = False
        # Outputs that nothing changes in place (as seen on the first batch) can be leaves of the graph, which is cheaper.
        self._left_alone: frozenset[str] = frozenset()
        self._forwards = Forwards(model)
        self._watching = self._watched()
        self._indices: SharedIndices | None = None
        try:
            self._take_over(units)
        except BaseException:
            self.detach()
            raise

    def _take_over(self, units: Units) -> None:
        """Run the units in place of the model."""
        if any(isinstance(taped.rule, EmbeddingRule) for taped in units.taped):
            self._indices = SharedIndices(self.model)
        for taped in units.taped:
            run = functools.partial(self._run_taped, taped)
            if self._indices is not None and isinstance(taped.rule, EmbeddingRule):
                run = functools.partial(self._run_embedding, self._indices, taped)
            self._forwards.replace(taped.module, run)
        for attending in units.attending:
            self._forwards.replace(attending.module, functools.partial(self._run_attention, attending))
        for expanded in units.expanded:
            self._forwards.replace(expanded.module, functools.partial(self._run_expanded, expanded))

    def _gap(self) -> int:
        """How many batches are left until one is looked at again."""
        return 1 + int(math.log1p(-float(self.coins.uniform(1))) / math.log1p(-_ASKED_AGAIN))

    def _watched(self) -> list[Any]:
        """Hooks around the calls of the whole model. Functions, which a copy of the model keeps as they are, and not methods."""
        model = self.model

        def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
            # calls of the model within a call, record by record, are none of the user's
            if module is model and not self._within and torch.is_grad_enabled():
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
        if self._watch.reformed() and self._proven:
            compat.check(self.model)
            self._due = True
        changed = self._watch.state()
        if self._calls:  # an earlier call, of this step or for a purpose of the user's own
            self._written |= changed
        elif self._proven:
            # between two steps: a buffer or an attribute may switch on what was not there on the first batch
            new = (changed | self._watch.attributes()) - self._independent - self._moved
            if new:
                self._moved |= new
                self._due = True
        self._watch.mark()
        if self._proof is None and self._proven and not self._split and (self._due or self._left <= 0):
            self._proof = proof.Proof(self.model, self._as_it_is, self.coins, full=self._due)
        self._calls.append(_Made(args, kwargs))
        if self._proof is not None:
            self._proof.begin(args, kwargs)

    def _end(self, output: Any) -> None:
        """The whole model was called."""
        if self._within:
            if self._proof is not None:
                self._proof.check_buffers()
            return
        if self._proof is not None:
            self._proof.end(output)
        if self._calls:
            self._calls[-1].outputs = isolation.tensors(output)

    def _stand_in(self, parameter: nn.Parameter) -> Tensor:
        """What takes a parameter's place until the engine is proven: hooks on the parameter's own gradient do not run."""
        if not parameter.requires_grad:
            return parameter
        found = self._stand_ins.get(id(parameter))
        if found is None:
            found = self._stand_ins[id(parameter)] = parameter.detach().requires_grad_()
        return found

    def _as_it_is(self) -> nn.Module | None:
        with self._forwards.lifted():
            return copies.of_model(self.model, sharing=self.model.parameters())

    def detach(self) -> None:
        """Take the engine off the model."""
        self._forwards.restore()
        self._stop_watching()
        if self._indices is not None:
            self._indices.stop()
        self._expanded = []

    @property
    def proven(self) -> bool:
        """Whether the engine has proven itself on this model."""
        return self._proven

    @property
    def asking(self) -> bool:
        """Whether the forward pass that was made last is one that is looked at."""
        return self._proof is not None

    @property
    def _split(self) -> bool:
        """Whether parameters are split over ranks, which pass through the model in step: none may call it alone."""
        return self._reduce is not None

    def expanded(self) -> list[nn.Module]:
        """The modules that run with a copy of their parameters for every record."""
        return [unit.module for unit in self._expanded]

    def placed(self, reduce: Reduce, ready: Callable[[nn.Module], object]) -> None:
        """Take up the parameters that have taken the place of the model's own, split over ranks. Their sums go through `reduce`, and
        `ready` is called with a layer before its backward pass, which needs its parameters whole.
        """
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self._frozen = {n: p for n, p in self.model.named_parameters() if not p.requires_grad}
        self._reduce, self._ready = reduce, ready
        self._names = {id(p): name for name, p in self.model.named_parameters()}
        self._watch.by_versions = False

    def collect(self, losses: Tensor, views: int | Persons = 1) -> RecordGrads:
        """One backward pass of `losses` [B]; every record's gradient of every trainable parameter.

        With `views`, so many rows in a row belong to one record, and its gradient is the sum of theirs
        (`assay.gradients.uses.views`). With `Persons` each has a number of rows of their own.
        """
        check_losses(losses)
        if isinstance(views, Persons) and views.rows != len(losses):
            raise ConfigError(
                "losses", f"{len(losses)} values", f"one for each of the {views.rows} rows of the persons"
            )
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise UnsupportedModelError(
                    f"parameter {name} was frozen when the engine was attached and is not now: its gradient would carry the "
                    "records without noise. Unfreeze before attaching, or attach anew"
                )
        if any(module.training for module in self._constant):
            compat.check(self.model)
        check_hooks(self.parameters.items())
        found: Found = []
        proof_now, proving = self._proof, not self._proven
        self._records = losses.shape[0]
        low = torch.float64
        left_alone: frozenset[str] = frozenset()
        try:
            # what a loss reaches may change from one batch to the next: a layer that was added, a temperature
            graph = proof.enclosed(losses, (*self._stand_ins.values(), self._anchor), self._names)
            calls = [call for call in self._calls if any(map(graph.holds, call.outputs))]
            written = self._written | self._watch_written("forward")
            if graph.normalises:
                written.add("statistics of the batch")
            if proof_now is not None:
                compat.check(self.model)
                proof_now.before(losses, graph)
                left_alone, low = proof_now.left_alone(), proof_now.lowest_precision()
            self._check_losses(losses, calls, graph, proving)
            self._collecting = found
            expected = proof.backward(losses, self.parameters, self._stand_ins)
            self._collecting = None
            if found and not calls:
                raise UnsupportedModelError(isolation.OUT_OF_SIGHT)
            for what in sorted(self._watch_written("backward") - written - self._independent):
                raise UnsupportedModelError(isolation.writes(what, "backward"))
            if proof_now is not None:
                proof_now.after()
            self._check_independent(written | self._watch.attributes(), calls, proof_now)
        finally:
            self.forget()
        uses = gathered(found) if len(found) > 1 else found
        if isinstance(views, Persons):
            uses = [(names, views.folded(use)) for names, use in uses]
        elif views > 1:
            uses = [(names, folded(use, views)) for names, use in uses]
        if self._measured:
            cost.choose_all(uses)
        records = len(views) if isinstance(views, Persons) else self._records // views
        grads = RecordGrads(records, uses, self.parameters, self._layer_of, len(self.layers), reduce=self._reduce)
        if not proving:
            self._proof = None
            self._left = self._left - 1 if proof_now is None else self._gap()
            if proof_now is not None and proof_now.full and self._records > 1:
                self._due = False
        elif proof_now is not None and proof_now.compare(grads, expected, low) and len(losses) > 1:
            self._proof, self._proven, self._left_alone = None, True, left_alone
            if self._indices is not None:
                self._indices.settled()
        return grads

    def _watch_written(self, during: str) -> set[str]:
        """What was written since the model was called; nothing where it was not, for then nothing was marked."""
        return self._watch.written(during) if self._calls else set()

    def _check_losses(self, losses: Tensor, calls: list[_Made], graph: proof.Graph, proving: bool) -> None:
        """Whether the losses mix what the model put out: each of the first batches, then a random few, and fully on the very first."""
        if self._split:  # a backward pass of one rank alone would wait for the others' parameters
            return
        self._batches += 1
        if self._batches % _LOSSES_EVERY == self._turn or self._batches <= _LOSSES_FIRST:
            outputs = [t for call in calls for t in call.outputs]
            most = (len(losses) - 1).bit_length() if proving else 1
            proof.check_losses(losses, outputs, graph, self.coins, most)
        if self._batches % _LOSSES_EVERY == 0:
            self._turn = int(self.coins.uniform(1) * _LOSSES_EVERY)

    def _check_independent(self, written: set[str], calls: list[_Made], proof_now: proof.Proof | None) -> None:
        """What the passes of a batch wrote for the first time does not depend on its records: a full proof has asked for that."""
        new = written - self._independent
        if not new:
            return
        if self._split:
            for what in sorted(new):
                if not what.startswith("attribute"):  # the ranks' own bookkeeping
                    raise UnsupportedModelError(isolation.writes(what))
        elif proof_now is None or not proof_now.full:
            for call in calls:
                isolation.check(self._repeatable(call, new), self.model, self._records, self.coins)
            self._due = True  # what the backward pass has to do with it shows on the next batch
        if self._records > 1:
            self._independent |= new

    def _repeatable(self, made: _Made, written: set[str]) -> isolation.Call:
        """A call that was made, with the model as it is now."""
        return isolation.Call(
            args=made.args,
            kwargs=made.kwargs,
            random_state=isolation.random_state(),
            buffers=isolation.copied(self.model.named_buffers()),
            output=None,
            before=self._as_it_is(),
            values=[],
            drew=True,
            wrote=frozenset(name.removeprefix("buffer ") for name in written),
        )

    def _stop_watching(self) -> None:
        for hook in self._watching:
            hook.remove()

    def forget(self) -> None:
        """Let go of the calls of the model so far. A batch without records is not collected: its calls say nothing about later ones."""
        self._collecting = None
        self._stand_ins, self._written = {}, set()
        self._calls.clear()
        if self._proof is not None:
            self._proof.forget()

    def empty(self) -> RecordGrads:
        """The gradients of a batch without records."""
        return RecordGrads(0, [], self.parameters, self._layer_of, len(self.layers))

    def _run_taped(self, unit: Unit[TapeRule], *args: Any, **kwargs: Any) -> Tensor:
        module, rule = unit.module, unit.rule
        (x,) = args if len(args) == 1 else (*args, *kwargs.values())
        if not self._proven:
            standing = {n: None if p is None else self._stand_in(p) for n, p in module._parameters.items()}
            out = rule.forward(module, standing, x)
        elif x.requires_grad:
            out = rule.forward(module, {n: None if p is None else p.detach() for n, p in module._parameters.items()}, x)
        else:  # nothing before this layer is trained
            # what torch.no_grad() does, without its cost, which is that of a small layer
            torch._C._set_grad_enabled(False)
            try:
                out = rule.forward(module, module._parameters, x)
            finally:
                torch._C._set_grad_enabled(True)
        version, shape = x._version, out.shape
        inputs = [x, x.detach() if x.requires_grad else x]

        def record(g: Tensor) -> None:
            if self._ready is not None:
                self._ready(module)
            collecting = self._collecting
            if collecting is None:
                if torch.is_grad_enabled():
                    raise UnsupportedModelError(
                        f"a gradient through {unit.path} that is itself differentiated (create_graph=True, a gradient penalty) is not supported: "
                        "what it contributes to a record's gradient would be left out"
                    )
                return
            if not inputs:
                raise UnsupportedModelError(
                    f"a second backward pass reached {unit.path}: its losses need a forward pass of their own"
                )
            given, seen = inputs
            inputs.clear()  # this function lives as long as the losses; what it keeps need not
            if given._version != version:
                raise UnsupportedModelError(
                    f"the input of {unit.path} was changed in place after {unit.path} had used it; make that operation "
                    "not in-place"
                )
            if on_base:
                g = g.reshape(shape)
            if not shape or shape[0] != self._records:
                raise UnsupportedModelError(proof.not_first(unit.path, g, self._records))
            names, use = rule.uses(module, unit.wanted, full(seen), full(g))
            collecting.append((tuple(map(unit.names.__getitem__, names)), use))

        # An in-place activation on a view rewrites the history of what it is a view of: record there, not on the view.
        root = out._base if out._is_view() and out._base is not None and out._base.numel() == out.numel() else out
        on_base = root is not out
        if not root.requires_grad:
            # a leaf keeps its gradient until the step ends, which only a small output is worth
            if not on_base and unit.path in self._left_alone and out.numel() <= _SMALL_OUTPUT:
                out.requires_grad_()
                # What `register_hook` does, less the handle to take the hook off again, which costs more than the hook. Later
                # hooks find their place by the number of their handle, which is never below 0.
                out._backward_hooks = OrderedDict({-1: record})
                if self._proof is not None:
                    self._proof.saw(unit.path, out)
                return out
            root = _Anchor.apply(root, self._anchor)  # type: ignore[no-untyped-call]
            out = root.view(shape)
        if self._proof is not None:
            self._proof.saw(unit.path, out)
        root.register_hook(record)
        return out

    def _run_embedding(self, shared: SharedIndices, unit: Unit[TapeRule], *args: Any, **kwargs: Any) -> Tensor:
        (index,) = (*args, *kwargs.values())
        return self._run_taped(unit, shared.by_record(unit.path, index, settle=not self._proven))

    def _run_attention(self, unit: Unit[TapeRule], *args: Any, **kwargs: Any) -> Any:
        module = unit.module
        assert isinstance(module, nn.MultiheadAttention)

        def project(x: Tensor, start: int, stop: int) -> Tensor:
            rows = attention.Projection(start, stop)
            if not unit.wanted:
                return rows.forward(module, module._parameters, x)
            return self._run_taped(replace(unit, rule=rows), x)

        return attention.attend(module, project, *args, **kwargs)

    def _run_expanded(self, unit: Unit[ExpandRule], *args: Any, **kwargs: Any) -> Any:
        rule, module = unit.rule, unit.module
        records = rule.records(module, args, kwargs)
        own = dict(module.named_parameters()) if isinstance(rule, PerRecordCall) else dict(module._parameters)
        params: dict[str, Tensor | None] = {}
        for name, parameter in own.items():
            if parameter is None:
                params[name] = None
                continue
            source = parameter.detach() if self._proven else self._stand_in(parameter)
            copies = source.expand(records, *parameter.shape)
            if name in unit.names:
                if not copies.requires_grad:
                    copies.requires_grad_()
                copies.register_hook(self._keep(unit.names[name]))
                if self._proof is not None:
                    self._proof.saw(unit.path, copies)
            params[name] = copies
        self._within = True
        try:
            return rule.forward(module, params, args, kwargs, records)
        finally:
            self._within = False

    def _keep(self, name: str) -> Callable[[Tensor], None]:
        def record(g: Tensor) -> None:
            if self._collecting is not None:
                if g.dim() == 0 or g.shape[0] != self._records:
                    raise UnsupportedModelError(proof.not_first(name, g, self._records))
                self._collecting.append(((name,), Apart([Dense(full(g))])))

        return record


def check_losses(losses: Tensor) -> None:
    """Refuse what is not one value a record with a gradient; looks at nothing else."""
    if losses.dim() != 1:
        raise ConfigError(
            "loss",
            f"tensor of shape {tuple(losses.shape)}",
            "one value per record, shape [batch]: use reduction='none' (and average over everything but the first dimension)",
        )
    if not losses.requires_grad:
        raise ConfigError(
            "loss",
            "a tensor without gradient",
            "a loss computed from the model's output with gradients enabled",
        )
