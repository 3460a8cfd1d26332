"""Correlation maps by definition, their norms from power spectra, and the kernel's gradient in their corner."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import assay.gradients.rules.spectra
from assay.errors import UnsupportedModelError
from assay.gradients.arithmetic import corner
from assay.gradients.clipping import Flat, PerLayer
from assay.gradients.engine import Engine
from assay.gradients.record_grads import RecordGrads
from assay.gradients.rules.correlation import FullCorrelationRule
from assay.gradients.rules.layers import RULES
from assay.gradients.rules.spectra import Torus
from assay.gradients.uses.base import Use
from assay.models import build
from assay.models.circulant import replace_linear

from .oracle import TOLERANCE, flat_norms, flat_sum, squared_error, trained, weighted
from .reference import per_record_gradients
from .test_convolution import CONV, SIDES, geometries
from .test_sensitivity import SLACK, cancelling, repeated

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
with_maps = pytest.mark.parametrize("maps", [False, True], ids=["corner", "maps"])


def rules(maps: bool) -> dict[type[nn.Module], Any]:
    return {**RULES, **dict.fromkeys(CONV.values(), FullCorrelationRule(maps=maps))}


def maps_by_definition(module: Conv, x: Tensor, g: Tensor) -> Tensor:
    """M[b, o, i, u] = Σ_t g[b, o, t] · x[b, i, (stride · t + u) mod sides], x padded; i within o's group."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
    sides, dims, groups = x.shape[2:], tuple(range(2, x.dim())), module.groups
    seen = [slice(0, s * n, s) for s, n in zip(module.stride, g.shape[2:], strict=True)]
    out = x.new_zeros(len(x), g.shape[1], x.shape[1] // groups, *sides)
    for u in itertools.product(*map(range, sides)):
        met = x.roll([-n for n in u], dims)[(slice(None), slice(None), *seen)].flatten(2)
        products = torch.einsum(
            "bkot,bkit->bkoi", g.flatten(2).unflatten(1, (groups, -1)), met.unflatten(1, (groups, -1))
        )
        out[(slice(None), slice(None), slice(None), *u)] = products.flatten(1, 2)
    return out


def weight_use(module: Conv, x: Tensor, g: Tensor, *, maps: bool) -> Use:
    names, use = FullCorrelationRule(maps=maps).uses(module, frozenset(["weight"]), x, g)
    assert names == ["weight"]
    return use.apart()[0]


@pytest.mark.parametrize("dims", [1, 2, 3])
@settings(max_examples=40)
@given(data=st.data())
def test_any_geometry(dims: int, data: st.DataObject) -> None:
    """Norms are those of the maps by definition, sums and gradients the maps or their corner, to 1e-10."""
    arguments = data.draw(geometries(dims))
    arguments["dilation"] = 1
    module = CONV[dims](**arguments).double()
    x = torch.randn(3, arguments["in_channels"], *SIDES[dims], dtype=torch.float64)
    g = torch.randn_like(module(x))
    model = nn.Sequential(module)
    kernel = per_record_gradients(model, lambda out, slopes: (out * slopes).flatten(1).sum(1), x, g)["0.weight"]
    whole = maps_by_definition(module, x, g)
    torch.testing.assert_close(corner(whole, module.weight.shape), kernel, rtol=TOLERANCE, atol=TOLERANCE)
    weights = torch.rand(3, dtype=torch.float64)
    for maps, expected in ((True, whole), (False, kernel)):
        use = weight_use(module, x, g, maps=maps)
        torch.testing.assert_close(use.sq_norm(), whole.flatten(1).square().sum(1), rtol=TOLERANCE, atol=0)
        torch.testing.assert_close(use.per_record(), expected, rtol=TOLERANCE, atol=TOLERANCE)
        summed = use.weighted_sum(weights.unsqueeze(1))
        torch.testing.assert_close(summed, weighted(expected, weights), rtol=TOLERANCE, atol=TOLERANCE)


def test_more_records_than_fit_into_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Conv2d(2, 3, 3, padding=1).double()
    x = torch.randn(7, 2, 5, 5, dtype=torch.float64)
    g = torch.randn_like(module(x))
    at_once = weight_use(module, x, g, maps=False).sq_norm()
    monkeypatch.setattr(assay.gradients.rules.spectra, "_PIECE", 3 * 2 * 49)
    torch.testing.assert_close(weight_use(module, x, g, maps=False).sq_norm(), at_once, rtol=1e-14, atol=0)


@with_maps
def test_dilation_is_refused(maps: bool) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, dilation=2))
    engine = Engine(model, rules(maps))
    with pytest.raises(UnsupportedModelError, match=r"Conv2d\(2, 3.*dilat.*domain=kernel"):
        engine.collect(model(torch.randn(2, 2, 8, 8)).flatten(1).sum(1))


def test_corner() -> None:
    value = torch.arange(24).view(2, 3, 4)
    assert torch.equal(corner(value, (2, 3, 4)), value)
    assert torch.equal(corner(value, (3, 2)), value[:, :, :2])
    assert torch.equal(corner(value, (1, 2, 2)), value[:1, :2, :2])
    assert torch.equal(corner(torch.tensor(3.0), ()), torch.tensor(3.0))


@with_maps
def test_a_network_through_the_engine(maps: bool) -> None:
    """LeNet with circulant layers: the first batch's proof passes; norms by layer are the maps' and the others' own."""
    model = build("lenet5", input_shape=(1, 12, 12), classes=10)
    replace_linear(model, 8)
    model = trained(model)
    x, y = torch.randn(5, 1, 12, 12).double(), torch.randn(5, 10).double()
    expected = per_record_gradients(copy.deepcopy(model), squared_error, x, y)
    sure = full_gradients(model, x, y, expected)
    engine = Engine(model, rules(maps))
    weights = torch.rand(5, dtype=torch.float64)
    for _ in range(2):
        grads = engine.collect(squared_error(model(x), y))
        by_layer = grads.norms(list(range(grads.layers)))
        for i, layer in enumerate(engine.layers):
            own = sum(g.flatten(1).square().sum(1) for name, g in sure.items() if name.rpartition(".")[0] == layer)
            torch.testing.assert_close(by_layer[:, i].square(), own, rtol=TOLERANCE, atol=0)
        for name, g in flat_sum(grads, weights).items():
            theirs = weighted(sure[name] if maps else expected[name], weights)
            torch.testing.assert_close(g, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    engine.detach()


def full_gradients(model: nn.Module, x: Tensor, y: Tensor, kernels: dict[str, Tensor]) -> dict[str, Tensor]:
    """Per-record gradients with each convolution's replaced by its maps, from hooks on the plain model."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    hooks = [
        module.register_forward_hook(lambda _m, args, out, name=name: seen.update({name: (args[0], out)}))
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d)
    ]
    losses = squared_error(model(x), y)
    slopes = torch.autograd.grad(losses.sum(), [out for _, out in seen.values()])
    for hook in hooks:
        hook.remove()
    found = dict(kernels)
    for (name, (inputs, _)), g in zip(seen.items(), slopes, strict=True):
        module = model.get_submodule(name)
        assert isinstance(module, nn.Conv2d)
        found[f"{name}.weight"] = maps_by_definition(module, inputs.detach(), g)
    return found


@with_maps
def test_use_of_the_kernel_outside_is_noticed(maps: bool) -> None:
    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.conv(x) * self.conv.weight.sum()
            return out

    model = Outside()
    with pytest.raises(UnsupportedModelError, match="parameter conv"):
        Engine(model, rules(maps)).collect(model(torch.randn(3, 1, 5, 5)).flatten(1).square().sum(1))


@with_maps
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_records_that_are_not_finite(value: float, maps: bool) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(3, 2, 3, stride=2))
    engine = Engine(model, rules(maps))
    good = torch.randn(5, 2, 6, 6)
    spoiled, scale = good.clone(), torch.ones(5)
    spoiled[1, 0, 2, 2] = value
    scale[4] = value
    kept = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    for _ in range(2):
        clean = engine.collect(model(good).square().flatten(1).sum(1))
        found = engine.collect(model(spoiled).square().flatten(1).sum(1) * scale)
        norms = flat_norms(found)
        assert found.nonfinite == 2
        assert (norms[kept == 0] < 1e-12).all()
        torch.testing.assert_close(norms[kept == 1], flat_norms(clean)[kept == 1], rtol=1e-5, atol=0)
        total, sure = flat_sum(found, torch.ones(5)), flat_sum(clean, kept)
        for name, g in total.items():
            torch.testing.assert_close(g, sure[name], rtol=1e-4, atol=1e-5 * float(sure[name].abs().max()))


def fields(kind: str, records: int, channels: int, sides: tuple[int, int]) -> Tensor:
    """Images whose spectra are white, flat, or at one frequency.

    Two images at different frequencies have a correlation of nothing but their own rounding, which a transform drowns.
    """
    if kind == "white":
        return torch.randn(records, channels, *sides)
    rows, columns = torch.meshgrid(*map(torch.arange, sides), indexing="ij")
    amplitude = torch.rand(records, channels, 1, 1).add(0.5)
    if kind == "point":
        return amplitude * ((rows == 1) & (columns == 2))
    down, across = {"constant": (0, 0), "slow": (1, 1), "fast": (sides[0] // 2, sides[1] // 2 - 1)}[kind]
    phase = torch.zeros(()) if kind == "constant" else torch.rand(records, 1, 1, 1) * math.tau
    return amplitude * torch.cos(math.tau * (down * rows / sides[0] + across * columns / sides[1]) + phase)


KINDS = ["white", "constant", "slow", "fast", "point"]
GEOMETRIES = {
    "whole turns": ((34, 34), 1, 1),  # only with a window of one are the output's waves the input's
    "power of two": ((8, 8), 1, 1),
    "window": ((12, 34), 3, 1),
    "stride": ((17, 12), 3, 2),
    "primes": ((5, 29), 3, (1, 3)),
}


@with_maps
@pytest.mark.parametrize("kind_x", KINDS)
@pytest.mark.parametrize("kind_g", KINDS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_norms_are_never_too_small_in_float32(geometry: str, kind_x: str, kind_g: str, maps: bool) -> None:
    """Not below the exact norm, nor below that of what is added up; and not much above where nothing cancels."""
    sides, kernel, stride = GEOMETRIES[geometry]
    module = nn.Conv2d(3, 4, kernel, stride=stride)
    x = fields(kind_x, 20, 3, sides)
    outs = module(x).shape[2:]
    g = fields(kind_g, 20, 4, (outs[0], outs[1]))
    use = weight_use(module, x, g, maps=maps)
    sure = weight_use(module, x.double(), g.double(), maps=True).per_record().flatten(1).norm(dim=1)
    norms = use.sq_norm().double().sqrt()
    assert (norms >= sure).all()
    one_by_one = torch.stack([use.weighted_sum(row.unsqueeze(1)) for row in torch.eye(20)])
    assert (norms >= one_by_one.double().flatten(1).norm(dim=1)).all()
    if kind_x == kind_g == "white":
        assert (norms <= sure * (1 + 1e-3)).all()


@pytest.mark.parametrize("kind", ["white", "constant", "point", "wave", "huge and small"])
def test_the_bound_on_a_transforms_rounding(kind: str) -> None:
    """With room to spare for every size up to 300, primes and powers of two among them."""
    for n in range(1, 301):
        step = torch.arange(n)
        signal = {
            "white": torch.randn(20, n),
            "constant": torch.rand(20, 1).add(0.5).expand(20, n).contiguous(),
            "point": (step == step[:, None][:20]).float(),
            "wave": torch.cos(6.283185 * step * (n // 3) / n + torch.rand(20, 1)),
            "huge and small": torch.randn(20, n) * 10.0 ** torch.randint(-6, 6, (20, n)),
        }[kind]
        torus = Torus((n,))
        sure = torus.spectrum(signal.double())
        off = (torus.spectrum(signal).to(sure.dtype) - sure).abs().square().sum(1).sqrt()
        assert (off <= torus.rounding(torch.float32) / 4 * signal.double().norm(dim=1)).all(), n


@pytest.mark.parametrize("sides", [(8, 8), (34, 34), (9, 5), (29, 30), (37, 60), (3, 4, 5)], ids=str)
def test_spectra_by_products(sides: tuple[int, ...]) -> None:
    """What the FFT gives, for signals smaller than the grid, too."""
    torus = Torus(sides)
    for signal in (torch.randn(3, 4, *sides).double(), torch.randn(3, 4, *(side - 2 for side in sides)).double()):
        assert torus.is_short(signal)
        by_fft = torch.fft.rfftn(signal, s=sides, dim=tuple(range(2, signal.dim())), norm="ortho")
        torch.testing.assert_close(torus.spectrum(signal), by_fft, rtol=TOLERANCE, atol=1e-12)
        powers = by_fft.abs().square().unflatten(1, (2, 2)).sum(2)
        torch.testing.assert_close(torus.power(signal, 2), powers, rtol=TOLERANCE, atol=1e-13)


@pytest.mark.parametrize("kind", ["white", "slow", "fast"])
def test_the_bound_on_the_rounding_of_products(kind: str) -> None:
    for side in (2, 3, 8, 17, 30, 34, 58):
        torus, signal = Torus((side, side)), fields(kind, 20, 1, (side, side))
        assert torus.is_short(signal)
        sure = torch.fft.rfft2(signal.double(), norm="ortho")
        off = (torus.spectrum(signal).to(sure.dtype) - sure).abs().square().flatten(1).sum(1).sqrt()
        assert (off <= torus.rounding(torch.float32) / 4 * signal.double().flatten(1).norm(dim=1)).all(), side


def test_long_sides_by_fft() -> None:
    module = nn.Conv2d(2, 3, 3, stride=2).double()
    x = torch.randn(2, 2, 40, 35, dtype=torch.float64)
    g = torch.randn_like(module(x))
    assert not Torus((40, 35)).is_short(x)
    whole = maps_by_definition(module, x, g).flatten(1).square().sum(1)
    torch.testing.assert_close(weight_use(module, x, g, maps=False).sq_norm(), whole, rtol=TOLERANCE, atol=0)


class Mapped:
    """Clipped sums of one convolution in the full domain, as one vector in float64."""

    def __init__(self, module: nn.Module, rule: Flat | PerLayer, ordinary: Tensor, *, maps: bool) -> None:
        self.module, self.rule = module, rule
        self.engine = Engine(module, rules(maps))
        self(ordinary, torch.ones(()))

    def __call__(self, x: Tensor, slopes: Tensor) -> Tensor:
        grads: RecordGrads = self.engine.collect((self.module(x) * slopes).flatten(1).sum(1))
        groups = self.rule.groups(self.engine.layers)
        total = grads.weighted_sum(self.rule.weights(grads.norms(groups)), groups)
        return torch.cat([g.flatten() for g in total.values()]).double()


@with_maps
@settings(max_examples=25)
@given(data=st.data())
def test_one_record_is_within_the_bound(maps: bool, data: st.DataObject) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 2**31)))
    module = nn.Conv2d(2, 3, 3, padding=1, stride=draw(st.integers(1, 2)))
    clipped = Mapped(module, Flat(bound=0.3), torch.randn(2, 2, 6, 5), maps=maps)
    x = torch.randn(1, 2, 6, 5) * 10.0 ** draw(st.floats(-20, 20))
    slopes = torch.randn_like(module(x)).detach() * 10.0 ** draw(st.floats(-20, 20))
    assert float(clipped(x, slopes).norm()) <= 0.3 * SLACK


@with_maps
@pytest.mark.parametrize("rest", [0.0, 1e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("size", [1.0, 1e6])
@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "sides"), [(2, 3, 3, (8, 8)), (24, 24, 3, (4, 4)), (4, 4, 1, (2, 3))]
)
def test_cancelling_positions(
    inputs: int, outputs: int, kernel: int, sides: tuple[int, int], size: float, rest: float, maps: bool
) -> None:
    module = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    clipped = Mapped(module, Flat(bound=0.01), torch.randn(2, inputs, *sides), maps=maps)
    xs, slopes = repeated((5, inputs, *sides), 2, rest), cancelling((5, outputs, *sides), 2, size, rest)
    for x, slope in zip(xs.split(1), slopes.split(1), strict=True):
        assert float(clipped(x, slope).norm()) <= 0.01 * SLACK
