"""A model cut into units: the modules that the engine runs itself, each with its rule.

Every trainable parameter is in the unit of a module that owns it: a module with a rule, or the smallest subtree that
owns a parameter without one. A module that stands in two places is one unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from assay.gradients.rules import attention
from assay.gradients.rules.fallback import PerRecordCall
from assay.gradients.rules.layers import ExpandRule, Rules, TapeRule, rule_for

R = TypeVar("R", TapeRule, ExpandRule)


@dataclass(frozen=True, slots=True)
class Unit(Generic[R]):
    """A module that the engine runs itself: its rule, and the canonical name of each trainable parameter below it."""

    path: str
    module: nn.Module
    rule: R
    names: Mapping[str, str]
    wanted: frozenset[str]


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
        self._canonical = {id(p): n for n, p in parameters.items()}
        self._split(model, "", rules)

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
        if isinstance(module, nn.MultiheadAttention) and attention.ruled(module):
            names = {n: self._canonical[id(p)] for n, p in own.items()}
            rows = attention.Projection(0, 0)  # the call says which rows
            self.attending.append(Unit(path, module, rows, names, frozenset(own)))
            for name, child in module.named_children():
                self._split(child, f"{path}.{name}" if path else name, rules)
            return
        rule = rule_for(module, rules)
        if rule is None:
            rule = PerRecordCall()
            own = {n: p for n, p in module.named_parameters() if p.requires_grad}
        names = {n: self._canonical[id(p)] for n, p in own.items()}
        if isinstance(rule, TapeRule):
            self.taped.append(Unit(path, module, rule, names, frozenset(own)))
        else:
            self.expanded.append(Unit(path, module, rule, names, frozenset(own)))

    def _modules(self) -> list[nn.Module]:
        taped = (unit.module for unit in (*self.taped, *self.attending))
        return [*taped, *(unit.module for unit in self.expanded)]


def _aliased(module: nn.Module, parameter: nn.Parameter) -> bool:
    """Whether a layer below `module` owns the parameter, too (the bias of a language model's head): that layer uses it.

    If `module` also uses it by itself, the gradients do not add up on the first batch, and the model is refused.
    """
    return any(parameter is p for child in module.children() for p in child.parameters())
