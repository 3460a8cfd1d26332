"""Clipped gradients as whole numbers: the bound and the sum hold in exact arithmetic."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.audit.specimen import Specimen, flat
from assay.gradients.clipping import Automatic, Flat, PerLayer
from assay.mechanisms.exact import ExactGaussian, Grid
from assay.methods.chain import Chain

SPECIMEN = Specimen()
bounds = st.floats(1e-12, 1e12, allow_nan=False)
sizes = st.floats(1e-20, 1e20)


def chain_of(clip) -> Chain:
    return Chain(clip=clip, noise=ExactGaussian(multiplier=1.0, grid=Grid(clip.l2)))


def vectors(rows: int, seed: int, size: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(rows, 1, generator=generator).mul(3).exp()
    return torch.randn(rows, SPECIMEN.size, generator=generator) * spread * size


def exact_sum(chain: Chain, rows: torch.Tensor, padding: int = 0) -> list[int]:
    """Σ in units, as Python's whole numbers."""
    grads = SPECIMEN.gradients(rows)
    grads.padding = padding
    total, _ = chain.clipped_sum(grads, chain.clip.groups(SPECIMEN.names), None)
    units = [Fraction(v) / Fraction(Grid(chain.clip.l2).unit) for v in flat(total).tolist()]
    assert all(u.denominator == 1 for u in units)
    return [int(u) for u in units]


@given(bound=bounds, size=sizes, seed=st.integers(0, 10_000), kind=st.sampled_from([Flat, PerLayer, Automatic]))
def test_no_record_exceeds_the_bound_in_exact_arithmetic(bound, size, seed, kind):
    chain = chain_of(kind(bound=bound))
    for row in vectors(3, seed, size):
        q = exact_sum(chain, row.unsqueeze(0))
        norm = sum(u * u for u in q) * Fraction(Grid(bound).unit) ** 2
        assert norm <= Fraction(bound) ** 2


@given(seed=st.integers(0, 10_000), bound=st.floats(0.01, 10))
def test_a_clipped_record_keeps_its_direction_and_nearly_all_of_the_bound(seed, bound):
    chain = chain_of(Flat(bound=bound))
    row = vectors(1, seed, 1e6)
    total, _ = chain.clipped_sum(SPECIMEN.gradients(row), chain.clip.groups(SPECIMEN.names), None)
    expected = row[0].double() * (bound / row.double().norm())
    assert float((flat(total) - expected).norm()) < 1e-4 * bound


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), count=st.integers(2, 20))
def test_the_sum_is_the_sum_of_its_records_in_any_order(seed, count):
    chain = chain_of(Flat(bound=0.3))
    rows = vectors(count, seed, 1.0)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    whole = exact_sum(chain, rows)
    assert whole == exact_sum(chain, rows[order])
    # the others as padding: a part of one shape in which one record counts
    each = [exact_sum(chain, torch.cat([rows[i : i + 1], rows[:i], rows[i + 1 :]]), count - 1) for i in range(count)]
    assert whole == [sum(column) for column in zip(*each, strict=True)]


def test_what_is_not_a_number_counts_as_zero_and_is_counted():
    chain, rows = chain_of(Flat()), vectors(6, 1, 1.0)
    bad = rows.clone()
    bad[1, 3], bad[4, 0], bad[5, 2] = float("nan"), float("inf"), float("-inf")
    grads = SPECIMEN.gradients(bad)
    grads.padding = 1  # the last row is no record
    chain.clipped_sum(grads, chain.clip.groups(SPECIMEN.names), None)
    assert grads.nonfinite == 2
    zeroed = rows.clone()
    zeroed[[1, 4, 5]] = 0
    assert exact_sum(chain, bad, 1) == exact_sum(chain, zeroed)


class Lies(Flat):
    """A rule that does not clip: weights of a few times what is allowed."""

    def weights(self, norms):
        return torch.where(torch.arange(len(norms)).unsqueeze(1) == 0, 3.0, 1.0) * super().weights(norms)


def test_a_record_beyond_the_bound_counts_for_nothing():
    """Whatever a rule or a norm in floating point says."""
    rows = vectors(4, 2, 1e3)
    assert exact_sum(chain_of(Lies(bound=1.0)), rows) == exact_sum(
        chain_of(Flat(bound=1.0)), torch.cat([torch.zeros_like(rows[:1]), rows[1:]])
    )


@pytest.mark.parametrize("bound", [1.0, 0.5, 0.3, 1e-9, 1e9, 1.9999999])
def test_the_grid_has_powers_of_two_and_the_bound_in_whole_numbers(bound):
    grid = Grid(bound)
    ratio = Fraction(bound) / Fraction(grid.unit)
    assert 2**20 <= ratio < 2**21
    assert Fraction(grid.unit).numerator == 1 or Fraction(grid.unit).denominator == 1
    assert grid.most <= ratio**2 < grid.most + 1
