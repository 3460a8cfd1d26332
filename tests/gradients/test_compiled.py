"""Models under `torch.compile`: the same gradients; what lies between trained layers is compiled."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch import Tensor, nn
from torch._dynamo.utils import counters

from assay.errors import UnsupportedModelError
from assay.gradients.engine import Engine

from .oracle import flat_norms, flat_sum, squared_error

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
HOW = [("wrapped", "aot_eager"), ("in place", "aot_eager"), pytest.param("wrapped", "inductor", marks=needs_compiler)]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.inner, self.norm, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sigmoid(self.base(x)) * x
        h = self.norm(h + torch.tanh(self.inner(h)) * 2 - 1)
        out: Tensor = self.head(h * torch.sigmoid(h))
        return out


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with torch._inductor.config.patch(compile_threads=1):  # a pool of processes takes longer than what it does
        yield


def _compiled(model: nn.Module, how: str, backend: str) -> nn.Module:
    if how == "in place":
        model.compile(backend=backend)
        return model
    return torch.compile(model, backend=backend)  # type: ignore[return-value]


@pytest.mark.parametrize(("how", "backend"), HOW)
def test_compiled_model(how: str, backend: str) -> None:
    plain = Residual().double()
    model = _compiled(copy.deepcopy(plain), how, backend)
    engines = [Engine(plain), Engine(model)]
    x = torch.randn(5, 4, 8, dtype=torch.float64)
    sizes = (5,) if backend == "inductor" else (5, 4, 3)  # its compiler takes seconds for another size
    for rows in map(slice, sizes):
        found = []
        for network, engine in zip((plain, model), engines, strict=True):
            grads = engine.collect(squared_error(network(x[rows]), torch.ones(()).double()))
            norms = flat_norms(grads)
            found.append((norms, torch.cat([g.flatten() for g in flat_sum(grads, 1 / norms).values()])))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert counters["stats"]["calls_captured"] >= 5  # the frozen layer and the functions between


def test_compiled_model_that_mixes_records_is_refused() -> None:
    class Centred(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - x.mean(0, keepdim=True))

    model = torch.compile(Centred(), backend="aot_eager")
    engine = Engine(model)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match="mixes records"):
        engine.collect(squared_error(model(torch.randn(5, 4, 8)), torch.zeros(())))
