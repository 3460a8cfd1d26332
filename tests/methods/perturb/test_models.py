"""The networks of Tables 1 and 2."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from assay.models import ModelInfo
from assay.models.afrrs import MODELS

EVERY = pytest.mark.parametrize("info", MODELS, ids=[info.name for info in MODELS])


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        # 16·8²+16, 32·16·4²+32; sides 28→14→13→5→4: 32·4²·32+32; 32·10
        ("afrrs-mnist", (1, 28, 28), 1_040 + 8_224 + 16_416 + 320),
        # 32·3·3²+32, 64·32·3²+64, 128·64·4²+128, 256·128·4²+256; sides 32→30→29→27→26→23→22→19: 256·19²·32+32; 32·10
        ("afrrs-cifar10", (3, 32, 32), 896 + 18_496 + 131_200 + 524_544 + 2_957_344 + 320),
    ],
)
def test_sizes(name: str, shape: tuple[int, ...], expected: int) -> None:
    (info,) = [info for info in MODELS if info.name == name]
    with torch.device("meta"):
        model = info.make(shape, 10)
        assert model(torch.zeros(2, *shape)).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) == expected


@EVERY
def test_smallest_side(info: ModelInfo) -> None:
    side = info.smallest_side
    model = info.make((1, side, side), 3)
    assert model(torch.rand(0, 1, side, side)).shape == (0, 3)
    with pytest.raises(RuntimeError):
        info.make((1, side - 1, side - 1), 3)


@EVERY
def test_the_last_hidden_layer_is_within_the_unit_interval(info: ModelInfo) -> None:
    model = info.make((1, 16, 16), 3)
    assert isinstance(model.head.act1, nn.Sigmoid)
    assert model.head.fc2.bias is None
