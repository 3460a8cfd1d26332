"""Convolutions of one to three dimensions, in every geometry and each of the ways their norms are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import grad, vmap

from assay.gradients import engine as engine_module
from assay.gradients import quickest, record_grads
from assay.gradients.engine import Engine
from assay.gradients.uses.base import Use
from assay.gradients.uses.convolution import Convolved, ConvShape, Way, convolved, ways

from .oracle import TOLERANCE, agree, flat_norms, flat_sum, squared_error, weighted

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SIDES = {1: (11,), 2: (7, 6), 3: (5, 4, 5)}


@st.composite
def geometries(draw: st.DrawFn, dims: int) -> dict[str, Any]:
    """Arguments of a convolution that fits on SIDES."""

    def each(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, most)) for _ in range(dims))

    groups, mode = (
        draw(st.sampled_from([1, 2])),
        draw(st.sampled_from(["zeros", "circular", "reflect", "replicate"])),
    )
    kernel, dilation = each(1, 3), each(1, 2)
    inp, out = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
    if draw(st.integers(0, 4)) == 0:  # depthwise, with one or two outputs a channel
        inp = groups = 3
        out = 3 * draw(st.integers(1, 2))
    padding: Any = draw(st.one_of(st.just(each(0, 2)), st.sampled_from(["valid", "same", 0, 1])))
    stride = (1,) * dims if padding == "same" else each(1, 3)
    # a window of 3 at dilation 2 covers 5 points; the shortest side has 4
    if padding in ("valid", 0) or not isinstance(padding, str):
        dilation = tuple(1 if k == 3 else d for k, d in zip(kernel, dilation, strict=True))
    return {
        "in_channels": inp,
        "out_channels": out,
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "padding_mode": mode,
        "bias": draw(st.booleans()),
    }


@pytest.mark.parametrize("dims", [1, 2, 3])
@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_geometry(dims: int, data: st.DataObject) -> None:
    arguments = data.draw(geometries(dims))
    agree(
        nn.Sequential(CONV[dims](**arguments), nn.Tanh()),
        torch.randn(3, arguments["in_channels"], *SIDES[dims]),
    )


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("padding", [0, 1, (2, 0), "same", "valid"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_padding(padding: Any, padding_mode: str, groups: int) -> None:
    conv = nn.Conv2d(4, 8, (3, 2), padding=padding, padding_mode=padding_mode, groups=groups)
    agree(nn.Sequential(conv, nn.Tanh()), torch.randn(3, 4, 6, 5))


# (channels in, out, kernel, sides): the per-record gradients against the maps they come from
WAYS = {
    "smaller: kept": (2, 3, (3, 3), (8, 8)),
    "much larger, few positions: ghost": (48, 40, (3, 3), (3, 3)),
    "one position: ghost": (40, 64, (3,), (3,)),
    "larger, but not that few positions: in pieces": (12, 12, (5, 5), (4, 4)),
    "three dimensions: ghost": (24, 32, (2, 2, 2), (2, 3, 2)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("geometry", ["plain", "strided", "dilated", "same"])
def test_each_way(way: str, groups: int, geometry: str) -> None:
    inp, out, kernel, sides = WAYS[way]
    if inp % groups or out % groups:
        inp, out = 2 * inp, 2 * out
    arguments: dict[str, Any] = {
        "plain": {"padding": tuple(k // 2 for k in kernel)},
        "strided": {"padding": tuple(k // 2 for k in kernel), "stride": 2},
        "dilated": {"padding": kernel, "dilation": 2},
        "same": {"padding": "same"},
    }[geometry]
    conv = CONV[len(kernel)](inp, out, kernel, groups=groups, **arguments)
    agree(nn.Sequential(conv, nn.Tanh()), torch.randn(3, inp, *sides))


def test_more_records_than_fit_into_one_piece() -> None:
    agree(nn.Sequential(nn.Conv2d(64, 64, 7, padding=3, bias=False)), torch.randn(22, 64, 8, 8))


def test_deep_network_of_all_ways() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 32, 3, stride=2, padding=1, groups=4),
        nn.GroupNorm(4, 32),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 64, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 3),
    )
    agree(network, torch.randn(4, 3, 12, 12))


@pytest.mark.parametrize("records", [2, 4])
@pytest.mark.parametrize("way", ["smaller: kept", "much larger, few positions: ghost"])
def test_channels_last(way: str, records: int) -> None:
    inp, out, kernel, sides = WAYS[way]
    network = nn.Sequential(nn.Conv2d(inp, out, kernel, padding=1), nn.Tanh(), nn.Conv2d(out, inp, kernel, padding=1))
    network = network.to(memory_format=torch.channels_last)
    agree(network, torch.randn(records, inp, *sides).to(memory_format=torch.channels_last))


def by_definition(shape: ConvShape, x: Tensor, g: Tensor) -> Tensor:
    """Each record's gradient of ⟨g, conv(x, W)⟩ with respect to W, by autograd."""
    conv = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}[x.dim() - 2]

    def inner(weight: Tensor, x1: Tensor, g1: Tensor) -> Tensor:
        out = conv(x1.unsqueeze(0), weight, None, shape.stride, shape.padding, shape.dilation, shape.groups)
        return (out * g1.unsqueeze(0)).sum()

    result: Tensor = vmap(grad(inner), in_dims=(None, 0, 0))(x.new_zeros(shape.weight), x, g)
    return result


@pytest.mark.parametrize("few_positions", [True, False], ids=["ghost", "in pieces"])
@pytest.mark.parametrize("dims", [1, 2, 3])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_factors_know_norm_sum_and_gradients(dims: int, few_positions: bool, data: st.DataObject) -> None:
    """`Convolved` on geometries where `convolved` might not have chosen it."""
    draw = data.draw
    groups = draw(st.sampled_from([1, 2, 3]))
    kernel, stride, dilation, padding = (
        tuple(draw(st.integers(*limits)) for _ in range(dims)) for limits in ((1, 3), (1, 3), (1, 2), (0, 2))
    )
    positions = tuple(draw(st.integers(1, 2 if few_positions else 4)) for _ in range(dims))
    channels = 16 if few_positions else 2
    # up to stride - 1 points at the far side that no window reaches
    sides = tuple(
        max(1, (n - 1) * s + d * (k - 1) + 1 - 2 * p + (draw(st.integers(0, s - 1)) if n > 1 else 0))
        for n, s, d, k, p in zip(positions, stride, dilation, kernel, padding, strict=True)
    )
    outs = tuple(
        (side + 2 * p - d * (k - 1) - 1) // s + 1
        for side, s, d, k, p in zip(sides, stride, dilation, kernel, padding, strict=True)
    )
    x = torch.randn(3, groups * channels, *sides, dtype=torch.float64)
    g = torch.randn(3, groups * channels, *outs, dtype=torch.float64)
    shape = ConvShape(torch.Size((groups * channels, channels, *kernel)), stride, padding, dilation, groups)
    expected = by_definition(shape, x, g)
    weights = torch.rand(3, dtype=torch.float64)
    squares = expected.flatten(1).square().sum(1)
    size = x.flatten(1).square().sum(1) * g.flatten(1).square().sum(1)  # where windows see padding only, squares are 0
    uses: list[Use] = [Convolved(shape, x, g), Convolved(shape, x, g, quick=True), convolved(shape, x, g)]
    uses += [way(shape, x, g) for way in ways(shape, x, g)]
    if shape.has_windows:
        last = [t.contiguous(memory_format=torch.channels_last) for t in (x, g)]
        uses += [way(shape, *last) for way in ways(shape, x, g)]
        uses += [convolved(shape, x, g, lambda *_, way=way: way) for way in ways(shape, x, g)]
    for use in uses:
        assert ((use.sq_norm() - squares).abs() <= TOLERANCE * squares + 1e-13 * size).all()
        torch.testing.assert_close(
            use.weighted_sum(weights.unsqueeze(1)), weighted(expected, weights), rtol=TOLERANCE, atol=1e-11
        )
        torch.testing.assert_close(use.per_record(), expected, rtol=TOLERANCE, atol=1e-11)


def test_a_clock_chooses_between_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says, norms and sums are the same; an engine for runs that are to be repeated never asks it."""
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 2)).double()
    x, y = torch.randn(4, 2, 8, 8, dtype=torch.float64), torch.ones((), dtype=torch.float64)
    found = {}
    for says in (None, 0, 1, 2):
        asked: list[ConvShape] = []

        def answer(shape: ConvShape, x: Tensor, g: Tensor, *, says: Any = says, asked: Any = asked) -> Way:
            asked.append(shape)
            return ways(shape, x, g)[says]

        monkeypatch.setattr(engine_module, "quickest_way", answer)
        engine = Engine(network, measured=says is not None)
        grads = engine.collect(squared_error(network(x), y))
        found[says] = (flat_norms(grads), flat_sum(grads, torch.ones(4).double())["0.weight"])
        engine.detach()
        assert len(asked) == (0 if says is None else 1)
    for says in (0, 1, 2):
        torch.testing.assert_close(found[says], found[None], rtol=TOLERANCE, atol=TOLERANCE)


def test_the_clock_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickest, "_known", {})
    shape = ConvShape(torch.Size((3, 2, 3, 3)), (1, 1), (0, 0), (1, 1), 1)
    x, g = torch.randn(4, 2, 8, 8), torch.randn(4, 3, 6, 6)
    first = record_grads.quickest_way(shape, x, g)
    monkeypatch.setattr(quickest, "quickest", lambda *_: pytest.fail("measured again"))
    assert record_grads.quickest_way(shape, x[:3], g[:3]) == first
