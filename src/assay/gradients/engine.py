"""The engine: one forward, one backward, every record's gradient norm, and one clipped sum.

Each module that owns trainable parameters runs with those parameters detached, so that the one backward pass computes
input gradients only. The module's input and the gradient of its output go to the rule of its layer type, which knows
the norm of each record's gradient and their weighted sum (`assay.gradients.uses.base`). There is no second backward
pass, and no weight gradient is computed twice. Per-record gradients are materialised only where that is cheapest.

Nothing is kept between steps: what a forward pass records hangs on its autograd graph and is freed with it. A backward
pass that is not ours (a generator's loss through a private discriminator) collects nothing.

On its first batch the engine proves itself on the user's model (`assay.gradients.proof.first_batch`): the per-record
gradients must add up to autograd's own gradient, one record's loss must not depend on another record's activations, and
no pass may write into the model what it has seen. It checks a part of this on random later batches, and at once after a
change (`assay.gradients.proof.inspector`).
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay._util.process import keep_freed_memory, return_freed_memory
from assay.errors import ConfigError, UnsupportedModelError
from assay.gradients import products
from assay.gradients.arithmetic import full, full_products
from assay.gradients.chosen import by_record, owners
from assay.gradients.inputs import Layout, possible
from assay.gradients.pooling import max_pool
from assay.gradients.proof import first_batch as proof
from assay.gradients.proof import graph as graphs
from assay.gradients.proof.calls import Coins
from assay.gradients.proof.inspector import Inspector, Look, check_hooks
from assay.gradients.proof.losses import check_one_each
from assay.gradients.proof.statistics import Statistics
from assay.gradients.record_grads import RecordGrads, Reduce, choose_all, quickest_way
from assay.gradients.recorded import Anchor, Recorded, takes_rows
from assay.gradients.rules import attention, bags, recurrent
from assay.gradients.rules.fallback import PerRecordCall
from assay.gradients.rules.layers import (
    RULES,
    ConvRule,
    ExpandRule,
    LinearRule,
    Rules,
    TapeRule,
    TransposedLinearRule,
    foreign,
)
from assay.gradients.rules.shared import Recorder, Shared, UnfitError, Uses
from assay.gradients.tracing import Tracing, check_rows, real
from assay.gradients.units import Forwards, Unit, Units
from assay.gradients.uses.base import Apart, Dense, Found, LayerUse
from assay.gradients.uses.persons import Persons
from assay.gradients.uses.repeated import gathered
from assay.gradients.uses.views import folded
from assay.models import compat
from assay.models.compat import layer_path, trainable_layers
from assay.randomness.streams import OsSeeded

_AS_IT_IS = contextlib.nullcontext()


@dataclass(slots=True)
class _Recorded:
    """A call of a module that is recorded."""

    unit: Unit[TapeRule]
    inputs: list[Tensor]
    """The input as it was given, and without a history; empty once they were used."""
    version: int
    """That of the input."""
    shape: torch.Size
    """That of the output."""
    on_base: bool
    place: Any = None
    """Of the output in the graph, if it may be asked."""
    rows: Tensor | None = None
    """Whose each row is, if the module was given some records only."""


class Engine:
    """Attaches to a model and turns the losses of a batch into `RecordGrads`. `detach()` restores the model.

    Args:
        model: The model.
        rules: How each layer type gives per-record gradients.
        measured: Let a short measurement choose between two ways to the same result where the shapes leave a choice.
            Their last bits differ, so two runs may differ as well.
        coins: Which records a proof compares, and on which later batches: the run's secret randomness, or that of its
            seed; by default the operating system's.

    Raises:
        UnsupportedModelError: The model mixes records, trains nothing, or has hooks that would see raw gradients.
    """

    def __init__(
        self, model: nn.Module, rules: Rules = RULES, *, measured: bool = False, coins: Coins | None = None
    ) -> None:
        for name, p in model.named_parameters():
            if nn.parameter.is_lazy(p):
                raise UnsupportedModelError(
                    f"parameter {name} is not there yet (a lazy layer): call the model once on made-up records, such "
                    "as model(torch.zeros(2, 10)), before it is trained"
                )
        compat.check(model)
        keep_freed_memory()
        self.model = model
        self._measured = measured
        self._linear: Callable[..., Tensor] = products.linear if measured else F.linear
        if measured:
            choosing: dict[type, TapeRule] = {
                ConvRule: ConvRule(quickest_way),
                LinearRule: LinearRule(products.linear),
                TransposedLinearRule: TransposedLinearRule(products.linear),
            }
            rules = {kind: choosing.get(type(rule), rule) for kind, rule in {**foreign(), **rules}.items()}
        self.parameters: dict[str, nn.Parameter] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise UnsupportedModelError("the model has no trainable parameter: requires_grad is off everywhere")
        for name, parameter in self.parameters.items():
            if parameter.is_complex():
                raise UnsupportedModelError(
                    f"parameter {name} is complex: norms and noise are those of real numbers. Train its real and "
                    "imaginary parts as two parameters, and put them together in forward"
                )
        check_hooks(self.parameters.items())
        units = Units(model, self.parameters, rules)
        self._expanded = [*units.expanded, *(traced.unit for traced in units.traced)]
        self.layers = trainable_layers(model)
        index = {path: i for i, path in enumerate(self.layers)}
        self._layer_of = {name: index[layer_path(name)] for name in self.parameters}
        self._frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
        self._constant = compat.constant_in_eval(model)
        self._statistics = Statistics(self._constant)
        self._records = self._expected = 0
        self._calls: list[_Recorded] = []  # whose rows may be those of some records
        self._anchor = torch.zeros((), requires_grad=True)
        self._collecting: Found | None = None
        self._reduce: Reduce | None = None
        self._ready: Callable[[nn.Module], object] | None = None
        self.coins: Coins = OsSeeded().stream("proof", 0) if coins is None else coins
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._stand_ins: dict[int, Tensor] = {}
        self._copies: list[Tensor] = []  # of parameters, for each record of this batch
        # Outputs that nothing changes in place (the first batch shows it) can be leaves of the graph, which is cheaper.
        self._left_alone: frozenset[str] = frozenset()
        self._forwards = Forwards(model)
        self._inspector = Inspector(model, self._forwards.copy, self.coins)
        self._layouts: Mapping[str, Layout] = {}
        self._tracing: Tracing | None = Tracing(model, units, self._recorder(), self._forwards, self._run_expanded)
        try:
            self._take_over(units)
        except BaseException:
            self.detach()
            raise

    def _take_over(self, units: Units) -> None:
        """Replace the forward of every unit."""
        assert self._tracing is not None
        for taped in units.taped:
            bags_of = isinstance(taped.module, nn.EmbeddingBag)
            self._forwards.replace(
                taped.module, functools.partial(self._run_bags if bags_of else self._run_taped, taped)
            )
        for traced in units.traced:
            self._forwards.replace(traced.unit.module, functools.partial(self._tracing.run, traced))
        for attending in units.attending:
            self._forwards.replace(attending.module, functools.partial(self._run_attention, attending))
        for recurring in units.recurring:
            self._forwards.replace(recurring.module, functools.partial(self._run_recurrent, recurring))
        for expanded in units.expanded:
            self._forwards.replace(expanded.module, functools.partial(self._run_expanded, expanded))
        if compat.compiled(self.model):
            return
        for module in self.model.modules():
            if type(module) is nn.MaxPool2d and "forward" not in vars(module):
                self._forwards.replace(module, functools.partial(max_pool, module))
        if not self._forwards.has(self.model):
            self._forwards.replace(self.model, self._run_whole)

    def _run_whole(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model; as on the first batch, if it uses parameters in a way that no batch has shown.

        Batches differ: without padding there is no mask, and what was added to it is then used by itself.
        """
        try:
            return self.model.forward(*args, **kwargs)
        except UnfitError as error:
            if not (error.final and self.proven and self._tracing) or self._inspector.split:
                raise
        self._stand_ins, self._copies = {}, []
        self._inspector.start_over(args, kwargs)
        self._tracing.start_over(args, kwargs)
        return self.model.forward(*args, **kwargs)

    def _recorder(self) -> Recorder:
        """What traced modules need of the engine."""
        names = {name: name for name in self.parameters}

        def saw(path: str, copies: Tensor) -> None:
            self._copies.append(copies)
            if self._inspector.proof is not None:
                self._inspector.proof.saw(path, copies, second=False)

        def keep(path: str, uses: Uses, rows: int) -> None:
            if self._collecting is not None and uses:
                self._add(path, [n for n, _ in uses], Apart([use for _, use in uses]), rows)

        def tape(
            path: str, x: Tensor, run: Callable[[Tensor], Tensor], found: Callable[[Tensor, Tensor], Uses]
        ) -> Tensor:
            return self._run_taped(Unit(path, self.model, Recorded(run, found), names, frozenset()), x, rows=True)

        begun = self._inspector.prove_again
        return Recorder(
            proven=lambda: self.proven,
            begun=begun,
            stand_in=self._stand_in,
            saw=saw,
            keep=keep,
            linear=self._linear,
            tape=tape,
        )

    def _stand_in(self, parameter: nn.Parameter) -> Tensor:
        """What replaces a parameter until the engine is proven: hooks on the parameter's gradient then do not run."""
        if not parameter.requires_grad:
            return parameter
        found = self._stand_ins.get(id(parameter))
        if found is None:
            found = self._stand_ins[id(parameter)] = parameter.detach().requires_grad_()
        return found

    def detach(self) -> None:
        """Take the engine off the model."""
        self._forwards.restore()
        self._inspector.stop()
        if self._tracing is not None:
            self._tracing.stop()
        self._expanded = []

    @property
    def proven(self) -> bool:
        """Whether the engine has proven itself on this model."""
        return self._inspector.proven

    @property
    def proving(self) -> bool:
        """Whether the latest forward pass is one that is checked."""
        return self._inspector.proof is not None

    def copied(self) -> nn.Module | None:
        """The model as it is, without the engine and sharing its parameters; None if it cannot be copied."""
        return self._forwards.copy()

    def expanded(self) -> list[nn.Module]:
        """The modules that run with a copy of their parameters for every record."""
        return [unit.module for unit in self._expanded]

    def once_each(self) -> list[nn.Module]:
        """The modules that run once for each record; complete after the first batch."""
        return [] if self._tracing is None else list(self._tracing.once_each())

    def traced(self) -> list[nn.Module]:
        """The modules whose own code uses parameters, which no rule of a layer covers."""
        return [] if self._tracing is None else [m for one in self._tracing.traced for m in one.held()]

    def use_shards(self, reduce: Reduce, ready: Callable[[nn.Module], object]) -> None:
        """Use the parameters that replaced the model's own and are split over ranks.

        Args:
            reduce: What becomes of each parameter's sum.
            ready: Called with a layer before its backward pass, which needs the layer's parameters whole.
        """
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self._frozen = {n: p for n, p in self.model.named_parameters() if not p.requires_grad}
        self._reduce, self._ready = reduce, ready
        self._names = {id(p): name for name, p in self.model.named_parameters()}
        self._inspector.split_over_ranks()
        if self._tracing is not None:
            self._tracing.whole = True

    def collect(self, losses: Tensor, views: int | Persons = 1) -> RecordGrads:
        """Every record's gradient of every trainable parameter, by one backward pass.

        Args:
            losses: One loss per record, [B].
            views: How many consecutive rows belong to one record. Its gradient is the sum of theirs
                (`assay.gradients.uses.views`). `Persons` says it for each person.

        Raises:
            ConfigError: The losses are not one value per record, with a gradient.
            UnsupportedModelError: The model or the losses mix records, or a pass writes into the model.
        """
        check_one_each(losses)
        if type(losses) is Shared:
            raise UnsupportedModelError(proof.NO_RECORDS)
        if isinstance(views, Persons) and views.rows != len(losses):
            raise ConfigError(
                "losses", f"{len(losses)} values", f"one for each of the {views.rows} rows of the persons"
            )
        self._check_attached()
        if losses.shape[0] == 0:
            self.forget()
            return self.empty()
        found: Found = []
        self._records = losses.shape[0]
        try:
            # what a loss reaches may change from one batch to the next: a layer that was added, a temperature
            own = (*self._stand_ins.values(), *self._copies, self._anchor)
            graph = graphs.enclosed(losses, own, self._names)
            if self._inspector.proof is not None:
                self._inspector.proof.known = self._layouts if self.proven else None
            look = self._inspector.before(losses, graph)
            with self._comparably():
                if look.proof is not None:
                    self._layouts = {**(self._layouts if self.proven else {}), **look.proof.layouts}
                    if not self.proven and not self._inspector.split:
                        look.proof.weigh(losses, views, self.parameters, self._stand_ins)
                    return_freed_memory()  # or the peak of a step would come on top of the proof's
                self._find_owners(losses, graph)
                self._collecting = found
                expected = graphs.backward(losses, self.parameters, self._stand_ins, graph.outside)
                self._collecting = None
            self._inspector.after(look, reached=bool(found))
        finally:
            self.forget()
        uses = gathered(found) if len(found) > 1 else found
        if isinstance(views, Persons):
            uses = [(names, views.folded(use)) for names, use in uses]
        elif views > 1:
            uses = [(names, folded(use, views)) for names, use in uses]
        if self._measured:
            choose_all(uses)
        records = len(views) if isinstance(views, Persons) else self._records // views
        grads = RecordGrads(records, uses, self.parameters, self._layer_of, len(self.layers), reduce=self._reduce)
        self._conclude(look, grads, expected)
        return grads

    def _conclude(self, look: Look, grads: RecordGrads, expected: Mapping[str, Tensor]) -> None:
        """End the proof; what it has shown to be superfluous is left out from here on."""
        with self._comparably():
            proven = self._inspector.conclude(look, grads, expected)
        if proven:
            # a leaf has one row per record, as inputs have
            self._left_alone = frozenset(p for p in look.left_alone if self._layouts.get(p) is Layout.FIRST)
            if self._tracing is not None and not self._tracing.settle():
                self._tracing.stop()
                self._tracing = None
        if look.proof is not None:
            return_freed_memory()

    def _comparably(self) -> contextlib.AbstractContextManager[None]:
        """A context for what the first batch compares, which must not differ by rounded factors."""
        return _AS_IT_IS if self.proven else full_products()

    def _check_attached(self) -> None:
        """Refuse a model that was changed since the engine was attached."""
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise UnsupportedModelError(
                    f"parameter {name} was frozen when the engine was attached and is not now: its gradient would "
                    "carry the records without noise. Unfreeze before attaching, or attach again"
                )
        if any(module.training for module in self._constant):
            compat.check(self.model)
        self._statistics.check()
        check_hooks(self.parameters.items())

    def expect(self, records: int) -> None:
        """Say how many records the next batch has, for models that take them in the second dimension.

        Args:
            records: How many, views counted.
        """
        self._expected = records
        if self._tracing is not None:
            self._tracing.inputs.expected = records

    def hand_out(self, batch: Any) -> None:
        """Say what the next losses are to be made of."""
        self._inspector.hand_out(batch)

    def forget(self) -> None:
        """Forget the calls of the model so far. A batch without records is not collected and shows nothing."""
        self._collecting = None
        self._stand_ins, self._copies, self._calls = {}, [], []
        self._inspector.forget()

    def empty(self) -> RecordGrads:
        """The gradients of a batch without records."""
        return RecordGrads(0, [], self.parameters, self._layer_of, len(self.layers))

    def _run_taped(self, unit: Unit[TapeRule], *args: Any, rows: bool = False, **kwargs: Any) -> Tensor:
        (x,) = args if len(args) == 1 else (*args, *kwargs.values())
        if self._tracing is not None and not rows:
            if self._tracing.is_called_with_others(unit):
                return unit.rule.forward(unit.module, unit.module._parameters, x)
            if self._tracing.is_constant(unit, x):
                out: Tensor = self._tracing.on_constant(unit, x)
                return out
        out = self._forward(unit, x)
        shape = out.shape
        # An in-place activation on a view rewrites the history of its base: record there, not on the view.
        base = out._base
        known = base is not None and base.numel() == out.numel() and base.requires_grad == out.requires_grad
        root = base if base is not None and known else out
        on_base = root is not out
        call = _Recorded(unit, [x, x.detach() if x.requires_grad else x], x._version, shape, on_base)
        record = functools.partial(self._record, call)
        if not root.requires_grad:
            # a leaf keeps its gradient until the step ends, which only a small output is worth
            if not on_base and unit.path in self._left_alone and out.numel() <= proof.SMALL_OUTPUT:
                out.requires_grad_()
                # `register_hook` without the handle to remove the hook, which costs more than the hook. Later hooks
                # find their place by the number of their handle, which is never below 0.
                out._backward_hooks = OrderedDict({-1: record})
                self._saw(call, out)
                return out
            root = Anchor.apply(root, self._anchor)  # type: ignore[no-untyped-call]
            out = root.view(shape)
        self._saw(call, out)
        root.register_hook(record)
        return out

    def _saw(self, call: _Recorded, out: Tensor) -> None:
        """Keep what the proof needs of an output, and its place in the graph if its rows may be of some records."""
        proving = self._inspector.proof
        if proving is not None:
            proving.saw(call.unit.path, out)
        layout = self._layouts.get(call.unit.path, Layout.FIRST)
        odd = layout is Layout.FIRST and self._expected and out.dim() > 0 and out.shape[0] != self._expected
        if proving is not None or odd or layout is Layout.CHOSEN:
            call.place = proof.place_of(out)
            self._calls.append(call)

    def _find_owners(self, losses: Tensor, graph: graphs.Graph) -> None:
        """Find whose rows the layers were given that see some records only.

        Raises:
            UnsupportedModelError: A row belongs to several records.
        """
        records = len(losses)
        asked = [
            call
            for call in self._calls
            if takes_rows(call.unit.rule)
            and not self._inspector.split  # where each rank would wait for passes of the others
            and (self._layouts.get(call.unit.path) is Layout.CHOSEN or not possible(tuple(call.shape), records))
            and call.shape
            and graph.holds(call.place)
        ]
        for call, rows in zip(asked, owners(losses, [call.place for call in asked]) if asked else (), strict=True):
            if rows is None:
                raise UnsupportedModelError(proof.not_first(call.unit.path, call.shape, records))
            call.rows = rows
            self._layouts = {**self._layouts, call.unit.path: Layout.CHOSEN}
        self._calls = []

    def _forward(self, unit: Unit[TapeRule], x: Tensor) -> Tensor:
        """The output of a module, without a way for its parameters to get gradients."""
        module, rule = unit.module, unit.rule
        if not self._inspector.proven:
            standing = {n: None if p is None else self._stand_in(real(p)) for n, p in module._parameters.items()}
            return rule.forward(module, standing, x)
        if x.requires_grad:
            detached = {n: None if p is None else real(p).detach() for n, p in module._parameters.items()}
            return rule.forward(module, detached, x)
        # Nothing before this layer is trained. torch.no_grad() does the same, but costs as much as a small layer.
        torch._C._set_grad_enabled(False)
        try:
            return rule.forward(module, module._parameters, x)
        finally:
            torch._C._set_grad_enabled(True)

    def _record(self, call: _Recorded, g: Tensor) -> None:
        """Hand a module's input and the gradient of its output to its rule, during the backward pass."""
        unit, inputs, shape = call.unit, call.inputs, call.shape
        if self._ready is not None:
            self._ready(unit.module)
        collecting = self._collecting
        if collecting is None:
            if torch.is_grad_enabled():
                raise UnsupportedModelError(
                    f"a gradient through {unit.path} that is itself differentiated (create_graph=True, a gradient "
                    "penalty) is not supported: what it contributes to a record's gradient would be left out"
                )
            return
        if not inputs:
            raise UnsupportedModelError(
                f"a second backward pass reached {unit.path}: its losses need a forward pass of their own"
            )
        given, seen = inputs
        inputs.clear()  # the hook lives as long as the losses; the input need not
        if given._version != call.version:
            raise UnsupportedModelError(
                f"the input of {unit.path} was changed in place after {unit.path} had used it; make that operation "
                "not in-place"
            )
        if call.on_base:
            g = g.reshape(shape)
        if call.rows is not None:
            persons, (seen, g) = by_record(call.rows, self._records, seen, g)
            if len(g):
                names, use = unit.rule.uses(unit.module, unit.wanted, full(seen), full(g))
                self._add(unit.path, list(map(unit.names.__getitem__, names)), persons.folded(use), self._records)
            return
        layout = self._layouts.get(unit.path, Layout.FIRST).within(shape, self._records)
        if layout is not Layout.FIRST and not takes_rows(unit.rule):
            raise UnsupportedModelError(proof.not_first(unit.path, shape, self._records))
        if layout is Layout.SECOND:
            seen, g, shape = seen.transpose(0, 1), g.transpose(0, 1), shape[1:2]
        names, use = unit.rule.uses(unit.module, unit.wanted, full(seen), full(g))
        self._add(unit.path, list(map(unit.names.__getitem__, names)), use, shape[0] if shape else 0)

    def _add(self, path: str, names: Sequence[str], use: LayerUse, rows: int) -> None:
        """Add the use of parameters by this many rows, which may be several for each record."""
        assert self._collecting is not None
        if rows != self._records:
            folds = self._layouts.get(path) is Layout.FOLDED or self._records == 1
            if not folds or not self._records or rows % self._records:
                raise UnsupportedModelError(proof.not_first(path, (rows,), self._records))
            use = folded(use, rows // self._records)
        if len({self._layer_of[name] for name in names}) == 1:
            self._collecting.append((tuple(names), use))
            return
        for name, part in zip(names, use.apart(), strict=True):  # clipped layer by layer, perhaps
            self._collecting.append(((name,), Apart([part])))

    def _run_attention(self, unit: Unit[TapeRule], *args: Any, **kwargs: Any) -> Any:
        module = unit.module
        assert isinstance(module, nn.MultiheadAttention)

        def project(x: Tensor, start: int, stop: int) -> Tensor:
            rows = attention.Projection(start, stop, self._linear)
            if not unit.wanted:
                return rows.forward(module, module._parameters, x)
            return self._run_taped(replace(unit, rule=rows), x)

        return attention.attend(module, project, *args, **kwargs)

    def _run_bags(self, unit: Unit[TapeRule], *args: Any, **kwargs: Any) -> Tensor:
        assert isinstance(unit.module, nn.EmbeddingBag)
        return bags.add_up(unit.module, functools.partial(self._run_taped, unit), *args, **kwargs)

    def _run_recurrent(self, unit: Unit[TapeRule], *args: Any, **kwargs: Any) -> Any:
        if self._tracing is not None:
            args, kwargs = self._tracing.states((args, kwargs))
        check_rows(unit.path, (*args, kwargs))
        if self._tracing is not None:
            self._tracing.is_called_with_others(unit)
        module = unit.module
        assert isinstance(module, nn.RNNBase)
        source = torch.Tensor.detach if self._inspector.proven else self._stand_in
        params = {name: source(real(p)) for name, p in module._parameters.items() if p is not None}

        def record(rule: Any, x: Tensor) -> Tensor:
            if not any(map(rule.owns, unit.wanted)):
                out: Tensor = rule.forward(module, params, x)
                return out
            return self._run_taped(replace(unit, rule=rule), x)

        return recurrent.recur(module, params, record, self._measured, *args, **kwargs)

    def _run_expanded(self, unit: Unit[ExpandRule], *args: Any, **kwargs: Any) -> Any:
        check_rows(unit.path, args)
        if self._tracing is not None and not isinstance(unit.rule, PerRecordCall):
            self._tracing.is_called_with_others(unit)
        rule, module = unit.rule, unit.module
        records = rule.records(module, args, kwargs)
        own = dict(module.named_parameters()) if isinstance(rule, PerRecordCall) else dict(module._parameters)
        params: dict[str, Tensor | None] = {}
        for name, held in own.items():
            if held is None:
                params[name] = None
                continue
            parameter = real(held)
            source = parameter.detach() if self._inspector.proven else self._stand_in(parameter)
            copies = source.expand(records, *parameter.shape)
            if name in unit.names:
                if not copies.requires_grad:
                    copies.requires_grad_()
                copies.register_hook(self._keep(unit.path, unit.names[name]))
                self._copies.append(copies)
                if self._inspector.proof is not None:
                    self._inspector.proof.saw(unit.path, copies, second=False)
            params[name] = copies
        self._inspector.within = self._forwards.suspended = True
        try:
            return rule.forward(module, params, args, kwargs, records)
        finally:
            self._inspector.within = self._forwards.suspended = False

    def _keep(self, path: str, name: str) -> Callable[[Tensor], None]:
        def record(g: Tensor) -> None:
            if self._collecting is not None:
                self._add(path, [name], Apart([Dense(full(g))]), len(g))

        return record
