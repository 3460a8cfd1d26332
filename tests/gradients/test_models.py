"""Whole networks: those that Assay knows by name, partly frozen ones, and losses of every kind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.gradients.engine import Engine
from assay.models import ModelInfo, available, build

from .oracle import Loss, agree, flat_norms, flat_sum

INFOS = available()


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


@pytest.mark.parametrize("info", [info for info in INFOS if info.name != "resnet18"], ids=lambda info: info.name)
def test_named_model(info: ModelInfo) -> None:
    # resnet18 is resnet20 with eleven million parameters
    shape = (3, info.smallest_side, info.smallest_side) if info.input_rank == 3 else (7,)
    model = build(info.name, input_shape=shape, classes=4)
    agree(model, torch.randn(3, *shape), torch.tensor([0, 3, 1]), cross_entropy)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(3, 6, 3),
        nn.GroupNorm(2, 6),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(24, 8),
        nn.LayerNorm(8),
        nn.ReLU(),
        nn.Linear(8, 4),
    )


LOSSES: dict[str, tuple[Loss, Tensor]] = {
    "cross entropy": (cross_entropy, torch.tensor([0, 3, 1, 1])),
    "smoothed": (lambda o, t: F.cross_entropy(o, t, reduction="none", label_smoothing=0.1), torch.tensor([0, 3, 1, 1])),
    "squared error": (lambda o, t: F.mse_loss(o, t, reduction="none").mean(1), torch.randn(4, 4)),
    "absolute error": (lambda o, t: F.l1_loss(o, t, reduction="none").sum(1), torch.randn(4, 4)),
    "binary": (lambda o, t: F.binary_cross_entropy_with_logits(o, t, reduction="none").mean(1), torch.rand(4, 4)),
    "divergence": (
        lambda o, t: F.kl_div(o.log_softmax(1), t, reduction="none").sum(1),
        torch.softmax(torch.randn(4, 4), 1),
    ),
    "own, weighted by the target": (lambda o, t: t[:, 0].exp() * (o.exp().sum(1) + o.prod(1)), torch.randn(4, 4)),
    "of some outputs": (lambda o, t: o[:, 1] * t[:, 0], torch.randn(4, 4)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    loss, y = LOSSES[name]
    agree(network(), torch.randn(4, 3, 6), y.double() if y.is_floating_point() else y, loss)


def test_record_whose_loss_is_constant_has_gradient_zero() -> None:
    model = network()
    engine = Engine(model)
    for _ in range(2):
        grads = engine.collect(model(torch.randn(4, 3, 6)).square().sum(1) * torch.tensor([1.0, 0.0, 2.0, 1.0]))
        norms = flat_norms(grads)
        assert norms[1] < 1e-12
        assert (norms[[0, 2, 3]] > 0).all()


def test_parameter_that_the_loss_does_not_reach() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.ignored = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.ignored(x)
            out: Tensor = self.used(x)
            return out

    agree(Unused(), torch.randn(4, 5))


@pytest.mark.parametrize("single", [True, False], ids=["one layer", "network"])
def test_biases_only(single: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 4)) if single else network()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    agree(model, torch.randn(4, 6) if single else torch.randn(4, 3, 6))


def test_weights_only() -> None:
    model = network()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("weight"))
    agree(model, torch.randn(4, 3, 6))


@pytest.mark.parametrize("frozen", [slice(0, 2), slice(0, 5), slice(4, 6), slice(5, 8)], ids=str)
def test_frozen_part(frozen: slice) -> None:
    model = network()
    model[frozen].requires_grad_(False)
    agree(model, torch.randn(4, 3, 6))


def test_no_gradient_flows_into_a_frozen_beginning() -> None:
    model = network()
    model[:5].requires_grad_(False)
    engine = Engine(model)
    seen = []
    model[4].register_forward_hook(lambda module, inputs, output: seen.append(output))
    for _ in range(2):
        engine.collect(cross_entropy(model(torch.randn(4, 3, 6)), torch.tensor([0, 3, 1, 1])))
    assert not any(output.requires_grad for output in seen)


@pytest.mark.parametrize("record", [(6,), (5, 6)], ids=str)
def test_half_precision_is_clipped_in_single(record: tuple[int, ...]) -> None:
    """A model in bfloat16 is accepted, and what is clipped is float32, near what a float32 model would give."""
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    x = torch.randn(8, *record)
    sums = []
    for dtype in (torch.float32, torch.bfloat16):
        engine = Engine(model.to(dtype))
        for _ in range(2):
            grads = engine.collect(model(x.to(dtype)).float().flatten(1).square().sum(1))
            norms = flat_norms(grads)
            assert norms.dtype == torch.float32
            sums.append(torch.cat([g.flatten() for g in flat_sum(grads, 1 / norms).values()]))
        engine.detach()
    assert torch.equal(sums[0], sums[1])
    for low in sums[2:]:
        assert low.dtype == torch.float32
        assert float((low - sums[0]).norm()) < 0.05 * float(sums[0].norm())


def test_autocast_is_accepted() -> None:
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    engine = Engine(model)
    x = torch.randn(8, 6)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            losses = model(x).float().square().sum(1)
        grads = engine.collect(losses)
        clipped = flat_sum(grads, 1 / flat_norms(grads))
        assert all(g.dtype == torch.float32 for g in clipped.values())
