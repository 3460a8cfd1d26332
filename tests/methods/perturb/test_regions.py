"""Regions: the same as Algorithm 1 done step by step, and as scikit-learn; shares that add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from assay.errors import ConfigError
from assay.methods.perturb import Regions, segment

numbers = st.lists(st.integers(-(2**40), 2**40).map(lambda n: n / 2**41 + 0.5), min_size=2, max_size=40)


def partition(labels: object) -> set[frozenset[int]]:
    groups: dict[int, list[int]] = {}
    for feature, label in enumerate(labels):  # type: ignore[var-annotated, arg-type]
        groups.setdefault(int(label), []).append(feature)
    return {frozenset(group) for group in groups.values()}


def algorithm_1(values: list[float], gamma: float) -> set[frozenset[int]]:
    """Word by word: the two regions of least average distance, while it is below γ."""
    regions = [[i] for i in range(len(values))]

    def distance(a: list[int], b: list[int]) -> float:
        return math.fsum(abs(values[i] - values[j]) for i in a for j in b) / (len(a) * len(b))

    while len(regions) > 1:
        least, i, j = min((distance(a, b), i, j) for i, a in enumerate(regions) for j, b in enumerate(regions) if i < j)
        if least >= gamma:
            break
        regions[i] += regions.pop(j)
    return {frozenset(region) for region in regions}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=14, unique=True), st.floats(1e-3, 1))
def test_regions_are_those_of_algorithm_1(values: list[float], gamma: float) -> None:
    # numbers apart from each other in odd steps, so that no two distances tie
    values = [value + 1e-4 * math.sqrt(2 + i) for i, value in enumerate(values)]
    got = segment(torch.tensor(values, dtype=torch.float64), gamma)
    assert partition(got.index.tolist()) == algorithm_1(values, gamma)


@pytest.mark.parametrize("seed", range(30))
def test_regions_are_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.choice([rng.normal, rng.exponential, rng.laplace])(size=int(rng.integers(2, 200)))
    gamma = float(rng.uniform(0.001, 1.5))
    theirs = AgglomerativeClustering(n_clusters=None, linkage="average", metric="manhattan", distance_threshold=gamma)
    ours = segment(torch.tensor(values), gamma)
    assert partition(ours.index.tolist()) == partition(theirs.fit(values[:, None]).labels_)


def test_all_features_of_cifar_10() -> None:
    values = np.random.default_rng(0).laplace(size=3072)
    theirs = AgglomerativeClustering(n_clusters=None, linkage="average", metric="manhattan", distance_threshold=0.2)
    ours = segment(torch.tensor(values).view(3, 32, 32), 0.2)
    assert ours.index.shape == (3, 32, 32)
    assert partition(ours.index.flatten().tolist()) == partition(theirs.fit(values[:, None]).labels_)


def test_a_distance_of_gamma_is_not_below_gamma() -> None:
    values = torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)
    assert len(segment(values, 0.25)) == 3
    assert len(segment(values, 0.2501)) == 2
    assert len(segment(torch.zeros(5), 0.0)) == 5, "equal features are 0 apart, which is not below 0"
    assert len(segment(torch.zeros(5), 1e-9)) == 1


@given(numbers, st.floats(0, 2))
def test_shares_add_up_and_regions_are_in_order(values: list[float], gamma: float) -> None:
    relevance = torch.tensor(values, dtype=torch.float64)
    regions = segment(relevance, gamma)
    assert int(regions.counts.sum()) == regions.features == len(values)
    assert (regions.relevance.diff() >= 0).all()
    assert float(regions.mu.sum()) == pytest.approx(1)
    assert float((regions.mu * regions.alpha).sum()) == pytest.approx(1)
    assert float(regions.of_features(regions.epsilons(0.4)).sum()) == pytest.approx(0.4 * len(values))
    for k in range(len(regions)):
        assert float(relevance[regions.index == k].mean()) == pytest.approx(float(regions.relevance[k]))


def test_equations_14_and_15_by_hand() -> None:
    regions = segment(torch.tensor([[0.9, -0.2], [0.1, 0.1]], dtype=torch.float64), 0.05)
    # regions {-0.2}, {0.1, 0.1}, {0.9}; Σ μ|R̄| = ¼·0.2 + ½·0.1 + ¼·0.9 = 0.325
    assert regions.index.tolist() == [[2, 0], [1, 1]]
    assert regions.counts.tolist() == [1, 2, 1]
    torch.testing.assert_close(regions.mu, torch.tensor([0.25, 0.5, 0.25]).double())
    torch.testing.assert_close(regions.alpha, torch.tensor([0.2, 0.1, 0.9]).double() / 0.325)
    torch.testing.assert_close(regions.epsilons(0.65), torch.tensor([0.4, 0.2, 1.8]).double())


def test_nothing_relevant_means_equal_shares() -> None:
    assert segment(torch.zeros(4), 0.1).alpha.tolist() == [1.0]
    flat = Regions(index=torch.tensor([0, 1]), relevance=torch.zeros(2), counts=torch.tensor([1, 1]))
    assert flat.alpha.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("gamma", [-1.0, math.nan, math.inf])
def test_a_bad_threshold_is_refused(gamma: float) -> None:
    with pytest.raises(ConfigError, match="gamma"):
        segment(torch.rand(3), gamma)


@pytest.mark.parametrize("relevance", [torch.tensor([]), torch.tensor([0.1, math.nan])])
def test_relevance_that_is_none_is_refused(relevance: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="relevance"):
        segment(relevance, 0.1)
