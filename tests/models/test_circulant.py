"""Block-circulant layers compute what their dense matrix does, and take the place of linear layers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

from assay.errors import ConfigError
from assay.models import build
from assay.models.circulant import BlockCirculantLinear, replace_linear

TOLERANCE = 1e-10


@st.composite
def layers(draw: st.DrawFn) -> BlockCirculantLinear:
    inputs, outputs = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    block = draw(st.integers(1, max(inputs, outputs)))
    torch.manual_seed(draw(st.integers(0, 1000)))
    return BlockCirculantLinear(inputs, outputs, block, bias=draw(st.booleans())).double()


@given(layer=layers(), lead=st.sampled_from([(), (3,), (2, 4), (2, 1, 3), (0,), (2, 0)]))
def test_equals_the_dense_matrix(layer: BlockCirculantLinear, lead: tuple[int, ...]) -> None:
    """Output, and gradients of input, weight and bias."""
    x = torch.randn(*lead, layer.in_features, dtype=torch.float64, requires_grad=True)
    slopes = torch.randn(*lead, layer.out_features, dtype=torch.float64)
    assert layer.dense().shape == (layer.out_features, layer.in_features)
    d = layer.block_size
    assert layer.weight.shape == (math.ceil(layer.out_features / d), math.ceil(layer.in_features / d), d)
    of = [x, *layer.parameters()]
    out, plain = layer(x), nn.functional.linear(x, layer.dense(), layer.bias)
    torch.testing.assert_close(out, plain, rtol=TOLERANCE, atol=TOLERANCE)
    found = torch.autograd.grad((out * slopes).sum(), of)
    expected = torch.autograd.grad((plain * slopes).sum(), of)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_vector_is_the_first_row() -> None:
    """Eq. 18: each row is the one above it, shifted right by one."""
    layer = BlockCirculantLinear(4, 4, 4, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(4.0).view(1, 1, 4))
    rows = [[0.0, 1.0, 2.0, 3.0], [3.0, 0.0, 1.0, 2.0], [2.0, 3.0, 0.0, 1.0], [1.0, 2.0, 3.0, 0.0]]
    assert layer.dense().tolist() == rows
    torch.testing.assert_close(layer(torch.eye(4)), torch.tensor(rows).t())


def test_blocks_are_where_the_matrix_has_them() -> None:
    layer = BlockCirculantLinear(5, 3, 2)
    matrix, weight = layer.dense(), layer.weight
    assert matrix[2, 4] == weight[1, 2, 0]
    assert matrix[0, 3] == weight[0, 1, 1]
    assert matrix[1, 2] == weight[0, 1, 1]


def test_weights_start_as_those_of_a_linear_layer() -> None:
    """Uniform on ±1/√in. The mean square of 32,768 of them is within 5.5 standard errors of 1/3 (false alarm 4e-8)."""
    torch.manual_seed(3)
    weight = BlockCirculantLinear(512, 512, 8).weight.detach() * math.sqrt(512)
    assert float(weight.abs().max()) <= 1
    spread = math.sqrt(4 / 45 / weight.numel())
    assert abs(float(weight.square().mean()) - 1 / 3) <= 5.5 * spread
    torch.manual_seed(3)
    bias = BlockCirculantLinear(100, 400, 50).bias
    assert bias is not None
    assert 0.08 < float(bias.detach().abs().max()) <= 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_precision(dtype: torch.dtype) -> None:
    """Computed in float32 and rounded."""
    layer = BlockCirculantLinear(10, 7, 4)
    x = torch.randn(3, 10).to(dtype)
    low = layer.to(dtype)(x)
    assert low.dtype == dtype
    torch.testing.assert_close(low.float(), layer.float()(x.float()), rtol=0, atol=4 * torch.finfo(dtype).eps)


def test_repr_names_the_sizes() -> None:
    text = repr(BlockCirculantLinear(6, 4, 2, bias=False))
    assert text == "BlockCirculantLinear(in_features=6, out_features=4, block_size=2, bias=False)"


@pytest.mark.parametrize(
    ("sizes", "field"),
    [((0, 4, 2), "in_features"), ((4, -1, 2), "out_features"), ((4, 4, 0), "block_size"), ((4, 6, 7), "block_size")],
)
def test_sizes_that_make_no_layer(sizes: tuple[int, int, int], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        BlockCirculantLinear(*sizes)


def test_an_input_of_another_size_is_refused() -> None:
    """Padding is for blocks that do not divide the size, not for wrong inputs."""
    with pytest.raises(ConfigError, match="last dimension 6"):
        BlockCirculantLinear(6, 4, 4)(torch.randn(2, 5))


def test_replacement_in_lenet() -> None:
    model = build("lenet5", input_shape=(1, 28, 28), classes=10).double().eval()
    assert replace_linear(model, 8) == [
        "head.fc1: Linear(400, 120) -> BlockCirculantLinear(400, 120, block 8): 48000 -> 6000 weights",
        "head.fc2: Linear(120, 84) -> BlockCirculantLinear(120, 84, block 8): 10080 -> 1320 weights",
        "head.fc3: Linear(84, 10) -> BlockCirculantLinear(84, 10, block 8): 840 -> 176 weights",
    ]
    assert not any(type(module) is nn.Linear for module in model.modules())
    layer = model.get_submodule("head.fc1")
    assert isinstance(layer, BlockCirculantLinear)
    assert layer.weight.dtype == torch.float64
    assert not layer.training
    assert model(torch.randn(2, 1, 28, 28, dtype=torch.float64)).shape == (2, 10)
    assert replace_linear(model, 8) == []


def test_a_block_may_exceed_one_size() -> None:
    model = nn.Sequential(nn.Linear(20, 3))
    assert replace_linear(model, 16) == ["0: Linear(20, 3) -> BlockCirculantLinear(20, 3, block 16): 60 -> 32 weights"]


def test_a_block_larger_than_a_layer_is_refused_and_nothing_is_changed() -> None:
    model = nn.Sequential(nn.Linear(20, 10), nn.Linear(10, 3))
    with pytest.raises(ConfigError, match=r"block_size = 16 .* at most 10.* for 1: Linear"):
        replace_linear(model, 16)
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("block", [0, -2, 2.5])
def test_a_block_size_that_is_none(block: int) -> None:
    with pytest.raises(ConfigError, match="block_size"):
        replace_linear(nn.Sequential(nn.Linear(4, 4)), block)


def test_what_is_left_alone() -> None:
    """Subclasses, parametrised layers, frozen ones."""

    class Own(nn.Linear):
        pass

    model = nn.Sequential(Own(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    parametrize.register_parametrization(model[1], "weight", nn.Tanh())
    model[2].requires_grad_(False)
    before = list(model)
    assert [line.partition(":")[0] for line in replace_linear(model, 2)] == ["3"]
    assert list(model)[:3] == before[:3]
    assert model[3].bias is None


def test_one_layer_in_two_places_stays_one() -> None:
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.Tanh(), nn.Sequential(shared))
    assert [line.partition(":")[0] for line in replace_linear(model, 3)] == ["0", "2.0"]
    assert isinstance(model[0], BlockCirculantLinear)
    assert model[0] is model[2][0]


def test_what_cannot_be_replaced_is_named() -> None:
    with pytest.raises(ConfigError, match="BlockCirculantLinear in place"):
        replace_linear(nn.Linear(4, 4), 2)
    tied = nn.ModuleDict({"table": nn.Embedding(9, 4), "head": nn.Linear(4, 9)})
    tied["head"].weight = tied["table"].weight
    with pytest.raises(ConfigError, match=r"'head'.*share"):
        replace_linear(tied, 2)
    with pytest.raises(ConfigError, match=r"'linear1'.*TransformerEncoderLayer"):
        replace_linear(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
