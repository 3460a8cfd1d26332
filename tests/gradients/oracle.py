"""The engine against the definition: what `agree` asserts is what clipping relies on."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from assay.gradients.engine import Engine
from assay.gradients.record_grads import RecordGrads

from .reference import per_record_gradients

Loss = Callable[[Tensor, Tensor], Tensor]
TOLERANCE = 1e-10
_NOTHING = 1e-30  # a record without gradient may have a norm that is raised above zero for safety
_FAINT = 1e-3  # a gradient that is zero but for rounding is judged on the scale of the others, times this


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """One value a record, in which every output counts with its own slope."""
    return (output - target).square().flatten(1).sum(1)


def weighted(values: Tensor, weights: Tensor) -> Tensor:
    return torch.tensordot(weights, values, 1)


def whole_norms(gradients: dict[str, Tensor]) -> Tensor:
    return torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()


def flat_norms(grads: RecordGrads) -> Tensor:
    return grads.norms([0] * grads.layers)[:, 0]


def flat_sum(grads: RecordGrads, weights: Tensor) -> dict[str, Tensor]:
    return grads.weighted_sum(weights.unsqueeze(1), [0] * grads.layers)


def trained(model: nn.Module) -> nn.Module:
    """In float64, with norm weights and biases that are not the initial ones and zeros."""
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def agree(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    loss: Loss = squared_error,
    *,
    batched: bool = True,
    measured: bool = False,
) -> None:
    """Two batches in a row, of different records and sizes, against the reference in float64.

    The attached model computes what the plain one does; norms (whole and by layer), weighted sums (with one
    weight a record, and one a record and layer) and the per-record gradients are right to 1e-10; nothing is
    left in `.grad`. With `measured` the engine computes as in runs without a seed.
    """
    model = trained(copy.deepcopy(model))
    x = x.double() if x.is_floating_point() else x
    with torch.no_grad():
        plain = model(x)
    if y is None:
        y = torch.randn_like(plain)
    expected = per_record_gradients(copy.deepcopy(model), loss, x, y, batched=batched)
    engine = Engine(model, measured=measured)
    try:
        for rows in (torch.arange(len(x)), torch.arange(len(x) - 1).flip(0)):
            output = model(x[rows])
            torch.testing.assert_close(output.detach(), plain[rows], rtol=TOLERANCE, atol=TOLERANCE)
            grads = engine.collect(loss(output, y[rows]))
            _compare(engine, grads, {name: g[rows] for name, g in expected.items()})
            assert all(p.grad is None for p in model.parameters())
    finally:
        engine.detach()


def _compare(engine: Engine, grads: RecordGrads, expected: dict[str, Tensor]) -> None:
    whole = whole_norms(expected)
    torch.testing.assert_close(flat_norms(grads), whole, rtol=TOLERANCE, atol=_NOTHING)

    layer_of = {name: engine.layers.index(name.rpartition(".")[0]) for name in expected}
    each_layer = list(range(grads.layers))
    by_layer = grads.norms(each_layer)
    for layer in each_layer:
        own = whole_norms({name: g for name, g in expected.items() if layer_of[name] == layer})
        assert ((by_layer[:, layer] - own).abs() <= TOLERANCE * own.clamp_min(_FAINT * whole) + _NOTHING).all()

    weights = torch.rand(grads.records, grads.layers, dtype=torch.float64)
    flat = flat_sum(grads, weights[:, 0])
    split = grads.weighted_sum(weights, each_layer)
    values = grads.per_record()
    assert set(flat) == set(split) == set(values) == set(expected)
    faint = _FAINT * max(float(g.abs().max()) for g in expected.values())
    for name, g in expected.items():
        allowed = TOLERANCE * max(faint, float(g.abs().max()))
        assert values[name].shape == g.shape
        assert flat[name].shape == split[name].shape == g.shape[1:]
        assert float((values[name] - g).abs().max()) <= allowed, name
        assert float((flat[name] - weighted(g, weights[:, 0])).abs().max()) <= allowed * len(g), name
        own_weights = weights[:, layer_of[name]]
        assert float((split[name] - weighted(g, own_weights)).abs().max()) <= allowed * len(g), name
    torch.testing.assert_close(flat_norms(grads), whole, rtol=TOLERANCE, atol=_NOTHING)
    assert grads.nonfinite == 0
