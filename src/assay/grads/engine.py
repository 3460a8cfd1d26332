"""The engine: one forward, one backward, every record's gradient norm, and one clipped sum.

Each module that owns trainable parameters runs with those parameters detached, so that the one backward pass computes
input gradients only; its input and the gradient of its output are handed to the rule of its layer type, which knows the
norm of each record's gradient and their weighted sum (`assay.grads.uses`). No second backward pass, no weight gradient
computed twice, no [records, parameters] tensor unless it is the smallest thing to keep.

Nothing is kept between steps: what a forward pass records hangs on its autograd graph and is gone with it. A backward
pass that is not ours (a generator's loss through a private discriminator) collects nothing.

On its first batch the engine proves itself on the user's model (`assay.grads.proof`): the sum of the per-record gradients
must equal autograd's own, and one record's loss must not touch another record's activations.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import ConfigError, UnsupportedModelError
from assay.grads import proof
from assay.grads.fallback import PerRecordCall
from assay.grads.layers import RULES, ExpandRule, TapeRule, rule_for
from assay.grads.uses import Dense, Use, together
from assay.models import compat


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
class _Unit:
    """A module the engine runs itself: its rule, and the canonical name of each trainable parameter below it."""

    path: str
    module: nn.Module
    rule: TapeRule | ExpandRule
    names: Mapping[str, str]
    wanted: frozenset[str]


@dataclass(slots=True)
class RecordGrads:
    """The gradients of one batch, one a record, in the cheapest form at hand. Sensitive; lives for one step."""

    records: int
    uses: dict[str, Use]
    parameters: Mapping[str, nn.Parameter]
    layer_of: Mapping[str, int]
    layers: int
    nonfinite: int = 0

    def norms(self, groups: list[int]) -> Tensor:
        """l2 norm of each record's gradient in each clipping group, [B, L]. Records with NaN or Inf are zeroed and counted."""
        by_group: dict[int, list[Tensor]] = {}
        for name, use in self.uses.items():
            by_group.setdefault(groups[self.layer_of[name]], []).append(use.sq_norm())
        columns = [self._total(by_group.get(group, [])) for group in range(max(groups, default=0) + 1)]
        squares = torch.stack(columns, 1) if len(columns) > 1 else columns[0].unsqueeze(1)
        if not math.isfinite(float(squares.sum())):
            bad = ~torch.isfinite(squares.sum(1))
            self.nonfinite += int(bad.sum())
            self.uses = {name: use.without(bad) for name, use in self.uses.items()}
            squares = squares.masked_fill(bad.unsqueeze(1), 0.0)
        return squares.sqrt_()

    def _total(self, parts: list[Tensor]) -> Tensor:
        if not parts:
            return next(iter(self.parameters.values())).detach().new_zeros(self.records)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def weighted_sum(self, weights: Tensor, groups: list[int]) -> dict[str, Tensor]:
        """Σ_i weights[i, group] · gradient_i for every parameter; call after `norms`, which drops what is not finite."""
        columns = (
            [weights[:, 0]]
            if weights.shape[1] == 1
            else [column.contiguous() for column in weights.unbind(1)]
        )
        out: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            use = self.uses.get(name)
            out[name] = (
                torch.zeros_like(parameter)
                if use is None
                else use.weighted_sum(columns[groups[self.layer_of[name]]])
            )
        return out

    def per_record(self) -> dict[str, Tensor]:
        """The gradients themselves, [B, *shape] a parameter; records with NaN or Inf zeroed and counted."""
        self.norms([0] * self.layers)
        return {
            name: self.uses[name].per_record()
            if name in self.uses
            else parameter.new_zeros(self.records, *parameter.shape)
            for name, parameter in self.parameters.items()
        }


class Engine:
    """Attaches to a model; turns losses, one a record, into `RecordGrads`. `detach()` gives the model back as it was."""

    def __init__(
        self, model: nn.Module, rules: Mapping[type[nn.Module], TapeRule | ExpandRule] = RULES
    ) -> None:
        compat.check(model)
        self.model = model
        self.parameters: dict[str, nn.Parameter] = {
            n: p for n, p in model.named_parameters() if p.requires_grad
        }
        if not self.parameters:
            raise UnsupportedModelError(
                "the model has no trainable parameter: requires_grad is off everywhere"
            )
        self._canonical = {id(p): n for n, p in self.parameters.items()}
        self._units: list[_Unit] = []
        self._split(model, "", rules)
        self.layers = list(dict.fromkeys(self._layer_path(name) for name in self.parameters))
        index = {path: i for i, path in enumerate(self.layers)}
        self._layer_of = {name: index[self._layer_path(name)] for name in self.parameters}
        self._anchor = torch.zeros((), requires_grad=True)
        self._collecting: dict[str, list[Use]] | None = None
        self._proof: proof.Proof | None = proof.Proof()
        for unit in self._units:
            unit.module.forward = types.MethodType(self._recorder(unit), unit.module)

    def detach(self) -> None:
        """Take the engine off the model."""
        for unit in self._units:
            vars(unit.module).pop("forward", None)
        self._units = []

    def collect(self, losses: Tensor) -> RecordGrads:
        """One backward pass of `losses` [B]; every record's gradient of every trainable parameter."""
        _check_losses(losses)
        found: dict[str, list[Use]] = {}
        proof_now = self._proof if len(losses) > 1 else None
        expected: dict[str, Tensor | None] = {}
        try:
            if proof_now is not None:
                proof_now.before(losses, self.parameters)
            self._collecting = found
            if proof_now is not None:
                expected = proof_now.backward(losses, self.parameters)
            else:
                torch.autograd.backward(losses, torch.ones_like(losses))
        finally:
            self._collecting = None
            if self._proof is not None:
                self._proof.forget()
        uses = {name: parts[0] if len(parts) == 1 else together(parts) for name, parts in found.items()}
        grads = RecordGrads(len(losses), uses, self.parameters, self._layer_of, len(self.layers))
        if proof_now is not None and proof_now.compare(grads, expected):
            self._proof = None
        return grads

    def empty(self) -> RecordGrads:
        """The gradients of a batch without records."""
        return RecordGrads(0, {}, self.parameters, self._layer_of, len(self.layers))

    @staticmethod
    def _layer_path(parameter: str) -> str:
        return parameter.rpartition(".")[0]

    def _split(
        self, module: nn.Module, path: str, rules: Mapping[type[nn.Module], TapeRule | ExpandRule]
    ) -> None:
        """Cut the model into units: ruled modules, and the smallest subtrees that own a parameter without a rule."""
        own = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
        if not own:
            for name, child in module.named_children():
                self._split(child, f"{path}.{name}" if path else name, rules)
            return
        rule = rule_for(module, rules)
        if any(unit.module is module for unit in self._units):
            return
        if rule is None:
            rule = PerRecordCall()
            own = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._units.append(
            _Unit(path, module, rule, {n: self._canonical[id(p)] for n, p in own.items()}, frozenset(own))
        )

    def _recorder(self, unit: _Unit) -> Any:
        plain = type(unit.module).forward
        run = self._run_expanded if hasattr(unit.rule, "records") else self._run_taped
        inside = False

        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            # a copy of the model (weight averaging) carries this method along, and is not ours to record
            if inside or module is not unit.module or not torch.is_grad_enabled():
                return plain(module, *args, **kwargs)
            inside = True
            try:
                return run(unit, args, kwargs)
            finally:
                inside = False

        return forward

    def _run_taped(self, unit: _Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        module, rule = unit.module, unit.rule
        (x,) = (*args, *kwargs.values())
        own = module._parameters
        proving = self._proof is not None
        params = {n: p if p is None or proving else p.detach() for n, p in own.items()}
        if rule.anchor_by_bias and not (proving or x.requires_grad) and (bias := params["bias"]) is not None:  # type: ignore[union-attr]
            bias.requires_grad_()
        out: Tensor = rule.forward(module, params, x)  # type: ignore[call-arg, arg-type]
        # An in-place activation on a view rewrites the history of what it is a view of: record there, not on the view.
        root = (
            out._base
            if out._is_view() and out._base is not None and out._base.numel() == out.numel()
            else out
        )
        shape = out.shape
        if not root.requires_grad:
            root = _Anchor.apply(root, self._anchor)  # type: ignore[no-untyped-call]
            out = root.view(shape)
        seen, version = x.detach(), x._version

        def record(g: Tensor) -> None:
            if self._collecting is None:
                return
            if x._version != version:
                raise UnsupportedModelError(
                    f"the input of {unit.path} was changed in place after {unit.path} had used it; make that operation "
                    "not in-place"
                )
            if g.shape != shape:
                g = g.reshape(shape)
            for name, use in rule.uses(module, unit.wanted, _full(seen), _full(g)):  # type: ignore[union-attr]
                self._collecting.setdefault(unit.names[name], []).append(use)

        if self._proof is not None:
            self._proof.saw(unit.path, out)
        root.register_hook(record)
        return out

    def _run_expanded(self, unit: _Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = unit.rule
        records = rule.records(unit.module, args, kwargs)  # type: ignore[union-attr]
        own = (
            dict(unit.module.named_parameters())
            if isinstance(rule, PerRecordCall)
            else dict(unit.module._parameters)
        )
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
                copies.register_hook(self._keep(unit, name))
                if self._proof is not None:
                    self._proof.saw(unit.path, copies)
            params[name] = copies
        return rule.forward(unit.module, params, args, kwargs, records)  # type: ignore[call-arg, arg-type]

    def _keep(self, unit: _Unit, name: str) -> Any:
        def record(g: Tensor) -> None:
            if self._collecting is not None:
                self._collecting.setdefault(unit.names[name], []).append(Dense(_full(g)))

        return record


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
