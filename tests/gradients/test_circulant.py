"""Per-record gradients of block-circulant layers, in each of the forms they are kept in."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import assay.gradients.rules.circulant
from assay.gradients.clipping import Flat
from assay.gradients.engine import Engine
from assay.gradients.rules.circulant import Positions, circulant
from assay.gradients.rules.spectra import Correlations
from assay.gradients.uses.base import Dense
from assay.models import build
from assay.models.circulant import BlockCirculantLinear, replace_linear

from .oracle import agree, flat_norms, flat_sum
from .test_nonfinite import others_are_untouched
from .test_sensitivity import SLACK, Clipped, cancelling, repeated

FORMS = {
    "one position": ((3, 1), 40, 30, 4, Correlations),
    "many positions: kept": ((3, 20), 12, 10, 4, Dense),
    "few positions, many blocks: factors": ((3, 2), 40, 36, 4, Positions),
}


@settings(max_examples=60)
@given(data=st.data())
def test_any_sizes(data: st.DataObject) -> None:
    draw = data.draw
    sizes = [draw(st.integers(1, 24)) for _ in range(3)]
    blocks = [draw(st.integers(1, max(pair))) for pair in (sizes[:2], sizes[1:])]
    lead = draw(st.sampled_from([(), (1,), (2,), (7,), (2, 3)]))
    model = nn.Sequential(
        BlockCirculantLinear(sizes[0], sizes[1], blocks[0], bias=draw(st.booleans())),
        nn.Tanh(),
        BlockCirculantLinear(sizes[1], sizes[2], blocks[1], bias=draw(st.booleans())),
    )
    agree(model, torch.randn(4, *lead, sizes[0]))


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    (records, positions), inputs, outputs, block, kind = FORMS[form]
    x = torch.randn(records, positions, inputs // block, block)
    assert isinstance(circulant(x, torch.randn(records, positions, -(-outputs // block), block)), kind)
    agree(nn.Sequential(BlockCirculantLinear(inputs, outputs, block)), torch.randn(records, positions, inputs))


def test_more_records_than_fit_into_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assay.gradients.rules.circulant, "_CHUNK_ELEMENTS", 3000)  # two records of 1440 elements
    agree(nn.Sequential(BlockCirculantLinear(40, 36, 1, bias=False)), torch.randn(5, 2, 40))


def test_lenet_with_replaced_layers() -> None:
    model = build("lenet5", input_shape=(1, 12, 12), classes=10)
    replace_linear(model, 16)
    agree(model, torch.randn(5, 1, 12, 12))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(6, 8), (6, 7)])
def test_in_place_activations(sizes: tuple[int, int], bias: bool) -> None:
    inputs, outputs = sizes
    model = nn.Sequential(
        BlockCirculantLinear(inputs, outputs, 4, bias=bias),
        nn.ReLU(inplace=True),
        BlockCirculantLinear(outputs, outputs, 4, bias=bias),
        nn.ReLU(inplace=True),
    )
    agree(model, torch.randn(4, inputs))
    agree(model, torch.randn(4, 3, inputs))


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_one_parameter_frozen(frozen: str) -> None:
    model = nn.Sequential(BlockCirculantLinear(6, 5, 4))
    model[0].get_parameter(frozen).requires_grad_(False)
    agree(model, torch.randn(4, 6))


class Twice(nn.Module):
    """One layer, used twice in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = BlockCirculantLinear(6, 6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cell(self.cell(x).tanh())
        return out


def test_one_layer_used_twice() -> None:
    agree(Twice(), torch.randn(4, 6))
    agree(Twice(), torch.randn(4, 3, 6))


def test_use_of_the_weight_outside() -> None:
    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = BlockCirculantLinear(6, 4, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x) + x @ self.layer.dense().t()
            return out

    agree(Outside(), torch.randn(3, 6))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_records_that_are_not_finite(form: str, dtype: torch.dtype, value: float) -> None:
    (_, positions), inputs, outputs, block, _ = FORMS[form]
    model = nn.Sequential(BlockCirculantLinear(inputs, outputs, block), nn.Tanh()).to(dtype)
    good = torch.randn(5, positions, inputs, dtype=dtype)
    spoiled, scale = good.clone(), torch.ones(5, dtype=dtype)
    spoiled[1].view(-1)[3] = value
    scale[4] = value
    others_are_untouched(model, good, spoiled, scale, [1, 4])


def signals(records: int, positions: int, blocks: int, size: int, kind: str) -> Tensor:
    """Blocks whose spectra are white, flat, or at one frequency.

    Two signals at different frequencies have a correlation of nothing but their own rounding, which a transform drowns.
    """
    if kind == "white":
        return torch.randn(records, positions, blocks, size)
    step = torch.arange(size)
    if kind == "point":
        return (step == 0) * torch.rand(records, positions, blocks, 1).add(0.5)
    turns = {"constant": 0, "slow": 1, "fast": size // 2 - 1}[kind]
    phase = torch.rand(records, positions, 1, 1) * math.tau if turns else torch.zeros(())
    amplitude = torch.rand(records, positions, blocks, 1).add(0.5)
    return amplitude * torch.cos(math.tau * turns * step / size + phase)


KINDS = ["white", "constant", "slow", "fast", "point"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind_x", KINDS)
@pytest.mark.parametrize("kind_g", KINDS)
@pytest.mark.parametrize("block", [1, 7, 8, 17, 64])
def test_norms_are_never_too_small_in_float32(form: str, kind_x: str, kind_g: str, block: int) -> None:
    """Not below the exact norm, nor below that of what is added up; and not much above where nothing cancels."""
    (_, positions), *_ = FORMS[form]
    blocks = {"few positions, many blocks: factors": 9}.get(form, 2)
    x, g = (signals(20, positions, blocks, block, kind) for kind in (kind_x, kind_g))
    use, exact = circulant(x, g), circulant(x.double(), g.double()).per_record()
    norms, sure = use.sq_norm().double().sqrt(), exact.flatten(1).norm(dim=1)
    one_by_one = torch.stack([use.weighted_sum(row.unsqueeze(1)) for row in torch.eye(20)])
    if not isinstance(use, Dense):  # which holds rounded gradients, and is exact about those
        assert (norms >= sure).all()
    assert (norms >= one_by_one.double().flatten(1).norm(dim=1)).all()
    if kind_x == kind_g == "white":
        assert (norms <= sure * (1 + 1e-3)).all()


@settings(max_examples=25)
@given(data=st.data())
def test_one_record_moves_the_sum_by_at_most_the_bound(data: st.DataObject) -> None:
    draw = data.draw
    form = draw(st.sampled_from(sorted(FORMS)))
    (_, positions), inputs, outputs, block, _ = FORMS[form]
    torch.manual_seed(draw(st.integers(0, 2**31)))
    clipped = Clipped(BlockCirculantLinear(inputs, outputs, block), Flat(bound=0.3), (positions, inputs))
    x, slopes = torch.randn(3, positions, inputs), torch.randn(3, positions, outputs)
    for i in range(3):
        x[i] *= 10.0 ** draw(st.floats(-20, 20))
        slopes[i] *= 10.0 ** draw(st.floats(-20, 20))
    assert max(clipped.moves(x, slopes)) <= 0.3 * SLACK


@pytest.mark.parametrize("rest", [0.0, 1e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
@pytest.mark.parametrize(("length", "inputs", "outputs", "block"), [(2, 64, 64, 8), (2, 300, 300, 20), (64, 12, 6, 4)])
def test_cancelling_positions(length: int, inputs: int, outputs: int, block: int, size: float, rest: float) -> None:
    clipped = Clipped(BlockCirculantLinear(inputs, outputs, block, bias=False), Flat(bound=0.01), (length, inputs))
    x = repeated((6, length, inputs), 1, rest)
    assert max(clipped.moves(x, cancelling((6, length, outputs), 1, size, rest))) <= 0.01 * SLACK


def test_factors_one_tiny_and_one_huge() -> None:
    """The power of g underflows, that of x nearly overflows, and the gradient is an ordinary one."""
    for length in (1, 2):
        clipped = Clipped(BlockCirculantLinear(4, 3000, 4, bias=False), Flat(bound=1e-3), (length, 4))
        x, slopes = torch.full((1, length, 4), 4e18), torch.full((1, length, 3000), 1e-23)
        assert 0.0 < float(clipped(x, slopes).norm()) <= 1e-3 * SLACK


def test_a_record_without_gradient_counts_for_nothing() -> None:
    model = nn.Sequential(BlockCirculantLinear(6, 4, 4))
    engine = Engine(model)
    for _ in range(2):
        grads = engine.collect(model(torch.randn(3, 6)).square().sum(1) * torch.tensor([1.0, 0.0, 1.0]))
        assert float(flat_norms(grads)[1]) < 1e-12
        assert all(g.isfinite().all() for g in flat_sum(grads, torch.ones(3)).values())
