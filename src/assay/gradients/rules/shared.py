"""Parameters that code uses by itself, outside any layer with a rule: class tokens, scales, adapters, computed weights.

While such code runs, a `Shared` tensor stands in place of the parameter. It looks like the parameter. What is computed
from it alone (a transposed, normalised or cut weight) is `Shared` again. Where it meets tensors with one row per
record, the function's rule (`assay.gradients.rules.functions`) gives every record a view of its own, so that autograd
gives a gradient for each record, or records the function as a layer is recorded. Gradients of what was computed from a
parameter are pulled back to the parameter, for each record. So no module runs once for each record, and no record needs
a copy of a weight.

Which arguments have a row per record is decided on the first batch, by their first dimension. The proof checks it there
(`assay.gradients.proof.first_batch`): a wrong decision shows as records that mix. Later batches keep the decision. A
use without a rule raises `UnfitError`, and so does one that differs from those of the first batch. A module that first
runs in a later batch runs once for each record from then on, and the batch after it is checked in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from assay.errors import UnsupportedModelError
from assay.gradients.arithmetic import full
from assay.gradients.inputs import Inputs
from assay.gradients.uses.base import Dense, Use

Uses = Sequence[tuple[str, Use]]
"""Names of parameters and their use."""


class UnfitError(UnsupportedModelError):
    """A function of a shared tensor that has no rule. Unless `final`, its owner may run in another way."""

    def __init__(self, sources: Sequence[Source], what: str, *, final: bool = False) -> None:
        names = ", ".join(dict.fromkeys(source.path for source in sources)) or "a constant"
        super().__init__(
            f"{names} is used in a way that gives no gradient for each record ({what}): let a layer that owns it use "
            "it, expand it to all records first, or freeze it (requires_grad_(False))"
        )
        self.owners = [source.owner for source in sources]
        self.final = final


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What gradients are pulled back to: a parameter, or rows of a table that all records use."""

    leaf: Tensor
    path: str
    uses: Callable[[Use], Uses]
    """The uses of parameters that a use of `leaf` stands for."""
    owner: nn.Module | None


class Shared(Tensor):
    """A tensor that all records share and that depends on parameters. Functions of it go through its tracer."""

    value: Tensor
    sources: tuple[Source, ...]
    tracer: Tracer
    parameter: Any
    """The parameter itself, if this is one; None for what was computed."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute the function; see the module's text."""
        del types
        with torch._C.DisableTorchFunctionSubclass():
            call = Call.of(func, args, kwargs or {})
            return call.shared[0].tracer.compute(call)


_LEAVES = frozenset((Tensor, nn.Parameter, Shared, int, float, bool, type(None)))


@dataclass(slots=True)
class Call:
    """A function with its arguments, some of them `Shared`."""

    func: Callable[..., Any]
    leaves: list[Any]
    structure: Any
    """How many leaves are positional, and the names of the others; that of pytree if some are inside containers."""

    @classmethod
    def of(cls, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """The call of a function with these arguments."""
        leaves = [*args, *kwargs.values()]
        if _LEAVES.issuperset(map(type, leaves)):  # pytree takes longer than many a function
            return cls(func, leaves, (len(args), tuple(kwargs)))
        return cls(func, *pytree.tree_flatten((tuple(args), dict(kwargs))))

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.func, "__name__", "")

    @property
    def shared(self) -> list[Shared]:
        """The arguments that all records share."""
        return [leaf for leaf in self.leaves if type(leaf) is Shared]

    @property
    def sources(self) -> tuple[Source, ...]:
        """What they depend on."""
        return tuple(dict.fromkeys(source for s in self.shared for source in s.sources))

    def given(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with these leaves."""
        if type(self.structure) is not tuple:
            args, kwargs = pytree.tree_unflatten(leaves, self.structure)
            return args, kwargs
        positional, names = self.structure
        return tuple(leaves[:positional]), dict(zip(names, leaves[positional:], strict=True))

    def on(self, leaves: Sequence[Any]) -> Any:
        """The function of these leaves."""
        args, kwargs = self.given(leaves)
        return self.func(*args, **kwargs)


Rule = Callable[["Tracer", Call, Sequence[int]], Any]
"""Computes a function of shared tensors and of rows, the leaves with these numbers."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """What a tracer needs of the engine."""

    proven: Callable[[], bool]
    begun: Callable[[], None]
    """Something began after the first batch: the next one is checked in full."""
    stand_in: Callable[[nn.Parameter], Tensor]
    saw: Callable[[str, Tensor], None]
    keep: Callable[[str, Uses, int], None]
    """Takes the uses of parameters by this many rows; the path is that of `saw`."""
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """x Wᵀ + b, of x, W and b."""
    tape: Callable[[str, Tensor, Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Uses]], Tensor]
    """Runs a function of an input and records it: path, input, function, and uses by input and output gradient."""


class Tracer:
    """Makes shared tensors and computes with them.

    Args:
        recorder: The engine's part.
        rules: The rule of each function, by name; `otherwise` for those without one.
        alone: The rules of functions of shared tensors alone; others are simply computed.
        inputs: Knows what depends on no input of the model.
    """

    def __init__(
        self,
        recorder: Recorder,
        rules: Mapping[str, Rule],
        otherwise: Rule,
        alone: Mapping[str, Rule],
        inputs: Inputs,
    ) -> None:
        self.recorder, self._rules, self._otherwise, self._alone = recorder, rules, otherwise, alone
        self._inputs = inputs
        self.records = 0
        self._decided: dict[tuple[Any, ...], tuple[int, ...] | bool] = {}
        self._settled: set[Any] = set()
        self.touched: set[str] = set()
        """The paths of sources that something was computed from, outside the module that owns them."""

    def shared(self, value: Tensor, sources: tuple[Source, ...]) -> Shared:
        """A shared tensor with this value; without sources, a constant."""
        made = value.as_subclass(Shared)
        made.value, made.sources, made.tracer, made.parameter = value, sources, self, None
        return made

    def parameter(self, name: str, parameter: nn.Parameter, owner: nn.Module | None) -> Shared:
        """A trainable parameter as a shared tensor."""
        recorder = self.recorder
        leaf = parameter.detach().requires_grad_() if recorder.proven() else recorder.stand_in(parameter)
        made = self.shared(leaf, (Source(leaf, name, lambda use: [(name, use)], owner),))
        vars(made)["_is_param"] = True  # what `isinstance` asks for
        made.parameter = parameter
        return made

    def compute(self, call: Call) -> Any:
        """The result: shared, or with one row per record."""
        plain = [leaf.value if type(leaf) is Shared else leaf for leaf in call.leaves]
        if not torch.is_grad_enabled():
            others = [t for t in call.leaves if type(t) is not Shared and isinstance(t, Tensor)]
            alone = all(map(self._inputs.is_made, others))
            return pytree.tree_map(self._inputs.mark, call.on(plain)) if alone else call.on(plain)
        rows, count = self._rows(call)
        if rows:
            self._touch(call.sources)
            with self.within(count):
                return self._rules.get(call.name, self._otherwise)(self, call, rows)
        if call.name in self._alone:
            return self._alone[call.name](self, call, ())
        return self.wrapped(call, call.on(plain))

    def wrapped(self, call: Call, out: Any) -> Any:
        """The results of a function of shared tensors alone, which are shared as well."""
        sources = call.sources

        def wrap(t: Any) -> Any:
            if not isinstance(t, Tensor) or not t.requires_grad:
                return self._inputs.mark(t)
            self._touch(sources)
            return self.shared(t, sources)

        return pytree.tree_map(wrap, out)

    def _touch(self, sources: Sequence[Source]) -> None:
        self.touched.update(source.path for source in sources if source.owner is None)

    def _rows(self, call: Call) -> tuple[tuple[int, ...], int]:
        """The leaves with rows of records, and how many rows: those of a record may be folded into the first dimension.

        Raises:
            UnfitError: The function is used in a way that the first batch has not shown, or in two ways.
        """
        tensors = [
            (i, t) for i, t in enumerate(call.leaves) if type(t) is not Shared and isinstance(t, Tensor) and t.dim() > 0
        ]
        if not tensors:
            return (), 0
        found = tuple(i for i, t in tensors if t.shape[0] == self.records and not self._is_shared(t))
        proven = self.recorder.proven()
        if not found and not proven:
            # indices that were made before, and kept, have no mark; mixing by them shows in the outputs
            unknown = [
                (i, t)
                for i, t in tensors
                if not self._inputs.is_made(t)
                and (t.is_floating_point() or (self.records and t.shape[0] % self.records == 0))
            ]
            sizes = {t.shape[0] for _, t in unknown}
            if len(sizes) > 1 or any(not self.records or size % self.records for size in sizes):
                raise UnfitError(call.sources, f"{call.name} of tensors whose first dimension is not the record")
            found = tuple(i for i, _ in unknown) or self._windows(call, tensors)
        forms = tuple((i, t.dim()) for i, t in enumerate(call.leaves) if isinstance(t, Tensor))
        known = self.decide((call.name, forms), found, call)
        assert isinstance(known, tuple)
        counts = {call.leaves[i].shape[0] for i in known}
        if len(counts) > 1 or any(not self.records or count % self.records for count in counts):
            raise UnfitError(call.sources, f"{call.name} of tensors with another number of rows", final=proven)
        return known, counts.pop() if counts else 0

    def _is_shared(self, t: Tensor) -> bool:
        return self._inputs.is_fixed(t) or self._inputs.are_distances(t)

    def _windows(self, call: Call, tensors: Sequence[tuple[int, Tensor]]) -> tuple[int, ...]:
        """A constant mask that was repeated for the rows of all records, and is added to one that has a single row."""
        one_row = [s for s in call.shared if s.dim() > 2 and s.shape[0] == 1]
        if call.name not in ("add", "__add__", "__radd__") or not one_row or not self.records:
            return ()
        return tuple(i for i, t in tensors if t.dim() == one_row[0].dim() and len(t) > 1 and len(t) % self.records == 0)

    def path(self, source: Source) -> str:
        """How the proof names what is made of a source here."""
        return source.path if self.records == self._inputs.records else f"{source.path}, folded"

    def decide(self, form: tuple[Any, ...], found: tuple[int, ...] | bool, call: Call) -> tuple[int, ...] | bool:
        """What the first batch with two records or more has decided, or decides now.

        Raises:
            UnfitError: It has not decided this, or in two ways.
        """
        key = (tuple(source.path for source in call.sources), *form)
        settled = self.recorder.proven() and key[0] in self._settled
        if settled and key not in self._decided:
            raise UnfitError(
                call.sources, f"{call.name} of such tensors, which the first batch did not show", final=True
            )
        if settled:
            return self._decided[key]
        if self.recorder.proven():
            self.recorder.begun()
            # nothing has checked it: for this batch the owner runs once for each record, which needs no decision
            raise UnfitError(call.sources, f"{call.name}, which the first batch did not show")
        if self.records > 1 and self._decided.setdefault(key, found) != found:
            raise UnfitError(call.sources, f"{call.name} of rows and of constants")
        return found

    def settle(self) -> None:
        """Keep the decisions about all parameters that were used so far."""
        self._settled |= {key[0] for key in self._decided}

    def start_over(self) -> None:
        """Let the next batch decide what no batch has shown. What was decided stays."""
        self._settled.clear()

    def copies(self, shared: Shared) -> Tensor:
        """[records, *shape]: the tensor for every record, with a gradient for each."""
        if not shared.sources:
            return shared.value.expand(self.records, *shared.shape)
        value = self.value(shared)
        made = value.expand(self.records, *value.shape)
        if not made.requires_grad:
            made.requires_grad_()
        recorder, records, path = self.recorder, self.records, self.path(shared.sources[0])

        def keep(g: Tensor) -> None:
            recorder.keep(path, self.pulled(shared, Dense(full(g))), records)

        made.register_hook(keep)
        recorder.saw(path, made)
        return made

    def value(self, shared: Shared) -> Tensor:
        """The tensor as a pass is to use it: its graph leads to the parameters only until the engine is proven."""
        return shared.value.detach() if self.recorder.proven() else shared.value

    def pulled(self, shared: Shared, use: Use) -> Uses:
        """The uses of parameters that a use of the shared tensor stands for. Call during the backward pass."""
        for source in shared.sources:
            if shared.value is source.leaf:
                return source.uses(use)
        gradients = use.per_record().reshape(-1, *shared.shape).to(shared.value.dtype)
        leaves = [source.leaf for source in shared.sources]

        def back(g: Tensor, *, batched: bool) -> Sequence[Tensor | None]:
            return torch.autograd.grad(
                shared.value, leaves, g, retain_graph=True, allow_unused=True, is_grads_batched=batched
            )

        try:
            found = list(back(gradients, batched=True))
        except (RuntimeError, NotImplementedError, ValueError):  # torch cannot batch some functions
            rows = [back(g, batched=False) for g in gradients]
            columns = zip(*rows, strict=True)
            found = [None if column[0] is None else torch.stack(column) for column in columns]
        made: list[tuple[str, Use]] = []
        for source, g in zip(shared.sources, found, strict=True):
            if g is not None:
                made += source.uses(Dense(full(g)))
        return made

    @contextmanager
    def within(self, records: int) -> Iterator[None]:
        """A context in which this many rows stand for the records."""
        before, self.records = self.records, records
        try:
            yield
        finally:
            self.records = before


Holder = tuple[dict[str, Any], str, str]
"""Where a parameter is held: the dictionary of its module, its name there, and its canonical name."""


@contextmanager
def installed(tracer: Tracer, holders: Sequence[Holder], owner: nn.Module | None) -> Iterator[None]:
    """A context in which shared tensors stand in place of these parameters."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    made: dict[int, Shared] = {}
    try:
        for held, name, canonical in holders:
            parameter = held[name]
            kept.append((held, name, parameter))
            parameter = cast(nn.Parameter, getattr(parameter, "parameter", parameter))  # shared while the model runs
            if not isinstance(parameter, nn.Parameter):  # somebody has put something else there (functional_call)
                continue
            if id(parameter) not in made:
                made[id(parameter)] = tracer.parameter(canonical, parameter, owner)
            held[name] = made[id(parameter)]
        yield
    finally:
        for held, name, parameter in kept:
            held[name] = parameter
