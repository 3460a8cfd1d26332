"""Records that belong together: mixtures of Gaussians against their definition, and against dp_accounting's own
accountants.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event, pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from assay.accounting import events
from assay.accounting.accountants.mixture import Mixture, mixture, sampled_together
from assay.accounting.epsilon import Adjacency, Bound, UnaccountableError, bound, epsilon
from assay.accounting.groups import enlarged, group_epsilons, one_by_one
from assay.errors import ConfigError

ADD, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE


def sampled(rate: float, sigma: float, steps: int) -> dp_event.DpEvent:
    return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma)), steps)


# (k, q, σ, steps, δ, ε): dp_accounting 0.6.0's PLDAccountant on MixtureOfGaussiansDpEvent with the masses of
# Binomial(k, q) and value_discretization_interval=1e-4: an upper bound as well. docs/persons.md has the lines that
# compute them.
DP_ACCOUNTING = [
    (2, 0.01, 1.0, 1000, 1e-5, 3.9790897452547074),
    (4, 0.02, 2.0, 500, 1e-5, 4.363819849856112),
    (8, 0.005, 1.5, 2000, 1e-6, 7.159915793796578),
    (32, 0.01, 4.0, 300, 1e-5, 6.762676647578543),
    (16, 0.3, 6.0, 50, 1e-7, 47.48517165126121),
]


@pytest.mark.parametrize(("rows", "rate", "sigma", "steps", "delta", "known"), DP_ACCOUNTING)
def test_rows_of_a_person_as_dp_accounting_has_them(
    rows: int, rate: float, sigma: float, steps: int, delta: float, known: float
) -> None:
    event = dp_event.SelfComposedDpEvent(sampled_together(rows, rate, sigma), steps)
    found = epsilon(event, delta, ADD)
    assert known * 0.999 <= found <= known * 1.01
    assert bound(event, delta, ADD) is Bound.PLD
    assert enlarged(sampled(rate, sigma, steps), rows) == event


def test_on_one_step_as_dp_accounting_computes_it_here() -> None:
    step = sampled_together(3, 0.2, 1.3)
    other = pld.PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=2e-2)
    other.compose(step)
    known = other.get_epsilon(1e-5)
    assert known * 0.99 <= epsilon(step, 1e-5, ADD) <= known * 1.01


def test_one_row_is_a_record() -> None:
    alone = dp_event.SelfComposedDpEvent(dp_event.MixtureOfGaussiansDpEvent(1.1, (0.0, 1.0), (0.98, 0.02)), 700)
    assert epsilon(alone, 1e-5, ADD) == pytest.approx(epsilon(sampled(0.02, 1.1, 700), 1e-5, ADD), rel=1e-6)


def test_everybody_sampled_moves_the_sum_by_all_rows() -> None:
    assert sampled_together(4, 1.0, 8.0) == dp_event.GaussianDpEvent(2.0)
    assert sampled_together(4, 0.0, 8.0) == dp_event.NoOpDpEvent()
    certain = dp_event.MixtureOfGaussiansDpEvent(8.0, (4.0,), (1.0,))
    assert epsilon(certain, 1e-5, ADD) == pytest.approx(epsilon(dp_event.GaussianDpEvent(2.0), 1e-5, ADD), rel=1e-2)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 12), rate=st.floats(1e-3, 0.6), sigma=st.floats(0.4, 6.0), fewer=st.integers(0, 11))
def test_who_has_fewer_rows_costs_no_more(rows: int, rate: float, sigma: float, fewer: int) -> None:
    """Profiles of Binomial(m, q) lie below those of Binomial(k, q) for m ≤ k, in both directions and at every ε."""
    less, more = (_term(sampled_together(k, rate, sigma)) for k in (max(1, rows - fewer), rows))
    at = np.concatenate([[0.0], np.geomspace(1e-3, 30, 60)])
    assert bool(np.all(less.forward(at) <= more.forward(at) + 1e-12))
    assert bool(np.all(less.backward(at) <= more.backward(at) + 1e-12))


def _term(event: dp_event.DpEvent) -> Mixture:
    made = mixture(event.standard_deviation, event.sensitivities, event.sampling_probs)
    assert made is not None
    return made


@settings(max_examples=20, deadline=None)
@given(
    angles=st.lists(st.floats(0, 2 * math.pi), min_size=2, max_size=4),
    lengths=st.lists(st.floats(0, 3), min_size=2, max_size=4),
    sigma=st.floats(0.6, 2.0),
    eps=st.floats(0, 3),
)
def test_shifts_in_any_directions_are_dominated_by_their_lengths(
    angles: list[float], lengths: list[float], sigma: float, eps: float
) -> None:
    """The proof of `assay.accounting.accountants.mixture` on the plane: both densities, integrated over a fine grid."""
    count = min(len(angles), len(lengths))
    shifts = [
        np.array([r * math.cos(a), r * math.sin(a)]) for a, r in zip(angles[:count], lengths[:count], strict=True)
    ]
    masses = [1 / (count + 1)] * (count + 1)
    line = np.linspace(-7 * sigma, 7 * sigma + 3, 501)  # fine enough for what the sums below may be off
    cell = (line[1] - line[0]) ** 2
    x, y = np.meshgrid(line, line)

    def density(centre: np.ndarray) -> np.ndarray:
        product: np.ndarray = norm.pdf(x, centre[0], sigma) * norm.pdf(y, centre[1], sigma)
        return product

    q = density(np.zeros(2))
    p = masses[0] * q + sum(m * density(c) for m, c in zip(masses[1:], shifts, strict=True))
    made = mixture(sigma, [0.0, *lengths[:count]], masses)
    at = np.array([eps])
    bound_pq, bound_qp = (0.0, 0.0) if made is None else (made.forward(at)[0], made.backward(at)[0])
    assert float(np.maximum(p - math.exp(eps) * q, 0).sum() * cell) <= bound_pq + 1e-5
    assert float(np.maximum(q - math.exp(eps) * p, 0).sum() * cell) <= bound_qp + 1e-5


def test_profiles_against_quadrature() -> None:
    """Both directions of one mixture, from its densities on a fine grid."""
    term = _term(sampled_together(5, 0.1, 1.2))
    x = np.linspace(-15, 25, 400_001)
    p = sum(m * norm.pdf(x, s, term.sigma) for s, m in zip(term.shifts, term.masses, strict=True))
    q = norm.pdf(x, 0, term.sigma)
    for eps in (0.0, 0.05, 0.3, 0.52, 1.0, 4.0):
        at, h = np.array([eps]), x[1] - x[0]
        assert term.forward(at)[0] == pytest.approx(np.maximum(p - math.exp(eps) * q, 0).sum() * h, abs=1e-8)
        assert term.backward(at)[0] == pytest.approx(np.maximum(q - math.exp(eps) * p, 0).sum() * h, abs=1e-8)


def test_masses_that_rounding_took_go_to_the_largest_shift() -> None:
    made = mixture(1.0, (0.0, 1.0, 2.0), (0.5, 0.25, 0.25 - 1e-10))
    assert made is not None
    assert made.masses[-1] >= 0.25
    assert mixture(1.0, (0.0, 3.0), (1.0, 0.0)) is None


@pytest.mark.parametrize(
    ("field", "event"),
    [
        ("sampling_probs", dp_event.MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), (0.5,))),
        ("sampling_probs", dp_event.MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), (0.5, 0.4))),
        ("sampling_probs", dp_event.MixtureOfGaussiansDpEvent(1.0, (), ())),
        ("sensitivities", dp_event.MixtureOfGaussiansDpEvent(1.0, (0.0, -1.0), (0.5, 0.5))),
        ("sensitivities", dp_event.MixtureOfGaussiansDpEvent(1.0, (0.0, math.inf), (0.5, 0.5))),
        ("sensitivities", dp_event.MixtureOfGaussiansDpEvent(1.0, 1.0, (0.5, 0.5))),
    ],
)
def test_a_mixture_that_is_none_is_refused(field: str, event: dp_event.DpEvent) -> None:
    with pytest.raises(ConfigError, match=field):
        epsilon(event, 1e-5, ADD)


def test_a_mixture_in_a_ledger_is_read_as_it_was_written() -> None:
    event = dp_event.SelfComposedDpEvent(sampled_together(4, 0.1, 1.0), 7)
    assert events.from_json(json.loads(json.dumps(events.to_json(event)))) == event


def test_mixtures_under_replacement_are_refused() -> None:
    with pytest.raises(UnaccountableError, match="add-or-remove-one"):
        epsilon(sampled_together(4, 0.1, 1.0), 1e-5, REPLACE)
    assert epsilon(dp_event.MixtureOfGaussiansDpEvent(0.0, (0.0, 1.0), (0.5, 0.5)), 1e-5, ADD) == math.inf


def test_groups_of_records() -> None:
    """Together far below one by one, both at least k records' worth, and never smaller for a larger group."""
    event = sampled(0.01, 1.0, 1000)
    tight, loose = (group_epsilons(event, 1e-5, ADD, together=together) for together in (True, False))
    assert tight[1] == loose[1] == epsilon(event, 1e-5, ADD)
    assert list(tight) == [1, 2, 4, 8]
    assert sorted(tight.values()) == list(tight.values())
    for size in (2, 4, 8):
        assert size * tight[1] < tight[size] < loose[size]
    unsampled = group_epsilons(dp_event.GaussianDpEvent(8.0), 1e-5, REPLACE, together=True)
    assert unsampled[8] == epsilon(dp_event.GaussianDpEvent(1.0), 1e-5, REPLACE)
    assert group_epsilons(dp_event.NonPrivateDpEvent(), 1e-5, ADD, together=True)[8] == math.inf


def test_one_by_one_is_vadhans_lemma() -> None:
    """At the δ that is used for one record, kε and δ Σ e^{iε} are within what was asked for."""
    used: list[tuple[float, float]] = []

    def spent(delta: float) -> float:
        used.append((epsilon(dp_event.GaussianDpEvent(4.0), delta, ADD), delta))
        return used[-1][0]

    found = one_by_one(spent, 1e-5, 4)
    one, delta = used[-1]
    assert found == 4 * one
    assert delta * sum(math.exp(i * one) for i in range(4)) <= 1e-5
    assert one_by_one(lambda delta: 400.0, 1e-5, 4) == math.inf


def test_groups_of_persons_whose_rows_are_sampled() -> None:
    """Two persons of three rows are one of six: their coins are independent."""
    assert events.to_json(_rounded(enlarged(sampled_together(3, 0.1, 2.0), 2))) == events.to_json(
        _rounded(sampled_together(6, 0.1, 2.0))
    )
    assert enlarged(dp_event.RandomizedResponseDpEvent(0.5, 2), 2) is None
    with pytest.raises(ConfigError, match="size"):
        enlarged(dp_event.GaussianDpEvent(1.0), 0)


def _rounded(event: dp_event.DpEvent | None) -> dp_event.DpEvent:
    assert event is not None
    return dp_event.MixtureOfGaussiansDpEvent(
        event.standard_deviation, event.sensitivities, tuple(round(mass, 13) for mass in event.sampling_probs)
    )
