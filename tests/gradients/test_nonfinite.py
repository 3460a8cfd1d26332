"""A record whose gradient is NaN or Inf gives nothing, is counted, and changes nothing for the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from assay.gradients.engine import Engine
from assay.models.standardised import StandardisedConv2d

from .oracle import flat_norms

NAN, INF = float("nan"), float("inf")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(x).tanh())
        return out


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), (6,)),
    "linear on sequences, kept": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True)), (9, 6)),
    "linear on sequences, factors": (lambda: nn.Sequential(nn.Linear(6, 40), nn.Linear(40, 30)), (2, 6)),
    "convolution, kept": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 2)),
        (3, 6, 6),
    ),
    "convolution, depthwise": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.Tanh()), (3, 6, 6)),
    "convolution, ghost": (lambda: nn.Sequential(nn.Conv2d(32, 48, 3, padding=1), nn.Tanh()), (32, 3, 3)),
    "convolution, in pieces": (lambda: nn.Sequential(nn.Conv2d(12, 12, 5, padding=2), nn.Tanh()), (12, 4, 4)),
    "standardised convolution, kept": (lambda: nn.Sequential(StandardisedConv2d(3, 4, 3), nn.Tanh()), (3, 6, 6)),
    "standardised convolution, in pieces": (
        lambda: nn.Sequential(StandardisedConv2d(12, 12, 5, padding=2), nn.Tanh()),
        (12, 4, 4),
    ),
    "group norm": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)),
        (3, 6),
    ),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.Sigmoid()),
        (3, 6),
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh(), nn.RMSNorm(6), nn.Sigmoid()),
        (5, 6),
    ),
    "attention": (lambda: nn.Sequential(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)), (5, 6)),
}
EMBEDDINGS: dict[str, Callable[[], nn.Module]] = {
    "embedding": lambda: nn.Sequential(nn.Embedding(9, 5), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)),
    "tied": Tied,
}


def others_are_untouched(model: nn.Module, good: Tensor, spoiled: Tensor, scale: Tensor, bad: list[int]) -> None:
    """The spoiled batch gives what the good batch gives with the spoiled records left out of the sum."""
    dtype = next(model.parameters()).dtype
    kept = torch.ones(len(good), dtype=dtype)
    kept[bad] = 0.0
    rest, groups = kept.bool(), [0] * len(engine_layers(model))
    engine = Engine(model)
    for _ in range(2):
        clean = engine.collect(model(good).flatten(1).square().sum(1))
        found = engine.collect(model(spoiled).flatten(1).square().sum(1) * scale)
        norms, expected = flat_norms(found), flat_norms(clean)
        assert found.nonfinite == len(bad)
        assert (norms[bad] < 1e-12).all()
        near(norms[rest], expected[rest])
        weights = (1 / (1 + expected)).unsqueeze(1)
        total, sure = found.weighted_sum(weights, groups), clean.weighted_sum(weights * kept.unsqueeze(1), groups)
        values, own = found.per_record(), clean.per_record()
        for name, g in total.items():
            near(g, sure[name])
            near(values[name][rest], own[name][rest])
            assert (values[name][bad] == 0).all(), name
        assert found.nonfinite == len(bad)
    engine.detach()


def engine_layers(model: nn.Module) -> set[str]:
    return {name.rpartition(".")[0] for name, _ in model.named_parameters()}


def near(found: Tensor, expected: Tensor) -> None:
    """Equal but for the order of summation."""
    tolerance = 1e-12 if found.dtype == torch.float64 else 2e-6
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@dtypes
@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_input(name: str, value: float, dtype: torch.dtype) -> None:
    make, record = MODELS[name]
    good = torch.randn(5, *record, dtype=dtype)
    spoiled = good.clone()
    spoiled[1].view(-1)[3] = value
    spoiled[4].fill_(value)
    others_are_untouched(make().to(dtype), good, spoiled, torch.ones(5, dtype=dtype), [1, 4])


@dtypes
@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
@pytest.mark.parametrize("name", [*MODELS, *EMBEDDINGS])
def test_loss(name: str, value: float, dtype: torch.dtype) -> None:
    if name in MODELS:
        make, record = MODELS[name]
        good = torch.randn(5, *record, dtype=dtype)
    else:
        make, good = EMBEDDINGS[name], torch.randint(0, 9, (5, 4))
    scale = torch.ones(5, dtype=dtype)
    scale[0] = value
    others_are_untouched(make().to(dtype), good, good, scale, [0])


@pytest.mark.parametrize(
    "name", ["linear", "linear on sequences, kept", "linear on sequences, factors", "convolution, kept"]
)
def test_overflow(name: str) -> None:
    make, record = MODELS[name]
    good = torch.randn(5, *record)
    spoiled = good.clone()
    spoiled[2] = 1e30
    others_are_untouched(make(), good, spoiled, torch.ones(5), [2])


def test_all_records() -> None:
    model = nn.Sequential(nn.Linear(6, 3))
    engine = Engine(model)
    grads = engine.collect(model(torch.full((4, 6), NAN)).sum(1))
    norms = flat_norms(grads)
    total = grads.weighted_sum(torch.ones(4, 1), [0] * grads.layers)
    assert grads.nonfinite == 4
    assert (norms < 1e-12).all()
    assert all((g == 0).all() for g in total.values())


def test_one_layer_of_a_record_by_layer() -> None:
    """Overflow in one layer drops the whole record, not the layer: a record is counted once."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    engine = Engine(model)
    x = torch.randn(3, 6)
    for _ in range(2):
        losses = model(x).square().sum(1)
        grads = engine.collect(losses * torch.tensor([1.0, 1e38, 1.0]))
        norms = grads.norms([0, 1])
        assert grads.nonfinite == 1
        assert (norms[1] < 1e-12).all()
        assert (norms[[0, 2]] > 0).all()
