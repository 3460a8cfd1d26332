"""Dropout, inside a module without a rule and outside: one forward pass, one draw, and the gradient of that pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from assay.gradients.engine import Engine

from .oracle import flat_sum, squared_error, trained


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


class NoisyScale(nn.Module):
    """Dropout between a parameter and the output, so that the output shows which values were kept."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.drop = nn.Parameter(torch.randn(50)), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(x) * self.scale
        return out


def test_dropout_inside_is_drawn_once_and_anew_for_each_record() -> None:
    model = NoisyScale().double()
    engine = Engine(model)
    x = torch.ones(4, 50).double()
    for _ in range(2):
        output = model(x)
        grads = engine.collect(output.sum(1))
        kept = output.detach() / model.scale.detach()
        torch.testing.assert_close(grads.per_record()["scale"], kept, rtol=1e-12, atol=1e-12)
        assert not torch.equal(kept[0], kept[1])


DROPPING: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "outside": (lambda: nn.Sequential(nn.Linear(6, 20), nn.Dropout(0.5), nn.ReLU(), nn.Linear(20, 3)), (6,)),
    "in place": (lambda: nn.Sequential(nn.Linear(6, 20), nn.Dropout(0.5, inplace=True), nn.Linear(20, 3)), (5, 6)),
    "whole channels": (
        lambda: nn.Sequential(nn.Conv1d(6, 8, 3), nn.Dropout1d(0.5), nn.Flatten(), nn.Linear(32, 3)),
        (6, 6),
    ),
    "inside": (lambda: nn.Sequential(nn.Linear(6, 50), NoisyScale(), nn.Linear(50, 3)), (6,)),
    "attention": (Attention, (5, 6)),
    "transformer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(6, 2, 16, 0.3, batch_first=True), nn.Linear(6, 3)),
        (5, 6),
    ),
}


def standing_in(losses: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """The leaves of the losses' graph that have the memory of these parameters."""
    leaves: dict[int, Tensor] = {}
    todo, seen = [losses.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves[node.variable.data_ptr()] = node.variable
        todo += [parent for parent, _ in node.next_functions]
    return [leaves[p.data_ptr()] for p in parameters]


@pytest.mark.parametrize("name", DROPPING)
def test_sum_is_the_gradient_of_the_one_forward_pass_with_dropout(name: str) -> None:
    make, record = DROPPING[name]
    model = trained(make())
    engine = Engine(model)
    x = torch.randn(4, *record).double()
    losses = squared_error(model(x), torch.tensor(0.5).double())
    # on the first batch autograd still sees the parameters' numbers
    whole = torch.autograd.grad(losses.sum(), standing_in(losses, list(model.parameters())), retain_graph=True)
    found = flat_sum(engine.collect(losses), torch.ones(4).double())
    for total, one in zip(found.values(), whole, strict=True):
        torch.testing.assert_close(total, one, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["outside", "in place", "whole channels"])
def test_dropout_outside_draws_the_masks_it_would_draw_without_the_engine(name: str) -> None:
    make, record = DROPPING[name]
    model = trained(make())
    x = torch.randn(4, *record).double()
    torch.manual_seed(3)
    plain = squared_error(model(x), torch.tensor(0.5).double())
    whole = torch.autograd.grad(plain.sum(), list(model.parameters()))
    engine = Engine(model)
    for _ in range(2):
        torch.manual_seed(3)
        found = flat_sum(engine.collect(squared_error(model(x), torch.tensor(0.5).double())), torch.ones(4).double())
        for total, one in zip(found.values(), whole, strict=True):
            torch.testing.assert_close(total, one, rtol=1e-10, atol=1e-10)
