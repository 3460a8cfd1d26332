"""Regions of features of similar relevance, and each region's share of the budget (AFRRS, Algorithm 1, Eq. 12-15).

Regions are computed from released relevance only, so they cost no privacy.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay._util.lazy import torch
from assay.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Regions:
    """The regions C_k, numbered by increasing relevance.

    Attributes:
        index: each feature's region, in the shape of one record.
        relevance: R̄_k, the mean over a region's features.
        counts: |C_k|.
    """

    index: Tensor
    relevance: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def features(self) -> int:
        """The number of features d."""
        return self.index.numel()

    @property
    def mu(self) -> Tensor:
        """The share μ_k = |C_k|/d of all features that lies in each region."""
        return self.counts.double() / self.features

    @property
    def alpha(self) -> Tensor:
        """Eq. 14: α_k = |R̄_k| / Σ μ_k |R̄_k|, so that Σ μ_k α_k = 1. All are equal where no feature has relevance."""
        size = self.relevance.abs()
        mean = (self.mu * size).sum()
        return size / mean if mean > 0 else torch.ones_like(size)

    def of_features(self, values: Tensor) -> Tensor:
        """What each feature gets if region k gets `values[k]`, in the shape of one record."""
        return values[self.index]

    def epsilons(self, epsilon: float) -> Tensor:
        """Eq. 15: ε_k = α_k ε2, for each region."""
        return self.alpha * epsilon


def check_gamma(gamma: float) -> None:
    """Refuse a distance that is not a finite number, 0 or above."""
    if not (math.isfinite(gamma) and gamma >= 0):
        raise ConfigError("gamma", gamma, "a finite number, 0 or above")


def segment(relevance: Tensor, gamma: float) -> Regions:
    """Cluster features by average linkage with distance |R_i - R_j|, merging while the least distance is below γ.

    This is exact and takes O(d log d): clusters of numbers on a line stay intervals, the average distance of two
    disjoint intervals is that of their means, and the nearest two are neighbours. The regions are those of
    scikit-learn's `AgglomerativeClustering(linkage="average", distance_threshold=γ)` wherever no two distances tie.

    Args:
        relevance: released relevance, in the shape of one record.
        gamma: γ.

    Raises:
        ConfigError: γ is negative, or a number is not finite.

    >>> segment(torch.tensor([0.0, 0.9, 0.1, 1.0]), gamma=0.2).index
    tensor([0, 1, 0, 1])
    """
    check_gamma(gamma)
    if relevance.numel() == 0 or not bool(relevance.isfinite().all()):
        raise ConfigError("relevance", relevance, "finite numbers, at least one")
    ordered, order = relevance.detach().cpu().double().flatten().sort()
    counts = _merged(ordered.tolist(), gamma)
    sizes = torch.tensor(counts)
    index = torch.empty(len(ordered), dtype=torch.int64)
    index[order] = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    means = torch.stack([cluster.mean() for cluster in ordered.split(counts)])
    return Regions(index=index.view(relevance.shape), relevance=means, counts=sizes)


def _merged(ordered: list[float], gamma: float) -> list[int]:
    """The sizes of the clusters of an ascending list, in its order."""
    n = len(ordered)
    sums, sizes = list(ordered), [1] * n
    left, right = list(range(-1, n - 1)), list(range(1, n + 1))  # neighbouring clusters, by their first element
    alive, version = [True] * n, [0] * n

    def gap(i: int, j: int) -> float:
        return sums[j] / sizes[j] - sums[i] / sizes[i]

    queue = [(gap(i, i + 1), i, i + 1, 0, 0) for i in range(n - 1)]
    heapq.heapify(queue)
    while queue and queue[0][0] < gamma:
        _, i, j, seen_i, seen_j = heapq.heappop(queue)
        if not (alive[i] and alive[j] and version[i] == seen_i and version[j] == seen_j):
            continue  # one of the clusters has grown since
        sums[i], sizes[i] = sums[i] + sums[j], sizes[i] + sizes[j]
        alive[j], right[i] = False, right[j]
        version[i] += 1
        if right[i] < n:
            left[right[i]] = i
            heapq.heappush(queue, (gap(i, right[i]), i, right[i], version[i], version[right[i]]))
        if left[i] >= 0:
            heapq.heappush(queue, (gap(left[i], i), left[i], i, version[left[i]], version[i]))
    return [sizes[i] for i in range(n) if alive[i]]
