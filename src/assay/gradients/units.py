"""A model cut into units: the modules that the engine runs itself, each with its rule and in place of its own forward.

Every trainable parameter is in the unit of a module that owns it: a layer with a rule, or a module that uses parameters
by itself (`assay.gradients.rules.shared`). A module that stands in two places is one unit.

`Forwards` replaces the forward of modules while gradients are recorded. A replacement does not run within itself, for a
copy of the module, or without gradients. `restore` gives every module the `forward` that it had.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from assay.errors import UnsupportedModelError
from assay.gradients.proof import calls
from assay.gradients.rules import attention, recurrent
from assay.gradients.rules.fallback import PerRecordCall
from assay.gradients.rules.layers import ExpandRule, Rules, TapeRule, rule_for
from assay.gradients.rules.shared import Holder
from assay.models import compat, copies

R = TypeVar("R", TapeRule, ExpandRule)


@dataclass(frozen=True, slots=True)
class Unit(Generic[R]):
    """A module that the engine runs itself: its rule, and the canonical name of each trainable parameter below it."""

    path: str
    module: nn.Module
    rule: R
    names: Mapping[str, str]
    wanted: frozenset[str]


@dataclass(slots=True)
class Traced:
    """A module that uses parameters by itself; `unit` runs it once for each record if there is no other way."""

    unit: Unit[ExpandRule]
    holders: Sequence[Holder]
    """Where these parameters are held: in the module, and in parameter lists and dictionaries of it."""
    once_each: bool = False
    """Whether it runs once for each record."""

    def held(self) -> list[nn.Module]:
        """The module, and those that hold parameters for it."""
        dicts = {id(held) for held, _, _ in self.holders}
        return [module for module in self.unit.module.modules() if id(module._parameters) in dicts]


CONTAINERS = (nn.ParameterList, nn.ParameterDict)
"""Modules that hold parameters for the module that owns them, and are never called."""


class Units:
    """The units of a model, by how they run.

    Args:
        model: The model.
        parameters: Its trainable parameters by their canonical names.
        rules: The rule of each layer type.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], rules: Rules) -> None:
        self.taped: list[Unit[TapeRule]] = []
        self.expanded: list[Unit[ExpandRule]] = []
        self.attending: list[Unit[TapeRule]] = []
        self.recurring: list[Unit[TapeRule]] = []
        self.traced: list[Traced] = []
        self._canonical = {id(p): n for n, p in parameters.items()}
        self._split(model, "", rules)

    def _split(self, module: nn.Module, path: str, rules: Rules) -> None:
        """Cut the model into units: ruled modules, and the smallest subtrees that own a parameter without a rule."""
        own = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
        trained = any(p.requires_grad for p in module.parameters())
        whole = trained and (is_parametrized(module) or isinstance(module, nn.MultiheadAttention))
        contained = any(p.requires_grad for c in module.children() if isinstance(c, CONTAINERS) for p in c.parameters())
        if not (whole or contained) and all(_aliased(module, p) for p in own.values()):
            for name, child in module.named_children():
                self._split(child, f"{path}.{name}" if path else name, rules)
            return
        if any(module is other for other in self._modules()):  # one module in two places
            return
        if isinstance(module, nn.MultiheadAttention) and attention.ruled(module):
            names = {n: self._canonical[id(p)] for n, p in own.items()}
            rows = attention.Projection(0, 0)  # the call says which rows
            self.attending.append(Unit(path, module, rows, names, frozenset(own)))
            for name, child in module.named_children():
                self._split(child, f"{path}.{name}" if path else name, rules)
            return
        if isinstance(module, recurrent.KINDS) and recurrent.ruled(module):
            names = {n: self._canonical[id(p)] for n, p in own.items()}
            gates = recurrent.Gates("", gru=False)  # the call says of which layer and direction
            self.recurring.append(Unit(path, module, gates, names, frozenset(own)))
            return
        rule = rule_for(module, rules)
        if rule is None:
            self._trace(module, path, rules, whole=whole)
            return
        names = {n: self._canonical[id(p)] for n, p in own.items()}
        if isinstance(rule, TapeRule):
            self.taped.append(Unit(path, module, rule, names, frozenset(own)))
        else:
            self.expanded.append(Unit(path, module, rule, names, frozenset(own)))

    def _trace(self, module: nn.Module, path: str, rules: Rules, *, whole: bool) -> None:
        """A module that uses parameters by itself. Layers below it are units of their own, unless it is one whole."""
        names = {n: self._canonical[id(p)] for n, p in module.named_parameters() if p.requires_grad}
        inner = module.modules() if whole else (module, *(c for c in module.children() if isinstance(c, CONTAINERS)))
        holders = [
            (m._parameters, name, self._canonical[id(p)])
            for m in inner
            for name, p in m._parameters.items()
            if p is not None and p.requires_grad
        ]
        unit = Unit(path, module, PerRecordCall(), names, frozenset(names))
        self.traced.append(Traced(unit, holders, once_each=_out_of_sight(module)))
        if not whole:
            for name, child in module.named_children():
                if not isinstance(child, CONTAINERS):
                    self._split(child, f"{path}.{name}" if path else name, rules)

    def _modules(self) -> list[nn.Module]:
        taped = (unit.module for unit in (*self.taped, *self.attending, *self.recurring))
        return [*taped, *(unit.module for unit in self.expanded), *(traced.unit.module for traced in self.traced)]


def _out_of_sight(module: nn.Module) -> bool:
    """Whether a shared tensor would not see what is done with it: torch's recurrent layers, own autograd functions."""
    home = vars(sys.modules.get(type(module).__module__, torch))
    own = any(isinstance(v, type) and issubclass(v, torch.autograd.Function) for v in home.values())
    return isinstance(module, nn.RNNBase) or (own and not type(module).__module__.startswith("torch."))


def _aliased(module: nn.Module, parameter: nn.Parameter) -> bool:
    """Whether a layer below `module` owns the parameter, too (the bias of a language model's head): that layer uses it.

    If `module` also uses it by itself, the gradients do not add up on the first batch, and the model is refused.
    """
    return any(parameter is p for child in module.children() for p in child.parameters())


class Forwards:
    """The forwards of a model that were replaced."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._compiled = model, compat.compiled(model)
        self._replaced: list[tuple[nn.Module, Any]] = []
        self.suspended = False
        """Whether all modules run their own forward: within a module that runs once for each record."""

    def replace(self, owner: nn.Module, run: Callable[..., Any]) -> None:
        """Let `run` replace the module's forward while gradients are recorded.

        Raises:
            UnsupportedModelError: The module has such a replacement already: within another it would never run.
        """
        _check_free(owner)
        plain = vars(owner).get("forward")
        self._replaced.append((owner, plain))
        if plain is None:
            plain = functools.partial(type(owner).forward, owner)
        inside = False

        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            # a copy of the model (weight averaging) has this method as well, and is not recorded
            if module is not owner:
                return type(module).forward(module, *args, **kwargs)
            if inside or self.suspended or not torch.is_grad_enabled():
                return plain(*args, **kwargs)
            calls.check_untransformed(module, self._model)
            inside = True
            try:
                return run(*args, **kwargs)
            finally:
                inside = False

        # What is recorded runs outside the compiled graph; what is between such layers is compiled.
        made: Any = torch.compiler.disable(forward) if self._compiled else forward
        made.replaces = weakref.ref(owner)  # a copy of the model has this attribute as well, and is not meant
        owner.forward = types.MethodType(made, owner)

    def has(self, module: nn.Module) -> bool:
        """Whether the forward of this module is replaced."""
        return any(module is owner for owner, _ in self._replaced)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """A context in which the modules are as they were, so that copies have no replacements."""
        ours = [(module, module.forward) for module, _ in self._replaced]
        for module, plain in self._replaced:
            _put(module, plain)
        try:
            yield
        finally:
            for module, forward in ours:
                _put(module, forward)

    def copy(self) -> nn.Module | None:
        """The model as it is, with its own forwards and sharing its parameters; None if it cannot be copied."""
        with self.lifted():
            return copies.of_model(self._model, sharing=self._model.parameters())

    def restore(self) -> None:
        """Remove all replacements."""
        for module, plain in self._replaced:
            _put(module, plain)
        self._replaced = []


def check_free(model: nn.Module) -> None:
    """Refuse a model that has replaced forwards already.

    Raises:
        UnsupportedModelError: A module belongs to a `PrivateStep` that was not closed.
    """
    for module in model.modules():
        _check_free(module)


def _check_free(module: nn.Module) -> None:
    other = getattr(vars(module).get("forward"), "replaces", None)
    if other is not None and other() is module:
        raise UnsupportedModelError(
            f"{type(module).__name__} belongs to a PrivateStep that was not closed: call its close() first, or make a "
            "new model"
        )


def _put(module: nn.Module, forward: Any) -> None:
    """Set this forward, or that of the module's class if it is None."""
    vars(module).pop("forward", None)
    if forward is not None:
        module.forward = forward
