"""Regions of features of similar relevance, and the share of the budget that each gets (afrrs.txt, Algorithm 1, Eq. 12-15).

Works on released relevance only, so it costs no privacy.
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
    """The regions C_k, numbered by their relevance from least to most.

    `index` holds each feature's region in the shape of one record; `relevance` is R̄_k, the mean over a region's features;
    `counts` is |C_k|.
    """

    index: Tensor
    relevance: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def features(self) -> int:
        """d."""
        return self.index.numel()

    @property
    def mu(self) -> Tensor:
        """The part μ_k = |C_k|/d of all features that is in each region."""
        return self.counts.double() / self.features

    @property
    def alpha(self) -> Tensor:
        """Eq. 14: α_k = |R̄_k| / Σ μ_k |R̄_k|; Σ μ_k α_k = 1. Where nothing has any relevance, all are equal."""
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
    """Refuse a distance that is no finite number, 0 or above."""
    if not (math.isfinite(gamma) and gamma >= 0):
        raise ConfigError("gamma", gamma, "a finite number, 0 or above")


def segment(relevance: Tensor, gamma: float) -> Regions:
    """Agglomerative clustering with average linkage and distance |R_i - R_j|, merging while the least distance is below γ.

    Exact, in O(d log d): clusters of numbers on a line stay intervals, the average distance of two intervals that do not
    overlap is that of their means, and the nearest two are neighbours. The same regions as scikit-learn's
    `AgglomerativeClustering(linkage="average", distance_threshold=γ)` wherever no two distances tie.
    """
    check_gamma(gamma)
    if relevance.numel() == 0 or not bool(relevance.isfinite().all()):
        raise ConfigError("relevance", relevance, "finite numbers, at least one")
    ordered, order = relevance.detach().cpu().double().flatten().sort()
    counts = _merged(ordered.tolist(), gamma)
    sizes = torch.tensor(counts)
    index = torch.empty(len(ordered), dtype=torch.int64)
    index[order] = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    means = torch.stack([part.mean() for part in ordered.split(counts)])
    return Regions(index=index.view(relevance.shape), relevance=means, counts=sizes)


def _merged(ordered: list[float], gamma: float) -> list[int]:
    """Sizes of the clusters of an ascending list, in its order."""
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
            continue  # a distance to a cluster that has grown since
        sums[i], sizes[i] = sums[i] + sums[j], sizes[i] + sizes[j]
        alive[j], right[i] = False, right[j]
        version[i] += 1
        if right[i] < n:
            left[right[i]] = i
            heapq.heappush(queue, (gap(i, right[i]), i, right[i], version[i], version[right[i]]))
        if left[i] >= 0:
            heapq.heappush(queue, (gap(left[i], i), left[i], i, version[left[i]], version[i]))
    return [sizes[i] for i in range(n) if alive[i]]
