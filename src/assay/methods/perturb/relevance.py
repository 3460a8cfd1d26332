"""How much each input feature matters to a model's decisions: layer-wise relevance propagation, released with noise.

Propagation hands the score of the predicted class back layer by layer to the input features (AFRRS, Eq. 4-7; captum
does the work). That gives one map per record. The average map is released with Laplace noise (Eq. 9).

`private_relevance` clips each record's map to l1 norm 1, so that one record more or less moves the sum by at most 1.
Laplace noise of scale 1/ε1 on each feature of the sum then costs ε1, whatever the number of features. (The paper
takes 2d for that 1.) Division by the number of records, which is public, and standardisation to [0, 1] come after the
noise and cost nothing.

`published_relevance` is the paper to the letter (Eq. 9-11). No ε holds for it: see `PUBLISHED_IS_NOT_PRIVATE` in
`assay.methods.perturb.explain`.
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
from assay.errors import ConfigError, UnsupportedModelError, check_above_zero, one_of
from assay.methods.perturb.explain import PUBLISHED_IS_NOT_PRIVATE

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from assay.randomness.streams import Stream

RULES = ("epsilon", "gamma", "alpha1-beta0")

_BATCH = 256
_WEIGHTED = (nn.Linear, nn.Conv2d)
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
# These layers act on each value by itself, so relevance passes through them unchanged.
_VALUEWISE = (
    *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Softplus),
    *(nn.Dropout, nn.Dropout2d, nn.Identity),
)
_ROUNDING = 1e-9  # keeps a clipped map within 1 although its norm is a rounded sum


@dataclass(frozen=True, kw_only=True)
class Propagation:
    """How relevance goes back through a layer with weights.

    Pooling and normalisation layers use the ε-rule with a negligible β. Value-wise layers pass relevance on unchanged.

    Attributes:
        rule: "epsilon" is Eq. 4: in proportion to a_q ω_qp / (z_p ± β), where β has the sign of z_p. (We read the
            paper's z_q in the condition as z_p.) "gamma" and "alpha1-beta0" are captum's, with the same β. They favour
            positive contributions.
        beta: β.

    Raises:
        ConfigError: there is no such rule, or β is not a finite number above 0.
    """

    rule: str = "epsilon"
    beta: float = 0.01

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError("rule", self.rule, one_of(self.rule, RULES))
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise ConfigError("beta", self.beta, "a finite number above 0: without it relevance is divided by zero")

    def maps(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """The relevance of every input feature to the score of the predicted class: one unbounded map per record.

        A record's map depends on that record and the model only, because what runs is a chain of layers that treat
        each record by itself. The model does not change.

        Raises:
            UnsupportedModelError: the model is not such a chain; the error names the layer.
        """
        return self.maps_of_chain(layer_chain(model, inputs), inputs)

    def maps_of_chain(self, chain: nn.Sequential, inputs: Tensor) -> Tensor:
        """As `maps`, for a model that `layer_chain` has taken apart."""
        from captum.attr import LRP  # takes a second to import

        with torch.no_grad():
            predicted = chain(inputs).argmax(1)
        for layer in chain:
            layer.rule = self._rule(layer)  # captum removes rules after use
        inputs = inputs.detach().clone().requires_grad_()
        maps: Tensor = LRP(chain).attribute(inputs, target=predicted)
        return maps.detach()

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
    """Released: the relevance of each feature, and its cost.

    Attributes:
        values: in the shape of one record, standardised to [0, 1]. `published_relevance` standardises before the noise,
            so its values may lie outside.
        scale: the scale of the Laplace noise on the average over the records; in `private_relevance` before
            standardisation.
        event: what it cost.
        reason: why there is no ε, if there is none.
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
    """Release the average relevance over `data`, at a cost of ε in addition to that of the model.

    The event is relative to what one record contributes, as everywhere: where neighbours replace a record, the
    accountant doubles the shift.

    Args:
        model: the network whose decisions are explained.
        data: the private records.
        epsilon: ε1.
        model_cost: `PUBLIC_MODEL` for a model that never saw these records, otherwise the event of its training. A
            `NonPrivateDpEvent` makes the whole non-private.
        stream: the random numbers.
        propagation: how relevance is propagated; Eq. 4 by default.
        device: where to compute.

    Raises:
        ConfigError: ε is not above 0, or there are no records.
        UnsupportedModelError: relevance cannot be propagated through this model.
    """
    check_above_zero("epsilon1", epsilon)
    events.check(model_cost)
    total, records = _sum_of_maps(model, data, propagation or Propagation(), device, bounded=True)
    noisy = total + stream.laplace(total.shape, dtype=torch.float64, device="cpu") / epsilon
    leaks = any(isinstance(event, NonPrivateDpEvent) for event, _ in events.flatten(model_cost))
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
    """Eq. 9-11: the standardised average of unbounded maps plus Lap(Δ_R/ε1), Δ_R = 2d/|D|. Claims ε1; no ε holds."""
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
    """Each record's map within l1 norm 1, in float64. A map that is not finite counts as zeros."""
    flat = maps.double().flatten(1)
    flat = flat * flat.isfinite().all(1, keepdim=True)
    flat = flat.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    # Two divisions, so that sums near the largest number do not overflow.
    flat = flat / flat.abs().amax(1, keepdim=True).clamp(min=1.0)
    norms = flat.abs().sum(1, keepdim=True) * (1 + _ROUNDING)
    return (flat / norms.clamp(min=1.0)).view(maps.shape)


def _sum_of_maps(
    model: nn.Module, data: Dataset[Any], how: Propagation, device: torch.device | str, *, bounded: bool
) -> tuple[Tensor, int]:
    """The sum of the records' maps, on the CPU in float64, and the number of records."""
    records = Records(data, device)
    if len(records) == 0:
        raise ConfigError("data", "0 records", "at least one record")
    total: Tensor | None = None
    chain: nn.Sequential | None = None
    for inputs in _inputs(records):
        chain = chain if chain is not None else layer_chain(model, inputs)
        maps = how.maps_of_chain(chain, inputs)
        batch = (bounded_maps(maps) if bounded else maps.double()).sum(0).cpu()
        total = batch if total is None else total + batch
    assert total is not None
    return total, len(records)


def _inputs(records: Records) -> Iterator[Tensor]:
    for start in range(0, len(records), _BATCH):
        yield records.gather(torch.arange(start, min(start + _BATCH, len(records))))[0]


def _standardised(values: Tensor) -> Tensor:
    """(R - min)/(max - min), or zeros where all values are equal."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


class _PassOn(nn.Module):
    """A value-wise or reshaping layer, hidden from captum, which would treat some of these in another way."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._held = (layer,)

    def forward(self, x: Tensor) -> Tensor:
        # A layer may return its input itself. captum's two hooks would then run on one tensor, in the wrong order.
        result: Tensor = self._held[0](x).clone()
        return result


def _passing_rule() -> Any:
    from captum.attr._utils.lrp_rules import EpsilonRule

    class PassOnRule(EpsilonRule):  # type: ignore[misc]
        """Each input value has the relevance of its output value."""

        def _create_backward_hook_input(self, inputs: Tensor) -> Any:
            return lambda grad: self.relevance_output[grad.device].reshape(inputs.shape)

    return PassOnRule()


def layer_chain(model: nn.Module, inputs: Tensor) -> nn.Sequential:
    """A copy of the model as a chain of layers, each of a type known to treat every record by itself.

    Guarantee: relevance is computed on the chain alone, so no record's map depends on another record. The chain must
    agree with the model on `inputs`, because what a model does between its layers is not in the chain.

    Raises:
        UnsupportedModelError: the model is not a chain of such layers.
    """
    model = copy.deepcopy(model).to(inputs.device).eval().requires_grad_(False)
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]  # relevance needs the values it would overwrite
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
            f"{type(model).__name__} is not a chain of its layers (branches that are added, activations called as "
            "functions, …): relevance goes back through layers only. Make activations modules, or explain another model"
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
