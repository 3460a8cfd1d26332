"""The engine: one forward, one backward, every record's gradient norm, and one clipped sum.

Each module that owns trainable parameters runs with those parameters detached, so that the one backward pass computes
input gradients only; its input and the gradient of its output are handed to the rule of its layer type, which knows the
norm of each record's gradient and their weighted sum (`assay.grads.uses`). No second backward pass, no weight gradient
computed twice, no [records, parameters] tensor unless it is the smallest thing to keep.

Nothing is kept between steps: what a forward pass records hangs on its autograd graph and is gone with it. A backward
pass that is not ours (a generator's loss through a private discriminator) collects nothing.

On its first batch the engine proves itself on the user's model (`assay.grads.proof`): the sum of the per-record
gradients must equal autograd's own, and one record's loss must not touch another record's activations.
"""

from __future__ import annotations

import functools
import math
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils import _pytree as pytree

from assay.errors import ConfigError, UnsupportedModelError
from assay.grads import attention, cost, proof
from assay.grads.correlation import Basis, Filtered, corner
from assay.grads.fallback import PerRecordCall
from assay.grads.layers import (
    RULES,
    ConvRule,
    EmbeddingRule,
    ExpandRule,
    TapeRule,
    layer_path,
    rule_for,
    trainable_layers,
)
from assay.grads.repeated import gathered
from assay.grads.uses import Apart, Dense, Found, Outer
from assay.grads.views import folded
from assay.models import compat

R = TypeVar("R", TapeRule, ExpandRule)
Rules = Mapping[type[nn.Module], TapeRule | ExpandRule]


_SMALL_OUTPUT = 1 << 16


class _Anchor(torch.autograd.Function):
    """Makes an output part of the autograd graph, in place, so that in-place activations after it stay legal."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, anchor: Tensor) -> Tensor:  # noqa: ARG004
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:  # noqa: ARG004
        return grads[0], None


@dataclass(frozen=True, slots=True)
class _Unit(Generic[R]):
    """A module the engine runs itself: its rule, and the canonical name of each trainable parameter below it."""

    path: str
    module: nn.Module
    rule: R
    names: Mapping[str, str]
    wanted: frozenset[str]


Reduce = Callable[[Tensor], Tensor]
"""What becomes of a parameter's weighted sum as soon as it is there; called for the parameters in their order."""


@dataclass(slots=True)
class RecordGrads:
    """The gradients of one batch, one a record, in the cheapest form at hand. Sensitive; lives for one step."""

    records: int
    uses: Found
    parameters: Mapping[str, nn.Parameter]
    layer_of: Mapping[str, int]
    layers: int
    nonfinite: int = 0
    reduce: Reduce | None = None

    def norms(self, groups: list[int]) -> Tensor:
        """l2 norm of each record's gradient in each clipping group, [B, L].

        Records whose gradient holds NaN or Inf are zeroed from here on, and counted.
        """
        if len(self.uses) == 1 and max(groups) == 0:
            norms = self.uses[0][1].norm()
        else:
            by_group: dict[int, Tensor] = {}
            for names, use in self.uses:
                group, squares = groups[self.layer_of[names[0]]], use.sq_norm()
                by_group[group] = by_group[group] + squares if group in by_group else squares
            first = next(iter(self.parameters.values()))
            zeros = torch.zeros(self.records, dtype=first.dtype, device=first.device)
            norms = torch.stack([by_group.get(group, zeros) for group in range(max(groups) + 1)], 1).sqrt_()
        if not math.isfinite(norms.sum().item()):
            bad = ~torch.isfinite(norms.sum(1))
            self.nonfinite += int(bad.sum())
            self.uses = [(names, Apart([part.without(bad) for part in use.apart()])) for names, use in self.uses]
            norms = norms.masked_fill(bad.unsqueeze(1), 0.0)
        return norms

    def weighted_sum(self, weights: Tensor, groups: list[int]) -> dict[str, Tensor]:
        """Σ_i weights[i, group] · gradient_i for every parameter; call after `norms`, which drops what is not finite."""
        columns = [weights] if weights.shape[1] == 1 else weights.t().contiguous().unsqueeze(2).unbind(0)
        if self.reduce is not None:
            return self._reduced_sum(columns, groups, self.reduce)
        out: dict[str, Tensor] = {}
        for names, use in self.uses:
            out.update(zip(names, use.weighted_sums(columns[groups[self.layer_of[names[0]]]]), strict=True))
        return {n: out[n] if n in out else torch.zeros_like(p) for n, p in self.parameters.items()}

    def _reduced_sum(self, columns: Sequence[Tensor], groups: list[int], reduce: Reduce) -> dict[str, Tensor]:
        """Layer by layer in the parameters' order, so that no more than a layer's sums are there whole."""
        of = {name: (names, use) for names, use in self.uses for name in names}
        made: dict[str, Tensor] = {}
        out: dict[str, Tensor] = {}
        for name, p in self.parameters.items():
            if name in of and name not in made:
                names, use = of[name]
                made.update(zip(names, use.weighted_sums(columns[groups[self.layer_of[name]]]), strict=True))
            total = made.pop(name) if name in made else torch.zeros(p.shape, dtype=p.dtype, device=p.device)
            out[name] = reduce(total)
        return out

    def bases(self) -> dict[str, Basis]:
        """Of the parameters whose weighted sum is in coordinates."""
        parts = [(name, part) for names, use in self.uses for name, part in zip(names, use.apart(), strict=True)]
        return {name: part.basis for name, part in parts if isinstance(part, Filtered)}

    def total(self, weights: Tensor) -> dict[str, Tensor]:
        """Σ of the gradients as they are, in the parameters' shapes; weights are [B, 1]."""
        whole: Found = [
            (n, Apart([p.whole() if isinstance(p, Filtered) else p for p in u.apart()])) for n, u in self.uses
        ]
        sums = replace(self, uses=whole).weighted_sum(weights, [0] * self.layers)
        return {name: corner(value, self.parameters[name].shape) for name, value in sums.items()}

    def per_record(self) -> dict[str, Tensor]:
        """The gradients themselves, [B, *shape] a parameter (or a map that holds it in its leading corner); records with
        NaN or Inf zeroed and counted.
        """
        self.norms([0] * self.layers)
        found = {name: part for names, use in self.uses for name, part in zip(names, use.apart(), strict=True)}
        whole: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            shape = (self.records, *parameter.shape)
            values = found[name].per_record() if name in found else parameter.new_zeros(shape)
            whole[name] = values.view(shape) if values.numel() == math.prod(shape) else values
        return whole


def _choose(uses: Found) -> None:
    """Let the clock decide between ways to the same norms and sums."""
    for _, use in uses:
        if isinstance(use, Apart):
            for part in use.uses:
                if isinstance(part, Outer):
                    cost.choose(part)


class Engine:
    """Attaches to a model; turns losses, one a record, into `RecordGrads`. `detach()` gives the model back as it was.

    `measured` lets a short measurement decide between two ways to the same result where the shapes leave a choice; their last
    bits differ, so that two runs may.
    """

    def __init__(self, model: nn.Module, rules: Rules = RULES, *, measured: bool = False) -> None:
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
        self._canonical = {id(p): n for n, p in self.parameters.items()}
        self._taped: list[_Unit[TapeRule]] = []
        self._expanded: list[_Unit[ExpandRule]] = []
        self._attending: list[_Unit[TapeRule]] = []
        self._split(model, "", rules)
        self.layers = trainable_layers(model)
        index = {path: i for i, path in enumerate(self.layers)}
        self._layer_of = {name: index[layer_path(name)] for name in self.parameters}
        self._replaced: list[tuple[nn.Module, Any]] = []
        self._frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
        self._records = 0
        self._anchor = torch.zeros((), requires_grad=True)
        self._collecting: Found | None = None
        self._reduce: Reduce | None = None
        self._ready: Callable[[nn.Module], object] | None = None
        self._proof: proof.Proof | None = proof.Proof()
        # Outputs that nothing changes in place (as seen on the first batch) can be leaves of the graph, which is cheaper.
        self._left_alone: frozenset[str] = frozenset()
        self._watching = self._proof.watch(model)
        # Embeddings whose indices all records share, as settled on the first batch, and the records of the pass under way.
        self._shared: dict[str, bool] = {}
        self._rows = 0
        self._counting = self._count_records() if any(isinstance(t.rule, EmbeddingRule) for t in self._taped) else None
        self._compiled = compat.compiled(model)
        for taped in self._taped:
            run = self._run_embedding if isinstance(taped.rule, EmbeddingRule) else self._run_taped
            self._attach(taped.module, functools.partial(run, taped))
        for attending in self._attending:
            self._attach(attending.module, functools.partial(self._run_attention, attending))
        for expanded in self._expanded:
            self._attach(expanded.module, functools.partial(self._run_expanded, expanded))

    def detach(self) -> None:
        """Take the engine off the model."""
        for module, plain in self._replaced:
            vars(module).pop("forward", None)
            if plain is not None:
                module.forward = plain
        self._replaced = []
        self._stop_watching()
        self._stop_counting()
        self._taped, self._expanded, self._attending = [], [], []

    @property
    def proven(self) -> bool:
        """Whether the engine has proven itself on this model."""
        return self._proof is None

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

    def collect(self, losses: Tensor, views: int = 1) -> RecordGrads:
        """One backward pass of `losses` [B]; every record's gradient of every trainable parameter.

        With `views`, so many rows in a row belong to one record, and its gradient is the sum of theirs (`assay.grads.views`).
        """
        _check_losses(losses)
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise UnsupportedModelError(
                    f"parameter {name} was frozen when the engine was attached and is not now: its gradient would carry the "
                    "records without noise. Unfreeze before attaching, or attach anew"
                )
        found: Found = []
        proof_now = self._proof
        self._records = losses.shape[0]
        low = torch.float64
        left_alone: frozenset[str] = frozenset()
        try:
            if proof_now is not None:
                compat.check(self.model)
                proof_now.before(losses, self.parameters, self.model)
                left_alone, low = proof_now.left_alone(), proof_now.lowest_precision()
            self._collecting = found
            expected = proof.backward(losses, self.parameters)
        finally:
            self._collecting = None
            if proof_now is not None:
                proof_now.forget()
        uses = gathered(found) if len(found) > 1 else found
        if views > 1:
            uses = [(names, folded(use, views)) for names, use in uses]
        if self._measured:
            _choose(uses)
        records = self._records // views
        grads = RecordGrads(records, uses, self.parameters, self._layer_of, len(self.layers), reduce=self._reduce)
        if proof_now is None:
            for name in expected:
                raise UnsupportedModelError(proof.used_outside(name))
        elif proof_now.compare(grads, expected, low) and len(losses) > 1:
            self._proof, self._left_alone = None, left_alone
            self._stop_watching()
            if not any(self._shared.values()):
                self._stop_counting()
        return grads

    def _stop_watching(self) -> None:
        for hook in self._watching:
            hook.remove()

    def _stop_counting(self) -> None:
        if self._counting is not None:
            self._counting.remove()

    def empty(self) -> RecordGrads:
        """The gradients of a batch without records."""
        return RecordGrads(0, [], self.parameters, self._layer_of, len(self.layers))

    def _split(self, module: nn.Module, path: str, rules: Rules) -> None:
        """Cut the model into units: ruled modules, and the smallest subtrees that own a parameter without a rule."""
        own = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
        trained = any(p.requires_grad for p in module.parameters())
        whole = trained and (is_parametrized(module) or isinstance(module, nn.MultiheadAttention))
        if not whole and all(_aliased(module, p) for p in own.values()):
            for name, child in module.named_children():
                self._split(child, f"{path}.{name}" if path else name, rules)
            return
        if any(module is other for other in self._modules()):  # one module in two places
            return
        if attention.ruled(module):
            names = {n: self._canonical[id(p)] for n, p in own.items()}
            rows = attention.Projection(0, 0)  # which rows is known when it is called
            self._attending.append(_Unit(path, module, rows, names, frozenset(own)))
            for name, child in module.named_children():
                self._split(child, f"{path}.{name}" if path else name, rules)
            return
        rule = rule_for(module, rules)
        if rule is None:
            rule = PerRecordCall()
            own = {n: p for n, p in module.named_parameters() if p.requires_grad}
        names = {n: self._canonical[id(p)] for n, p in own.items()}
        if isinstance(rule, TapeRule):
            self._taped.append(_Unit(path, module, rule, names, frozenset(own)))
        else:
            self._expanded.append(_Unit(path, module, rule, names, frozenset(own)))

    def _modules(self) -> list[nn.Module]:
        taped = (unit.module for unit in (*self._taped, *self._attending))
        return [*taped, *(unit.module for unit in self._expanded)]

    def _attach(self, owner: nn.Module, run: Callable[..., Any]) -> None:
        """Replace the module's forward by `run` while gradients are recorded."""
        plain = vars(owner).get("forward")
        self._replaced.append((owner, plain))
        if plain is None:
            plain = functools.partial(type(owner).forward, owner)
        inside = False

        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            # a copy of the model (weight averaging) carries this method along, and is not ours to record
            if module is not owner:
                return type(module).forward(module, *args, **kwargs)
            if inside or not torch.is_grad_enabled():
                return plain(*args, **kwargs)
            inside = True
            try:
                return run(*args, **kwargs)
            finally:
                inside = False

        # What runs here is recorded, outside a compiled graph; what is between such layers is compiled.
        owner.forward = types.MethodType(torch.compiler.disable(forward) if self._compiled else forward, owner)

    def _run_taped(self, unit: _Unit[TapeRule], *args: Any, **kwargs: Any) -> Tensor:
        module, rule = unit.module, unit.rule
        (x,) = args if len(args) == 1 else (*args, *kwargs.values())
        if self._proof is not None:
            out = rule.forward(module, module._parameters, x)
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
            names, use = rule.uses(module, unit.wanted, _full(seen), _full(g))
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
                return out
            root = _Anchor.apply(root, self._anchor)  # type: ignore[no-untyped-call]
            out = root.view(shape)
        if self._proof is not None:
            self._proof.saw(unit.path, out)
        root.register_hook(record)
        return out

    def _count_records(self) -> Any:
        """Before each pass of the model, note how many records its tensors hold: most of them have these rows."""

        def count(_module: nn.Module, args: Any, kwargs: Any) -> None:
            leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim() > 0]
            self._rows = Counter(t.shape[0] for t in leaves).most_common(1)[0][0] if leaves else 0

        return self.model.register_forward_pre_hook(count, with_kwargs=True)

    def _run_embedding(self, unit: _Unit[TapeRule], *args: Any, **kwargs: Any) -> Tensor:
        """An embedding, its indices repeated for each record where all records share them (positions).

        What autograd would hand back for a row that all records share is the sum over records; repeated, it is one row a
        record. Indices that are shared have no record dimension: [T] or [1, T]. On the first batch that tells it is
        settled which embeddings these are, since in a later one T may happen to be the number of records.
        """
        (index,) = (*args, *kwargs.values())
        decided = self._rows > 1 or (self._rows == 1 and index.dim() == 1 and len(index) > 1)
        if self._proof is not None and decided:
            shared = _without_records(unit.path, index, self._rows)
            if self._shared.setdefault(unit.path, shared) != shared:
                raise UnsupportedModelError(
                    f"{unit.path} is called both with indices of each record and with indices that all records share: expand "
                    "the latter to all records before the call"
                )
        if self._shared.get(unit.path, False):
            index = (index.unsqueeze(0) if index.dim() == 1 else index).expand(
                self._rows, *[-1] * max(1, index.dim() - 1)
            )
        return self._run_taped(unit, index)

    def _run_attention(self, unit: _Unit[TapeRule], *args: Any, **kwargs: Any) -> Any:
        module = unit.module
        assert isinstance(module, nn.MultiheadAttention)

        def project(x: Tensor, start: int, stop: int) -> Tensor:
            rows = attention.Projection(start, stop)
            if not unit.wanted:
                return rows.forward(module, module._parameters, x)
            return self._run_taped(replace(unit, rule=rows), x)

        return attention.attend(module, project, *args, **kwargs)

    def _run_expanded(self, unit: _Unit[ExpandRule], *args: Any, **kwargs: Any) -> Any:
        rule, module = unit.rule, unit.module
        records = rule.records(module, args, kwargs)
        own = dict(module.named_parameters()) if isinstance(rule, PerRecordCall) else dict(module._parameters)
        params: dict[str, Tensor | None] = {}
        for name, parameter in own.items():
            if parameter is None:
                params[name] = None
                continue
            source = parameter if self._proof is not None else parameter.detach()
            copies = source.expand(records, *parameter.shape)
            if name in unit.names:
                if not copies.requires_grad:
                    copies.requires_grad_()
                copies.register_hook(self._keep(unit.names[name]))
                if self._proof is not None:
                    self._proof.saw(unit.path, copies)
            params[name] = copies
        return rule.forward(module, params, args, kwargs, records)

    def _one_row_a_record(self, path: str, g: Tensor) -> None:
        if g.dim() == 0 or g.shape[0] != self._records:
            raise UnsupportedModelError(proof.not_first(path, g, self._records))

    def _keep(self, name: str) -> Callable[[Tensor], None]:
        def record(g: Tensor) -> None:
            if self._collecting is not None:
                self._one_row_a_record(name, g)
                self._collecting.append(((name,), Apart([Dense(_full(g))])))

        return record


def _aliased(module: nn.Module, parameter: nn.Parameter) -> bool:
    """Whether a layer below `module` owns the parameter, too (the bias of a language model's head): that layer uses it.

    If `module` also uses it by itself, the gradients do not add up on the first batch, and the model is refused.
    """
    return any(parameter is p for child in module.children() for p in child.parameters())


def _without_records(path: str, index: Tensor, records: int) -> bool:
    """Whether indices have no record dimension: [1, T], or [T] with another number of positions than records.

    Where there are as many of both, eight or more that count up from 0 are taken for positions.
    """
    if index.dim() == 1:
        counts_up = records >= 8 and torch.equal(index, torch.arange(records, device=index.device))
        return index.shape[0] != records or counts_up
    if index.dim() > 1 and index.shape[0] not in (1, records):
        raise UnsupportedModelError(
            f"{path} looks up indices of shape {tuple(index.shape)} that all of the {records} records share: there is no way to "
            "tell what each record contributes. Freeze it (requires_grad_(False)), or expand the indices to all records"
        )
    return index.dim() > 1 and index.shape[0] == 1


def _full(t: Tensor) -> Tensor:
    """Clipping happens in float32 at least, whatever the model computes in."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def _check_losses(losses: Tensor) -> None:
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
