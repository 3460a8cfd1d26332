"""Truncated Poisson sampling: batches within the cap, and the truncation charged."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy.stats import binom, norm

from assay.accounting.accountants.truncated import TruncatedPoissonDpEvent
from assay.accounting.epsilon import Adjacency, UnaccountableError, delta_for, epsilon, rdp_epsilon
from assay.data.sampling import Poisson, TruncatedPoisson
from assay.randomness.streams import Seeded

ADD, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE
GRID = np.linspace(-25.0, 25.0, 20_001)


def law(values, rate, cap, sigma):
    """The exact density of a noisy truncated sum: every sample, and every order of its numbers."""
    density = np.zeros_like(GRID)
    for size in range(len(values) + 1):
        for sample in itertools.combinations(values, size):
            chance = rate**size * (1 - rate) ** (len(values) - size)
            kept = list(itertools.combinations(sample, min(size, cap)))
            for some in kept:
                density += chance / len(kept) * norm.pdf(GRID, sum(some), sigma)
    return density


def profile(one, other, eps):
    return float(np.maximum(one - math.exp(eps) * other, 0.0).sum() * (GRID[1] - GRID[0]))


@pytest.mark.parametrize("cap", [1, 2, 3])
@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_the_bound_holds_in_the_worst_case_and_poisson_alone_would_not(rate, cap):
    """The others pull one way, the record the other way: with small caps it takes the place of one of them."""
    others, sigma = [-1.0, -1.0, -1.0], 1.0
    event = TruncatedPoissonDpEvent(4, rate, cap, dp_event.GaussianDpEvent(sigma))
    plain = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
    without, with_it = law(others, rate, cap, sigma), law([*others, 1.0], rate, cap, sigma)
    replaced = law([*others, -1.0], rate, cap, sigma)
    uncharged = False
    for eps in (0.0, 0.2, 0.5, 1.0, 2.0, 3.0):
        true = max(profile(with_it, without, eps), profile(without, with_it, eps))
        assert true <= delta_for(event, eps, ADD) + 1e-9
        assert max(profile(with_it, replaced, eps), profile(replaced, with_it, eps)) <= (
            delta_for(event, eps, REPLACE) + 1e-9
        )
        uncharged |= true > delta_for(plain, eps, ADD) + 1e-6
    # the mutant: a truncated batch that is charged as a Poisson sample
    assert uncharged or (rate, cap) != (0.9, 2)


def test_a_wide_cap_costs_next_to_nothing_and_a_narrow_one_something():
    def spent(cap):
        step = TruncatedPoissonDpEvent(1000, 0.05, cap, dp_event.GaussianDpEvent(1.0))
        return epsilon(dp_event.SelfComposedDpEvent(step, 100), 1e-5, ADD)

    step = dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(1.0))
    poisson = epsilon(dp_event.SelfComposedDpEvent(step, 100), 1e-5, ADD)
    assert poisson <= spent(1000) * 1.006
    assert spent(1000) == pytest.approx(poisson, rel=6e-3)
    assert poisson < spent(70) < spent(50)
    doubled = dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(0.5))
    assert spent(1) == pytest.approx(epsilon(dp_event.SelfComposedDpEvent(doubled, 100), 1e-5, ADD), rel=6e-3)


def test_renyi_divergences_are_a_second_opinion():
    step = TruncatedPoissonDpEvent(60_000, 256 / 60_000, 368, dp_event.GaussianDpEvent(1.0))
    event = dp_event.SelfComposedDpEvent(step, 1000)
    assert epsilon(event, 1e-5, ADD) < rdp_epsilon(event, 1e-5, ADD) < 5


@pytest.mark.parametrize(("records", "size"), [(60_000, 256), (1437, 256), (40, 10), (5, 5), (3, 0.5)])
def test_the_cap_is_rarely_reached_and_always_kept(records, size):
    sampler = TruncatedPoisson(records, size)
    assert size <= sampler.cap <= records
    assert binom.sf(sampler.cap, records, sampler.rate) <= 1e-10 or sampler.cap == records
    assert len(sampler.draw(0, Seeded(0))) <= sampler.cap


def test_without_truncation_the_batches_are_those_of_poisson_sampling():
    for step in range(5):
        drawn = TruncatedPoisson(1000, 50).draw(step, Seeded(1))
        assert drawn.tolist() == Poisson(1000, 50).draw(step, Seeded(1)).tolist()


def test_other_noise_is_refused():
    with pytest.raises(UnaccountableError, match="Gaussian"):
        epsilon(TruncatedPoissonDpEvent(10, 0.1, 5, dp_event.LaplaceDpEvent(1.0)), 1e-5, ADD)


def test_end_to_end(assay, tmp_path):
    out = tmp_path / "run"
    code, _, err = assay(
        *("train", "--data", "digits", "--model", "logistic", "--epsilon", "3", "--delta", "1e-4", "--epochs", "1"),
        *("--batch-size", "256", "--lr", "2", "--sampling", "truncated-poisson", "--out", out),
    )
    assert code == 0, err
    assert assay("verify", out)[0] == 0
    assert "keeps at most" in assay("show", out)[1]
