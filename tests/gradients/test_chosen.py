"""Layers that see some records of the batch only: sparse mixtures of experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay import Plan, PrivateStep
from assay.errors import UnsupportedModelError
from assay.gradients.engine import Engine
from assay.randomness.streams import Seeded

from .oracle import agree, squared_error


class Experts(nn.Module):
    """Each expert sees the rows (records, tokens) that chose it, each row goes to the best two."""

    def __init__(self, *experts: nn.Module, size: int = 5, shared: bool = False, mixes: str = "") -> None:
        super().__init__()
        self.route, self.experts = nn.Linear(size, len(experts)), nn.ModuleList(experts)
        self.shared, self.mixes = shared, mixes

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2) if x.dim() < 4 else x
        scores = self.route(rows if x.dim() < 4 else rows.mean((2, 3)))
        weights, best = scores.softmax(-1).topk(2, -1)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            whose, place = (best == number).nonzero(as_tuple=True)
            if self.mixes == "capacity":
                whose, place = whose[:3], place[:3]
            chosen = rows[whose]
            if self.mixes == "centred":
                chosen = chosen - chosen.mean(0)
            if self.mixes == "sums":
                chosen = chosen.cumsum(0)
            weight = weights[whose, place].view(-1, *[1] * (rows.dim() - 1))
            out = out.index_add(0, whose, weight * expert(chosen))
        return (out + self.experts[0](rows) if self.shared else out).view_as(x)


def images(*layers: nn.Module) -> nn.Module:
    return Experts(*layers, size=2)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Experts(*(nn.Linear(5, 5) for _ in range(3))), (9, 5)),
        (Experts(*(nn.Linear(5, 5) for _ in range(3))), (6, 4, 5)),
        (Experts(*(nn.Linear(5, 5) for _ in range(3)), shared=True), (6, 4, 5)),
        (Experts(*(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 5)) for _ in range(4))), (9, 3, 5)),
        (Experts(*(nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5)) for _ in range(3))), (9, 5)),
        (images(*(nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))), (9, 2, 4, 4)),
    ],
)
def test_experts_that_see_the_rows_that_chose_them(model: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    before: nn.Module = nn.Linear(5, 5) if len(shape) < 4 else nn.Conv2d(2, 2, 1)
    agree(nn.Sequential(before, nn.Tanh(), model), torch.randn(shape), batched=False)


@pytest.mark.parametrize("mixes", ["centred", "capacity", "sums"])
def test_experts_that_mix_the_rows_that_chose_them_are_refused(mixes: str) -> None:
    for _ in range(3):
        model = nn.Sequential(nn.Linear(5, 5), Experts(*(nn.Linear(5, 5) for _ in range(3)), mixes=mixes))
        engine = Engine(model)
        losses = squared_error(model(torch.randn(16, 5)), torch.zeros(16, 5))
        with pytest.raises(UnsupportedModelError):
            engine.collect(losses)


def test_rows_of_several_records_are_found_on_every_batch() -> None:
    model = nn.Sequential(nn.Linear(5, 5), Experts(*(nn.Linear(5, 5) for _ in range(3))))
    experts: Any = model[1]
    engine = Engine(model)
    engine.collect(squared_error(model(torch.randn(16, 5)), torch.zeros(16, 5)))
    assert engine.proven
    experts.mixes = "sums"
    losses = squared_error(model(torch.randn(15, 5)), torch.zeros(15, 5))
    with pytest.raises(UnsupportedModelError):
        engine.collect(losses)


def test_a_loop_trains_a_sparse_mixture_of_experts_with_records_that_are_not_finite() -> None:
    """In some batches an expert sees nothing, one record, or as many rows as there are records."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5), Experts(*(nn.Linear(5, 5) for _ in range(6))), nn.Linear(5, 2))
    x = torch.randn(60, 5)
    x[7] = torch.nan
    plan = Plan(records=60, batch_size=5, steps=40, noise_multiplier=1.0, delta=1e-3)
    step = PrivateStep(model, plan, randomness=Seeded(0))
    for (rows,) in step.batches(torch.utils.data.TensorDataset(x)):
        step.backward(model(rows).square().sum(1))
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    assert step.taken == 40
    assert step.nonfinite > 0
    step.close()
