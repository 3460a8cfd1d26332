"""Views of a record are one record: its gradient is that of the mean loss over its views, to the definition."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from assay.gradients.engine import Engine
from assay.models import ModelInfo, available, build
from assay.models.circulant import BlockCirculantLinear

from .oracle import TOLERANCE, flat_norms, flat_sum, squared_error, trained, weighted, whole_norms
from .reference import per_record_gradients

VIEWS = 3


class Tied(nn.Module):
    """A table that is used for reading and for scoring."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.score = nn.Linear(4, 9, bias=False)
        self.score.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.score(self.table(x))


def agree_on_views(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model = trained(copy.deepcopy(model))
    rows = per_record_gradients(model, squared_error, x, y, batched=False)
    expected = {name: g.unflatten(0, (-1, VIEWS)).mean(1) for name, g in rows.items()}
    records = len(x) // VIEWS
    weights = torch.rand(records, dtype=torch.float64)
    engine = Engine(model)
    for _ in range(2):  # with the proof of the first batch, and without
        grads = engine.collect(squared_error(model(x), y) / VIEWS, VIEWS)
        assert grads.records == records
        norms = flat_norms(grads)
        assert norms.shape == (records,)
        torch.testing.assert_close(norms, whole_norms(expected), rtol=1e-7, atol=1e-9)
        assert bool((norms >= whole_norms(expected) * (1 - 1e-12)).all())
        for name, total in flat_sum(grads, weights).items():
            torch.testing.assert_close(total, weighted(expected[name], weights), rtol=TOLERANCE, atol=TOLERANCE)
        for name, value in grads.per_record().items():
            torch.testing.assert_close(value, expected[name], rtol=TOLERANCE, atol=TOLERANCE)
    engine.detach()


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(5, 3), (5,)),
    "wide linear": (nn.Linear(50, 40), (50,)),
    "without bias": (nn.Linear(5, 3, bias=False), (5,)),
    "linear over positions": (nn.Linear(5, 3), (4, 5)),
    "wide linear over positions": (nn.Linear(30, 20), (2, 30)),
    "convolution": (nn.Conv2d(2, 3, 3, padding=1), (2, 6, 6)),
    "large kernels": (nn.Conv2d(16, 24, 3, stride=2, padding=1), (16, 4, 4)),
    "large grouped kernels": (nn.Conv2d(32, 32, 3, groups=2, dilation=2), (32, 6, 6)),
    "one dimension": (nn.Conv1d(24, 24, 3), (24, 5)),
    "three dimensions": (nn.Conv3d(8, 12, 2), (8, 3, 3, 3)),
    "group norm": (nn.GroupNorm(2, 4), (4, 3)),
    "layer norm": (nn.LayerNorm(6), (6,)),
    "circulant": (BlockCirculantLinear(8, 8, 4), (8,)),
    "fallback": (nn.Sequential(nn.Flatten(), nn.PReLU(6)), (6,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = LAYERS[name]
    x = torch.randn(4 * VIEWS, *shape, dtype=torch.float64)
    y = torch.randn_like(copy.deepcopy(layer).double()(x))
    agree_on_views(nn.Sequential(layer), x, y)


def test_embedding_and_tied_table() -> None:
    torch.manual_seed(0)
    x = torch.randint(9, (2 * VIEWS, 5))
    agree_on_views(nn.Sequential(nn.Embedding(9, 4)), x, torch.randn(2 * VIEWS, 5, 4, dtype=torch.float64))
    agree_on_views(Tied(), x, torch.randn(2 * VIEWS, 5, 9, dtype=torch.float64))


NAMES = ("mnist-cnn", "lenet5", "resnet20", "scatter-cnn", "ws-resnet20")


@pytest.mark.parametrize("info", [info for info in available() if info.name in NAMES], ids=lambda info: info.name)
def test_named_model(info: ModelInfo) -> None:
    torch.manual_seed(0)
    shape = (3, info.smallest_side, info.smallest_side)
    x = torch.randn(2 * VIEWS, *shape, dtype=torch.float64)
    agree_on_views(build(info.name, input_shape=shape, classes=4), x, torch.randn(2 * VIEWS, 4, dtype=torch.float64))


def test_a_view_that_is_not_a_number_drops_its_record_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 2)).double()
    x, y = torch.randn(2 * VIEWS, 3, dtype=torch.float64), torch.zeros(2 * VIEWS, 2, dtype=torch.float64)
    x[1] = torch.nan
    engine = Engine(model)
    grads = engine.collect(squared_error(model(x), y) / VIEWS, VIEWS)
    norms = flat_norms(grads)
    assert grads.nonfinite == 1
    assert norms[0] < 1e-30  # raised for safety, as that of any record without gradient
    assert norms[1] > 1e-3
    assert all(bool(v.isfinite().all()) for v in flat_sum(grads, torch.ones(2, dtype=torch.float64)).values())
    engine.detach()


def test_opposite_views_cancel_before_clipping() -> None:
    # each view's own gradient is long; that of their mean is zero, and so is the record's
    model = nn.Sequential(nn.Linear(2, 1, bias=False)).double()
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    engine = Engine(model)
    grads = engine.collect(100 * model(x)[:, 0] / 2, 2)
    assert float(flat_norms(grads)[0]) < 1e-5
    engine.detach()
