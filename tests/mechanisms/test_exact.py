"""Exact Gaussian noise: the same event and the same size as the Gaussian mechanism, on the grid."""

from fractions import Fraction

import pytest
import torch
from scipy import stats

from assay import Plan, methods
from assay.accounting.schedules import Banded, Decay
from assay.data.sampling import parse as sampler
from assay.errors import AssayError, ConfigError
from assay.gradients import clipping
from assay.mechanisms.exact import ExactGaussian, Grid
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.types import Bounded
from assay.methods import encode
from assay.methods.perturb.mean import Mean
from assay.randomness.streams import Seeded

PLAN = {"records": 1000, "batch_size": 50, "steps": 40, "noise_multiplier": 1.1, "delta": 1e-5}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"method": methods.get("lssgd")},
        {"noise_schedule": Decay(levels=3, last=0.5)},
        {"sampling": sampler("shuffle")},
    ],
)
def test_the_cost_is_that_of_the_gaussian_mechanism(more):
    given = PLAN | more
    usual, exact = Plan(**given), Plan(**given, exact=True)
    assert exact.event() == usual.event()
    assert exact.epsilon() == usual.epsilon()
    assert exact.claimed() == usual.claimed()
    assert isinstance(exact.chain().noise, ExactGaussian)


def test_plans_without_it_are_written_as_before():
    usual, exact = Plan(**PLAN), Plan(**PLAN, exact=True)
    assert "exact" not in usual.to_json()
    assert Plan.from_json(usual.to_json()) == usual
    assert Plan.from_json(exact.to_json()) == exact


def test_the_noise_has_the_size_of_the_multiplier_or_more():
    """In exact arithmetic, for multipliers and bounds that float64 does not multiply exactly."""
    for multiplier in (0.1, 0.7, 1.1, 3.3, 1e5):
        for bound in (0.1, 0.3, 1.0, 7.7):
            noise = ExactGaussian(multiplier=multiplier, grid=Grid(bound))
            wanted = Fraction(multiplier) * Fraction(bound) / Fraction(noise.grid.unit)
            assert wanted <= Fraction(noise.scale) < wanted * (1 + Fraction(2) ** -50)


def test_a_release_is_on_the_grid_and_normal():
    noise = ExactGaussian(multiplier=1.3, grid=Grid(0.7))
    total = {"a": torch.zeros(100, 500, dtype=torch.float64), "b": torch.full((7,), 3 * noise.grid.unit).double()}
    released = noise.release(Bounded(total, 0.7), Seeded(1).stream("noise", 0))
    assert released.event == Gaussian(multiplier=1.3).release(Bounded({}, 1.0), Seeded(0).stream("x", 0)).event
    assert released.noise_std == 1.3 * 0.7
    values = torch.cat([v.reshape(-1) for v in released.value.values()])
    assert all((Fraction(v) / Fraction(noise.grid.unit)).denominator == 1 for v in values[::100].tolist())
    assert stats.kstest(released.value["a"].reshape(-1).numpy() / released.noise_std, "norm").pvalue > 1e-6


def test_no_noise_is_no_privacy():
    noise = ExactGaussian(multiplier=0.0, grid=Grid(1.0))
    total = {"a": torch.zeros(3, dtype=torch.float64)}
    assert torch.equal(noise.release(Bounded(total, 1.0), Seeded(0).stream("x", 0)).value["a"], torch.zeros(3).double())
    assert Plan(**PLAN | {"noise_multiplier": 0.0}, exact=True).epsilon() == float("inf")


@pytest.mark.parametrize(
    "total",
    [
        torch.zeros(3),  # float32
        torch.full((3,), 0.1, dtype=torch.float64),
        torch.tensor([0.0, float("nan"), 0.0], dtype=torch.float64),
        torch.tensor([float("inf")], dtype=torch.float64),
        torch.tensor([2.0**60], dtype=torch.float64),
    ],
)
def test_a_sum_that_is_not_on_the_grid_is_not_released(total):
    noise = ExactGaussian(multiplier=1.0, grid=Grid(1.0))
    with pytest.raises(AssayError, match="grid"):
        noise.release(Bounded({"a": total}, 1.0), Seeded(0).stream("x", 0))
    with pytest.raises(AssayError, match="bound"):
        noise.release(Bounded({"a": torch.zeros(1).double()}, 1.5), Seeded(0).stream("x", 0))


@pytest.mark.parametrize(
    "more",
    [
        {"micro_batch": 2},
        {"clip": clipping.AdaptiveQuantile()},
        {"noise_schedule": Banded(bands=4, momentum=0.9)},
        {"center": Mean(noise=40)},
        {"encode": encode.parse_all(["sign:tau=0.001"])},
        {"encode": encode.parse_all(["spectral:domain=full,rho=0.5"])},
        {"method": methods.get("gredp", groups=2, variant="published"), "clip": clipping.PerLayer()},
        {"method": methods.get("afrrs")},
        {"noise_multiplier": 1e-5},
        {"noise_multiplier": 1e7},
        {"exact": "yes"},
    ],
)
def test_what_is_not_proven_is_refused(more):
    with pytest.raises(ConfigError):
        Plan(**PLAN | {"exact": True} | more)
