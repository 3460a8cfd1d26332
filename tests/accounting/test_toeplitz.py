"""Banded strategies optimised for the length of a run: as good as jax_privacy's, and charged as any other."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import ConfigError, Plan
from assay.accounting import schedules
from assay.accounting.schedules import Banded, Toeplitz
from assay.accounting.toeplitz import error


@pytest.mark.parametrize(
    ("length", "bands", "theirs"),
    [(50, 4, 8.588131427), (200, 8, 16.834935), (1000, 16, 39.4153)],
)
def test_optimised_strategies_are_as_good_as_those_of_jax_privacy(length, bands, theirs):
    """`theirs`: `toeplitz.loss` of what `optimize_banded_toeplitz` of jax_privacy 2.0.0 finds, in double precision."""
    optimised, root = Toeplitz(bands=bands, length=length).strategy, Banded(bands=bands).strategy
    assert error(optimised, length) == pytest.approx(theirs, rel=1e-5)
    assert error(optimised, length) < error(root, length)


@given(bands=st.integers(2, 24), length=st.integers(2, 400), momentum=st.sampled_from([0.0, 0.5, 0.9]))
@settings(max_examples=30)
def test_optimised_strategies_have_the_bands_and_the_norm_that_are_charged(bands, length, momentum):
    """All that ε rests on: at most `bands` coefficients, of norm at most 1, the first above 0 (`BandedGaussian`)."""
    strategy = Toeplitz(bands=bands, length=length, momentum=momentum).strategy
    assert len(strategy) == bands
    assert math.hypot(*strategy) <= 1
    assert strategy[0] > 0
    before = Banded(bands=bands, momentum=momentum).strategy
    assert error(strategy, length, momentum) <= error(before, length, momentum) * (1 + 1e-9)


def test_the_error_is_that_of_the_noise_that_the_optimizer_sums_up():
    """Against the matrices: w = C⁻¹z, summed up with momentum."""
    strategy, length, momentum = Toeplitz(bands=3, length=12, momentum=0.5).strategy, 12, 0.5
    rows = np.subtract.outer(np.arange(length), np.arange(length))
    matrix = np.where(
        (rows >= 0) & (rows < 3), np.take(np.append(strategy, np.zeros(length)), np.maximum(rows, 0)), 0.0
    )
    workload = np.where(rows >= 0, (1 - momentum ** (rows + 1.0)) / (1 - momentum), 0.0)
    noise = workload @ np.linalg.inv(matrix)
    assert error(strategy, length, momentum) == pytest.approx((noise**2).sum() / length * np.dot(strategy, strategy))


def test_an_optimised_strategy_is_named_charged_and_written_as_the_square_root_is():
    schedule = schedules.parse("toeplitz:bands=4,length=40")
    assert schedules.parse(schedules.describe(schedule)) == schedule
    settings_of = {"records": 1000, "batch_size": 100, "steps": 40, "noise_multiplier": 2.0, "delta": 1e-5}
    plans = [Plan(**settings_of, noise_schedule=chosen) for chosen in (schedule, Banded(bands=4))]
    assert plans[0].event() == plans[1].event()
    with pytest.raises(ConfigError, match="length"):
        schedules.parse("toeplitz:length=1")
