"""Convolutions with standardised kernels: what they compute, and each record's gradient through the standardisation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import assay.gradients.uses.convolution
from assay.errors import ConfigError
from assay.gradients.clipping import Flat
from assay.gradients.engine import Engine
from assay.gradients.rules.layers import RULES
from assay.gradients.rules.standardised import Projected, through_standardising
from assay.gradients.uses.base import Dense
from assay.gradients.uses.convolution import ConvShape
from assay.models.standardised import StandardisedConv2d, standardised

from .oracle import agree, flat_norms, flat_sum, squared_error
from .test_sensitivity import SLACK, Clipped, cancelling, repeated

KEPT = (lambda: StandardisedConv2d(3, 4, 3, padding=1), (3, 6, 6))
LARGE = (lambda: StandardisedConv2d(12, 12, 5, padding=2), (12, 4, 4))
FORMS = {"kept": (*KEPT, Dense), "in pieces": (*LARGE, Projected)}


def test_kernels_have_mean_zero_and_length_one() -> None:
    kernel = standardised(torch.randn(5, 3, 3, 3, dtype=torch.float64) * 7 + 2).flatten(1)
    torch.testing.assert_close(kernel.mean(1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(kernel.var(1, correction=0), torch.full((5,), 1 / 27, dtype=torch.float64))
    layer = StandardisedConv2d(3, 5, 3, stride=2, padding=1)
    x = torch.randn(2, 3, 8, 8)
    expected = nn.functional.conv2d(x, standardised(layer.weight), layer.bias, stride=2, padding=1)
    assert torch.equal(layer(x), expected)


def test_kernels_with_nothing_to_standardise_are_refused() -> None:
    with pytest.raises(ConfigError, match="three weights or more"):
        StandardisedConv2d(1, 4, (1, 2))
    with pytest.raises(ConfigError, match="three weights or more"):
        StandardisedConv2d(4, 4, 1, groups=4)


@settings(max_examples=40)
@given(data=st.data())
def test_any_geometry(data: st.DataObject) -> None:
    draw = data.draw
    groups = draw(st.sampled_from([1, 1, 2]))
    inputs, outputs = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    layer = StandardisedConv2d(
        inputs,
        outputs,
        draw(st.sampled_from([2, 3, (1, 3), (3, 2)])),
        stride=draw(st.sampled_from([1, 2, (2, 1)])),
        padding=draw(st.sampled_from([0, 1, (1, 0)])),
        dilation=draw(st.sampled_from([1, 2])),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "circular"])),
    )
    agree(nn.Sequential(layer, nn.Tanh()), torch.randn(4, inputs, 7, 6))


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape, kind = FORMS[form]
    layer = make()
    x = torch.randn(5, *shape)
    geometry = ConvShape(layer.weight.shape, layer.stride, layer.padding, layer.dilation, layer.groups)
    assert isinstance(through_standardising(layer.weight, geometry, x, torch.randn(5, *layer(x).shape[1:])), kind)
    monkeypatch.setattr(
        assay.gradients.uses.convolution, "_CHUNK_ELEMENTS", 2 * layer.weight.numel()
    )  # two records a piece
    agree(nn.Sequential(layer, nn.GroupNorm(2, layer.out_channels), nn.ReLU(), make_next(layer)), x)


def make_next(layer: nn.Conv2d) -> nn.Module:
    return StandardisedConv2d(layer.out_channels, 3, 3, bias=False)


@pytest.mark.parametrize("form", FORMS)
def test_kernels_too_short_to_be_stretched(form: str) -> None:
    """One channel at a constant, one just below the least length, the others as they are."""
    make, shape, _ = FORMS[form]
    layer = make()
    with torch.no_grad():
        layer.weight[0] = 3.0
        layer.weight[1] *= 0.009 / (layer.weight[1] - layer.weight[1].mean()).norm()
    agree(nn.Sequential(layer, nn.Tanh()), torch.randn(4, *shape))


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_one_parameter_frozen(frozen: str) -> None:
    layer = StandardisedConv2d(3, 4, 3)
    layer.get_parameter(frozen).requires_grad_(False)
    agree(nn.Sequential(layer), torch.randn(4, 3, 6, 6))


@pytest.mark.parametrize("form", FORMS)
def test_the_rule_says_what_the_general_way_says(form: str) -> None:
    make, shape, _ = FORMS[form]
    model, x = nn.Sequential(make(), nn.Tanh()).double(), torch.randn(4, *shape, dtype=torch.float64)
    found = []
    for rules in (RULES, {kind: rule for kind, rule in RULES.items() if kind is not StandardisedConv2d}):
        engine = Engine(model, rules)
        assert len(engine.expanded()) == (rules is not RULES)
        output = model(x)
        grads = engine.collect(squared_error(output, torch.zeros_like(output)))
        norms = flat_norms(grads)
        found.append((norms, flat_sum(grads, torch.arange(4.0, dtype=torch.float64))))
        engine.detach()
    (norms, sums), (slow_norms, slow_sums) = found
    torch.testing.assert_close(norms, slow_norms, rtol=1e-10, atol=0)
    for name, value in sums.items():
        torch.testing.assert_close(value, slow_sums[name], rtol=1e-10, atol=1e-10)


def test_one_layer_used_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = StandardisedConv2d(12, 12, 5, padding=2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.cell(self.cell(x).tanh())
            return out

    agree(Twice(), torch.randn(4, 12, 4, 4))


@pytest.mark.parametrize("rest", [0.0, 1e-7, 1e-4])
@pytest.mark.parametrize("size", [1.0, 1e6])
@pytest.mark.parametrize("form", FORMS)
def test_records_whose_positions_cancel(form: str, size: float, rest: float) -> None:
    make, shape, _ = FORMS[form]
    layer = make()
    clipped = Clipped(nn.Sequential(layer), Flat(bound=0.01), shape)
    x = repeated((6, *shape), 2, rest)
    slopes = cancelling((6, layer.out_channels, *shape[1:]), 2, size, rest)
    assert max(clipped.moves(x, slopes)) <= 0.01 * SLACK


@pytest.mark.parametrize("form", FORMS)
def test_gradients_along_what_standardising_takes_away(form: str) -> None:
    """All that a record says is along the mean and the length: the gradient is nothing but rounding, and bounded."""
    make, shape, _ = FORMS[form]
    layer = make()
    clipped = Clipped(nn.Sequential(layer), Flat(bound=1e-6), shape)
    for size in (1.0, 1e4):
        for x in (torch.full((2, *shape), size), size * torch.ones(2, *shape) + torch.randn(2, *shape)):
            assert max(clipped.moves(x, layer(x).detach())) <= 1e-6 * SLACK
