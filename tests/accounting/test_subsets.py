"""Fixed-size batches: the divergences against integrals over triangles, ε against bounds from both sides."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.dp_event import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from assay.accounting.epsilon import Adjacency, Bound, bound, delta_for, epsilon, rdp_epsilon
from assay.accounting.subsets import divergences

ADDED, REPLACED = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE


def steps(noise: float, size: int, source: int, count: int) -> SelfComposedDpEvent:
    return SelfComposedDpEvent(SampledWithoutReplacementDpEvent(source, size, GaussianDpEvent(noise)), count)


def triangles(count: int) -> np.ndarray:
    """Three points in the unit disc: drawn, and the two that matter most."""
    source = np.random.default_rng(3)
    drawn = source.standard_normal((count, 3, 2))
    drawn /= np.linalg.norm(drawn, axis=2, keepdims=True)
    drawn[count // 2 :] *= source.random((count - count // 2, 3, 1)) ** 0.2
    collinear = [[(-1, 0), (1, 0), (-1, 0)], [(-1, 0), (-1, 0), (1, 0)], [(0, 0), (1, 0), (-1, 0)]]
    return np.concatenate([drawn, np.array(collinear, dtype=float)])


def test_three_points_in_a_ball():
    """Step 5 of the proof, for every power up to 40."""
    y, x, other = triangles(20_000).transpose(1, 0, 2)
    b, c = x - y, other - y
    s, t, inner = (b * b).sum(1), (c * c).sum(1), (b * c).sum(1)
    for n in range(1, 41):
        assert np.max((s / 4) ** n + (t / 4) ** n - 2 * (inner / 4) ** n) <= 1 + 1e-12


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.02), (1.5, 0.3), (4.0, 0.1)])
def test_divergences_of_all_triangles_are_within_the_bound(noise, rate):
    """E_Q[(P/Q)^α] by the trapezoidal rule in the plane, which holds three points and all that depends on them."""
    axis = np.linspace(-9, 9, 181)
    where = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    cell = (axis[1] - axis[0]) ** 2 / (2 * math.pi)
    orders = (2, 3, 4)
    allowed = np.exp(divergences(rate, noise / 2, orders) * (np.array(orders) - 1))
    largest = np.zeros(len(orders))
    for triangle in triangles(40):
        y, x, other = (cell * np.exp(-((where - p / noise) ** 2).sum(1) / 2) for p in triangle)
        p, q = (1 - rate) * y + rate * x, (1 - rate) * y + rate * other
        largest = np.maximum(largest, [(p**order * q ** (1.0 - order)).sum() for order in orders])
    assert (largest <= allowed * (1 + 1e-9)).all()
    assert largest[0] - 1 > 0.7 * (allowed[0] - 1), "the bound of order 2 is nearly attained"


@pytest.mark.parametrize(
    ("noise", "size", "source", "count", "expected", "kind"),
    [
        (1.0, 256, 60_000, 8000, 17.929, Bound.RENYI),
        (2.0, 256, 60_000, 8000, 2.3282, Bound.RENYI),
        (1.5, 500, 5000, 50, 9.8968, Bound.LOOSE_PLD),
    ],
)
def test_epsilon_is_the_lesser_bound_and_above_what_data_sets_attain(noise, size, source, count, expected, kind):
    event = steps(noise, size, source, count)
    found = epsilon(event, 1e-5, REPLACED)
    assert found == pytest.approx(expected, rel=2e-4)
    assert bound(event, 1e-5, REPLACED) is kind
    attained = SelfComposedDpEvent(PoissonSampledDpEvent(size / source, GaussianDpEvent(noise / 2)), count)
    assert found > epsilon(attained, 1e-5, ADDED)


def test_what_papers_claim_does_not_know_the_tighter_divergences():
    """26.01: dp_accounting's Rényi accountant (Wang, Balle and Kasiviswanathan 2019), as before."""
    assert rdp_epsilon(steps(1.0, 256, 60_000, 8000), 1e-5, REPLACED) == pytest.approx(26.0137, rel=1e-4)


def test_gradients_that_are_chosen_step_by_step_exceed_one_pair_and_not_the_bound():
    """`benchmarks.oracles.adaptive`: so composing one pair, as for Poisson sampling of twice the shift, is no bound."""
    adaptive = pytest.importorskip("benchmarks.oracles.adaptive")
    noise, rate, count, eps = 1.5, 0.1, 8, 4.0
    one_pair = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise / 2)), count)
    shown = adaptive.delta(rate, noise, count, eps, h=5e-4, adaptive=True)
    assert delta_for(one_pair, eps, ADDED) < shown < delta_for(steps(noise, 100, 1000, count), eps, REPLACED)
