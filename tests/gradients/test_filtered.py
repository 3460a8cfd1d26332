"""Low-pass filtered correlation maps without the maps: the corner comes out the same, and so does the noise on it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.data.sampling import FullBatch
from assay.gradients.arithmetic import corner
from assay.gradients.clipping import PerLayer
from assay.gradients.rules.correlation import Filter, Filtered, FullCorrelationRule, basis, restored
from assay.mechanisms.gaussian import Gaussian
from assay.methods.chain import Chain
from assay.methods.denoise.lowpass import LowPass
from assay.methods.plan import Plan
from assay.training.step import PrivateStep

from .test_convolution import CONV, SIDES, geometries

RHO = st.sampled_from([0.02, 0.1, 0.5, 0.9])


def filtered(maps: Tensor, rho: float, one_sided: bool = False) -> Tensor:
    return LowPass(rho=rho, one_sided=one_sided)({"": maps}, 0.0)[""]


@pytest.mark.parametrize("dims", [1, 2, 3])
@settings(max_examples=40)
@given(data=st.data())
def test_sums_are_the_corner_of_the_filtered_map_and_never_longer_than_the_map(dims: int, data: st.DataObject) -> None:
    arguments = data.draw(geometries(dims))
    arguments["dilation"] = 1
    rho, one_sided = data.draw(RHO), data.draw(st.booleans())
    module = CONV[dims](**arguments).double()
    x = torch.randn(3, arguments["in_channels"], *SIDES[dims], dtype=torch.float64)
    g = torch.randn_like(module(x))
    (use,) = (
        FullCorrelationRule(maps=False, rho=rho, one_sided=one_sided)
        .uses(module, frozenset(["weight"]), x, g)[1]
        .apart()
    )
    (maps,) = FullCorrelationRule(maps=True).uses(module, frozenset(["weight"]), x, g)[1].apart()
    assert isinstance(use, Filtered)
    weights = torch.rand(3, 1, dtype=torch.float64)
    got = restored(use.weighted_sum(weights), use.basis)
    expected = corner(filtered(maps.weighted_sum(weights), rho, one_sided), module.weight.shape)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(use.sq_norm(), maps.sq_norm(), rtol=1e-10, atol=0)
    for record in range(3):
        alone = torch.zeros(3, 1, dtype=torch.float64)
        alone[record] = 1.0
        assert float(use.weighted_sum(alone).square().sum()) <= float(use.sq_norm()[record])


@pytest.mark.parametrize(
    ("sides", "kernel"), [((8,), (3,)), ((9, 6), (3, 2)), ((34, 34), (3, 3)), ((5, 4, 6), (2, 2, 2))]
)
@pytest.mark.parametrize("filtering", [Filter(0.02), Filter(0.5), Filter(0.95), Filter(0.5, one_sided=True)], ids=str)
def test_white_noise_on_coordinates_is_the_filtered_noise_in_the_corner(
    sides: tuple[int, ...], kernel: tuple[int, ...], filtering: Filter
) -> None:
    """The covariance of what comes out: that of the corner of white noise on the map, filtered."""
    made = basis(torch.Size([1, 1, *kernel]), sides, filtering, torch.float64, torch.device("cpu"))
    spikes = torch.eye(math.prod(sides), dtype=torch.float64).view(-1, 1, *sides)
    columns = corner(filtered(spikes, filtering.rho, filtering.one_sided), (len(spikes), 1, *kernel)).flatten(1)
    torch.testing.assert_close(made.synthesis.T @ made.synthesis, columns.T @ columns, rtol=1e-9, atol=1e-12)


def test_a_filter_that_keeps_the_mean_only_leaves_one_coordinate() -> None:
    made = basis(torch.Size([2, 3, 3, 3]), (10, 10), Filter(0.01), torch.float32, torch.device("cpu"))
    assert made.synthesis.shape == (1, 9)
    torch.testing.assert_close(made.synthesis, torch.full((1, 9), 0.1).mul(made.synthesis.sign()))


def gradients(noise: float, maps: bool) -> dict[str, Tensor]:
    """What a step writes with clipping that bites, through maps or through coordinates."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.Flatten()
    )
    x, y = torch.randn(8, 2, 9, 9), torch.randn(8, 96)
    plan = Plan(
        records=8,
        batch_size=8,
        steps=1,
        noise_multiplier=noise,
        delta=1e-5,
        sampling=FullBatch,
        clip=PerLayer(bound=0.1),
    )
    rule = FullCorrelationRule(maps=True) if maps else FullCorrelationRule(maps=False, rho=0.5)
    chain = Chain(
        clip=plan.fresh_clip(),
        noise=Gaussian(multiplier=noise),
        rules={nn.Conv2d: rule},
        decode=(LowPass(rho=0.5),),
    )
    object.__setattr__(plan, "chain", lambda _share=1.0: chain)
    step = PrivateStep(model, plan)
    for x_, y_ in step.batches(torch.utils.data.TensorDataset(x, y)):
        step.backward((model(x_) - y_).square().sum(1))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_a_step_writes_the_same_gradient_by_either_way() -> None:
    by_maps, by_coordinates = gradients(0.0, maps=True), gradients(0.0, maps=False)
    for name, expected in by_maps.items():
        torch.testing.assert_close(by_coordinates[name], expected, rtol=1e-5, atol=1e-7)
