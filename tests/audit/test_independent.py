"""Bounds from scores that are independent of each other, and what they are held to."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

from assay import ConfigError, Optimizer, Plan, Training
from assay.accounting.epsilon import Adjacency, delta_for
from assay.audit.independent import own_family, right_lower, shift_lower
from assay.audit.training import black_box, blank, white_box
from assay.audit.worlds import bound_worlds, trained_in_two_worlds
from assay.audit.worst_case import worst_case
from assay.data import samplers

DELTA = 1e-5
TRAINING = Training(seed=3, optimizer=Optimizer(lr=0.5))


def data(n: int) -> TensorDataset:
    x = torch.randn(n, 16, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x[:, :4].argmax(1))


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 60), nn.Tanh(), nn.Linear(60, 4))


@pytest.mark.parametrize(("sizes", "deviations"), [((40, 40), (1.0, 1.0)), ((12, 60), (2.0, 1.0))])
def test_a_shift_is_overstated_no_more_often_than_allowed(sizes, deviations):
    """400 samples at 80 % confidence; more than 126 too high have a probability below 1e-6."""
    random, true = np.random.default_rng(5), 1.0 / max(deviations)
    over = sum(
        shift_lower(
            1.0 + deviations[0] * random.standard_normal(sizes[0]),
            deviations[1] * random.standard_normal(sizes[1]),
            significance=0.2,
        )
        > true
        for _ in range(400)
    )
    assert over <= 126
    assert stats.binom.sf(126, 400, 0.2) < 1e-6


def test_a_shift_is_placed_closely_and_nothing_is_made_of_nothing():
    random = np.random.default_rng(0)
    found = shift_lower(1 + random.standard_normal(2500), random.standard_normal(2500), significance=0.05)
    assert 0.9 < found < 1
    assert shift_lower(np.ones(5), np.zeros(5), significance=0.05) == 0  # no spread is not normal
    assert shift_lower(np.array([1.0]), np.array([0.0, 0.5]), significance=0.05) == 0


@pytest.mark.parametrize("sampling", ["poisson", "full"])
def test_the_runs_own_family_gives_back_what_its_noise_allows(sampling):
    """The share of right guesses that the plan itself allows leads to the plan's ε, and not above it."""
    made = Plan(
        records=2000,
        batch_size=2000 if sampling == "full" else 100,
        steps=40,
        noise_multiplier=1.2,
        delta=DELTA,
        sampling=samplers.parse(sampling),
    )
    family = own_family(made)
    assert family is not None
    share = (1 + delta_for(made.event(), 0.0, made.adjacency)) / 2
    assert 0.97 * made.epsilon() < family(share) <= made.epsilon()
    assert family(0.5) == 0 < family(share - 0.02) < family(share)


def test_ties_are_wrong_guesses():
    assert right_lower(np.zeros(100), np.zeros(100), significance=0.05) == 0


def test_the_best_of_several_bounds_has_the_confidence_of_all():
    random = np.random.default_rng(1)
    found = bound_worlds(2 + random.standard_normal(200), random.standard_normal(200), delta=DELTA, confidence=0.9)
    assert found.confidence == pytest.approx(0.9)
    assert all(bound.confidence == pytest.approx(1 - 0.1 / 3) for bound in found.bounds)
    assert found.best.epsilon == max(bound.epsilon for bound in found.bounds)
    assert found.best.confidence == pytest.approx(0.9)


def test_shuffled_batches_are_scored_by_their_own_likelihood():
    """E[exp(score)] = 1 for excluded canaries; five standard errors, of a heavy-tailed mean at a fixed seed."""
    made = Plan(
        records=400, batch_size=100, steps=8, noise_multiplier=1.0, delta=DELTA, sampling=samplers.parse("shuffle")
    )
    found = white_box(network(), data(400), made, canaries=600, training=TRAINING)
    ratios = np.exp(found.excluded)
    assert abs(ratios.mean() - 1) < 5 * ratios.std() / math.sqrt(len(ratios))
    assert found.plain.epsilon <= made.epsilon()


@pytest.mark.parametrize("sampling", ["without-replacement", "permutation"])
def test_runs_that_replace_a_record_are_audited_whole(sampling):
    made = Plan(
        records=200,
        batch_size=100,
        steps=10,
        noise_multiplier=1.5,
        delta=DELTA,
        sampling=samplers.parse(sampling),
        adjacency=Adjacency.REPLACE_ONE,
    )
    found = white_box(network(), data(200), made, canaries=150, training=TRAINING)
    assert found.excluded.mean() < 0 < found.included.mean()
    assert found.best.epsilon <= made.epsilon()
    seen = black_box(network(), data(200), made, blank(data(200), 20, 4), training=TRAINING)
    assert len(seen.included) + len(seen.excluded) == 20
    canary = tuple(part[0] for part in blank(data(200), 1, 4).tensors)
    assert trained_in_two_worlds(network(), data(200), made, canary, runs=4, training=TRAINING).confidence == 0.95
    with pytest.raises(ConfigError, match="whose places they take"):
        white_box(network(), data(200), made, canaries=200, training=TRAINING)


def test_the_worst_case_is_taken_for_another_class_beyond_doubt():
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    start, (x, y) = worst_case(model, data(200), 4)
    assert nn.functional.cross_entropy(start(x[None]), y[None]).item() > 15
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
