"""How much each input feature matters to a model's decisions: layer-wise relevance propagation, released with noise.

The score of the class that a model decides for is handed back layer by layer (afrrs.txt, Eq. 4-7; captum does the work) until it
lies on the input features: one map a record. What leaves is the average map (Eq. 9) with Laplace noise.

`private_relevance` clips each record's map to l1 norm 1, so that adding or removing a record moves the sum of maps by at most 1;
one Laplace number of scale 1/ε1 a feature, whatever the number of features, then costs ε1 (the paper takes 2d for that 1).
Division by the number of records, which is public, and standardisation to [0, 1] come after the noise and cost nothing.

`published_relevance` is the paper to the letter (Eq. 9-11). It has no ε: see `assay.methods.perturb.explain.PUBLISHED_IS_NOT_PRIVATE`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, LaplaceDpEvent, NonPrivateDpEvent
from torch import Tensor, nn

from assay.accounting import events
from assay.data.records import Records
from assay.errors import ConfigError, UnsupportedModelError, check_above_zero
from assay.methods.perturb.explain import PUBLISHED_IS_NOT_PRIVATE

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from assay.randomness.streams import Stream

RULES = ("epsilon", "gamma", "alpha1-beta0")

_BATCH = 256
_WEIGHTED = (nn.Linear, nn.Conv2d)
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
# Layers of one input and one output value each: relevance passes through them as it is.
_VALUEWISE = (
    *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Softplus),
    *(nn.Dropout, nn.Dropout2d, nn.Identity),
)
_ROUNDING = 1e-9  # a clipped map stays within 1 although its norm is a rounded sum


@dataclass(frozen=True, kw_only=True)
class Propagation:
    """How relevance is handed back through a layer with weights.

    `epsilon` is Eq. 4: in proportion to a_q ω_qp / (z_p ± β), β with the sign of z_p (the paper's z_q in the condition is taken
    for z_p). `gamma` and `alpha1-beta0` are captum's, which favour positive contributions, with the same β. Pooling and
    normalisation layers take the ε-rule with a negligible β; value-wise layers hand relevance on as it is.
    """

    rule: str = "epsilon"
    beta: float = 0.01

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError("rule", self.rule, "one of " + ", ".join(RULES))
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise ConfigError("beta", self.beta, "a finite number above 0: without it relevance is divided by zero")

    def maps(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """The relevance of every input feature to the score of the class decided for, one map a record, not bounded.

        A record's map depends on that record and the model only: the model is taken apart into a chain of layers that treat
        each record by itself, and refused by name where that is not possible. The model is left as it was.
        """
        return self._maps(_chain(model, inputs), inputs)

    def _maps(self, chain: nn.Sequential, inputs: Tensor) -> Tensor:
        from captum.attr import LRP  # takes a second to import

        with torch.no_grad():
            decided = chain(inputs).argmax(1)
        for layer in chain:
            layer.rule = self._rule(layer)  # captum takes rules off again after use
        inputs = inputs.detach().clone().requires_grad_()
        found: Tensor = LRP(chain).attribute(inputs, target=decided)
        return found.detach()

    def _rule(self, layer: nn.Module) -> Any:
        from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule, GammaRule

        if isinstance(layer, _PassOn):
            return _passing_rule()
        if type(layer) not in _WEIGHTED:
            return EpsilonRule()
        rule = {"epsilon": EpsilonRule, "gamma": GammaRule, "alpha1-beta0": Alpha1_Beta0_Rule}[self.rule]()
        rule.STABILITY_FACTOR = self.beta
        return rule


@dataclass(frozen=True, kw_only=True, eq=False)
class Relevance:
    """Released: each feature's relevance, in the shape of one record, and what it cost.

    `values` are standardised to [0, 1] (`published`: before the noise, so they may lie outside). `scale` is that of the
    Laplace noise on the average over the records, before standardisation in `private_relevance`. `reason` says why there is
    no ε, if there is none.
    """

    values: Tensor
    scale: float
    event: DpEvent
    reason: str | None = None


def private_relevance(
    model: nn.Module,
    data: Dataset[Any],
    *,
    epsilon: float,
    model_cost: DpEvent,
    stream: Stream,
    propagation: Propagation | None = None,
    device: torch.device | str = "cpu",
) -> Relevance:
    """The average relevance over `data`, for ε more than the model itself cost.

    `model_cost` is `PUBLIC_MODEL` (`assay.methods.perturb.explain`) for a model that never saw these records, the event of its training for one that was
    trained on them privately; a `NonPrivateDpEvent` makes the whole non-private. The event is relative to what one record
    contributes, as everywhere: where neighbours replace a record, the accountant doubles the shift.
    """
    check_above_zero("epsilon1", epsilon)
    events.check(model_cost)
    total, records = _sum_of_maps(model, data, propagation or Propagation(), device, bounded=True)
    noisy = total + stream.laplace(total.shape, dtype=torch.float64, device="cpu") / epsilon
    leaks = any(isinstance(part, NonPrivateDpEvent) for part, _ in events.flatten(model_cost))
    return Relevance(
        values=_standardised(noisy / records),
        scale=1 / (epsilon * records),
        event=NonPrivateDpEvent() if leaks else ComposedDpEvent([model_cost, LaplaceDpEvent(1 / epsilon)]),
        reason="the model that explains was trained on the private records without privacy" if leaks else None,
    )


def published_relevance(
    model: nn.Module,
    data: Dataset[Any],
    *,
    epsilon: float,
    stream: Stream,
    propagation: Propagation | None = None,
    device: torch.device | str = "cpu",
) -> Relevance:
    """Eq. 9-11: the average of unbounded maps, standardised, plus Lap(Δ_R/ε1) with Δ_R = 2d/|D|. Claims ε1, has no ε."""
    check_above_zero("epsilon1", epsilon)
    total, records = _sum_of_maps(model, data, propagation or Propagation(), device, bounded=False)
    scale = 2 * total.numel() / records / epsilon
    noise = stream.laplace(total.shape, dtype=torch.float64, device="cpu")
    return Relevance(
        values=_standardised(total / records) + scale * noise,
        scale=scale,
        event=NonPrivateDpEvent(),
        reason=PUBLISHED_IS_NOT_PRIVATE,
    )


def bounded_maps(maps: Tensor) -> Tensor:
    """Each record's map within l1 norm 1, in float64; a map that is not finite counts for nothing."""
    flat = maps.double().flatten(1)
    flat = flat * flat.isfinite().all(1, keepdim=True)
    flat = flat.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    # Two divisions, so that even a sum of norms near the largest number stays one.
    flat = flat / flat.abs().amax(1, keepdim=True).clamp(min=1.0)
    norms = flat.abs().sum(1, keepdim=True) * (1 + _ROUNDING)
    return (flat / norms.clamp(min=1.0)).view(maps.shape)


def _sum_of_maps(
    model: nn.Module, data: Dataset[Any], how: Propagation, device: torch.device | str, *, bounded: bool
) -> tuple[Tensor, int]:
    """Σ over the records of their maps, on the CPU in float64, and the number of records."""
    records = Records(data, device)
    if len(records) == 0:
        raise ConfigError("data", "0 records", "at least one record")
    total: Tensor | None = None
    chain: nn.Sequential | None = None
    for inputs in _inputs(records):
        chain = chain if chain is not None else _chain(model, inputs)
        maps = how._maps(chain, inputs)
        part = (bounded_maps(maps) if bounded else maps.double()).sum(0).cpu()
        total = part if total is None else total + part
    assert total is not None
    return total, len(records)


def _inputs(records: Records) -> Iterator[Tensor]:
    for start in range(0, len(records), _BATCH):
        yield records.gather(torch.arange(start, min(start + _BATCH, len(records))))[0]


def _standardised(values: Tensor) -> Tensor:
    """(R - min)/(max - min); all zeros where there is no difference."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


class _PassOn(nn.Module):
    """A value-wise layer or a reshaping one. Held out of captum's sight, which has ideas of its own about some of them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._held = (layer,)

    def forward(self, x: Tensor) -> Tensor:
        # A layer that has nothing to do returns its very input, on which captum's two hooks would meet in the wrong order.
        result: Tensor = self._held[0](x).clone()
        return result


def _passing_rule() -> Any:
    from captum.attr._utils.lrp_rules import EpsilonRule

    class PassOnRule(EpsilonRule):  # type: ignore[misc]
        """The relevance of a layer's outputs is that of its inputs, value by value."""

        def _create_backward_hook_input(self, inputs: Tensor) -> Any:
            return lambda grad: self.relevance_output[grad.device].reshape(inputs.shape)

    return PassOnRule()


def _chain(model: nn.Module, inputs: Tensor) -> nn.Sequential:
    """A copy of the model as a chain of layers, each of a type known to treat every record by itself.

    Guarantee: the chain is all that runs, so that no record's map depends on another record. It is compared with the model on
    these inputs, because what a model does between its layers (a sum of branches, a functional activation) is not in the chain.
    """
    model = copy.deepcopy(model).to(inputs.device).eval().requires_grad_(False)
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]  # it would overwrite what relevance is computed from
    calls: list[tuple[str, nn.Module, torch.Size, torch.Size]] = []

    def note(name: str) -> Any:
        def hook(module: nn.Module, given: tuple[Any, ...], result: Any) -> None:
            calls.append((name, module, given[0].shape, result.shape))

        return hook

    handles = [m.register_forward_hook(note(n)) for n, m in model.named_modules() if not list(m.children())]
    with torch.no_grad():
        expected = model(inputs)
    for handle in handles:
        handle.remove()
    layers: list[nn.Module] = []
    seen: set[nn.Module] = set()
    at = inputs.shape
    for name, module, given, result in calls:
        if module in seen:
            raise UnsupportedModelError(
                f"layer {name} is used more than once: relevance has no single way back through it"
            )
        seen.add(module)
        if given != at and given == torch.Size((at[0], math.prod(at[1:]))):
            layers.append(_PassOn(nn.Flatten()))
        layers.append(_known(name, module))
        at = result
    chain = nn.Sequential(*layers).eval()
    if not _agree(chain, inputs, expected):
        raise UnsupportedModelError(
            f"{type(model).__name__} is not a chain of its layers (branches that are added, activations called as functions, …): "
            "relevance cannot be handed back through what is no layer. Make activations modules, or explain another model"
        )
    return chain


def _agree(chain: nn.Sequential, inputs: Tensor, expected: Any) -> bool:
    if not isinstance(expected, Tensor) or expected.dim() != 2 or len(expected) != len(inputs):
        return False
    try:
        with torch.no_grad():
            got = chain(inputs)
    except RuntimeError:  # shapes that do not fit: something reshaped between the layers
        return False
    return got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def _known(name: str, layer: nn.Module) -> nn.Module:
    if type(layer) in _WEIGHTED or type(layer) in _POOLS:
        return layer
    if type(layer) is nn.BatchNorm2d and layer.running_mean is not None:
        return layer
    if type(layer) in _VALUEWISE or (type(layer) is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1):
        return _PassOn(layer)
    known = ", ".join(kind.__name__ for kind in (*_WEIGHTED, *_POOLS, nn.BatchNorm2d, nn.Flatten, *_VALUEWISE))
    raise UnsupportedModelError(
        f"layer {name} ({type(layer).__name__}) has no relevance rule; layers that have one: {known}"
    )
