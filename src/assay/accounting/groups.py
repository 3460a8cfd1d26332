"""ε for several records that belong together: the people behind a table may have more than one row in it.

`group_epsilons` states ε for groups of k records. Two ways, both upper bounds:

- *Together.* This holds where every release is a sum over records plus Gaussian noise, and each record is sampled by
  its own coin. A batch then has as many of k records as k coins show heads. The sum moves by at most that many times
  the bound: a mixture of Gaussians (`assay.accounting.accountants.mixture` has the proof). Without sampling it moves by
  k times the bound, so the noise multiplier is that of one record divided by k.
- *One by one.* Whatever is (ε, δ)-private for one record is (kε, δ Σ_{i<k} e^{iε})-private for k of them (Vadhan, "The
  complexity of differential privacy", 2017, lemma 2.2). This is much looser.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.accounting import events
from assay.accounting.accountants.allocated import RandomAllocationDpEvent
from assay.accounting.accountants.mixture import sampled_together
from assay.accounting.epsilon import Adjacency, UnaccountableError, epsilon
from assay.errors import ConfigError

SIZES = (1, 2, 4, 8)
"""The sizes of groups that records and statements show."""

_TRIES = 12
_SPARE = 1.05
_BEYOND = 100.0  # of (k - 1) ε: δ of one record would have to be 1e-43 of the group's, and ε would say nothing


def enlarged(event: DpEvent, size: int) -> DpEvent | None:
    """What an event costs `size` records together, if all that it releases are sums with Gaussian or Laplace noise.

    Args:
        event: What it costs one record. Poisson sampling in it must mean that each record is sampled by its own coin.
        size: The most records that belong together.

    Returns:
        The event relative to what one record contributes; None where the event is of a kind that nothing is proven for.

    Raises:
        ConfigError: `size` is not a whole number above 0.

    Example:
        >>> enlarged(dp_event.GaussianDpEvent(4.0), 2)
        GaussianDpEvent(noise_multiplier=2.0)
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError("size", size, "a whole number, 1 or above")
    if size == 1:
        return event
    rule = _RULES.get(type(event))
    return None if rule is None else rule(event, size)


def group_epsilons(
    event: DpEvent, delta: float, adjacency: Adjacency, sizes: Iterable[int] = SIZES, *, together: bool = False
) -> dict[int, float]:
    """ε of groups of records at δ, by the size of the group.

    Args:
        event: What was released, relative to what one record contributes.
        delta: δ, the same for every size.
        adjacency: Which data sets are neighbours.
        sizes: How many records a group has.
        together: Whether every release is a sum with noise and each record is sampled by its own coin. Only a
            sampler and a mechanism know that; by default the bound that always holds is taken.

    Returns:
        An upper bound for each size; `math.inf` where there is none.
    """
    found: dict[int, float] = {}
    for size in sorted(sizes):
        lost = math.inf in found.values()  # a larger group has none either
        found[size] = math.inf if lost else _group_epsilon(event, delta, adjacency, size, together)
    # what holds for a group holds for each part of it
    least = math.inf
    for size in sorted(found, reverse=True):
        least = found[size] = min(least, found[size])
    return {size: found[size] for size in sorted(found)}


def _group_epsilon(event: DpEvent, delta: float, adjacency: Adjacency, size: int, together: bool) -> float:
    whole = enlarged(event, size) if together or size == 1 else None
    if whole is not None:
        try:
            return epsilon(whole, delta, adjacency)
        except UnaccountableError:
            if size == 1:
                raise
    return one_by_one(lambda smaller: epsilon(event, smaller, adjacency), delta, size)


def one_by_one(spent: Callable[[float], float], delta: float, size: int) -> float:
    """ε of a group from the ε of one record at smaller δ, by Vadhan's lemma.

    Args:
        spent: ε of one record at a given δ.
        delta: δ of the group.
        size: How many records it has.

    Returns:
        kε for an ε whose δ Σ_{i<k} e^{iε} is at most δ; `math.inf` where none was found.
    """
    share = delta / size
    for _ in range(_TRIES):
        one = spent(share)
        if not math.isfinite(one):
            return math.inf
        if (size - 1) * one > _BEYOND:
            return math.inf
        grown = math.fsum(math.exp(i * one) for i in range(size))
        if share * grown <= delta:
            return size * one
        share = delta / (grown * math.exp((size - 1) * one * (_SPARE - 1)))
    return math.inf


def _gaussian(event: DpEvent, size: int) -> DpEvent:
    return dp_event.GaussianDpEvent(event.noise_multiplier / size)


def _laplace(event: DpEvent, size: int) -> DpEvent:
    return dp_event.LaplaceDpEvent(event.noise_multiplier / size)


def _same(event: DpEvent, size: int) -> DpEvent:  # noqa: ARG001
    return event


def _composed(event: DpEvent, size: int) -> DpEvent | None:
    parts = [enlarged(part, size) for part in event.events]
    known = [part for part in parts if part is not None]
    return dp_event.ComposedDpEvent(known) if len(known) == len(parts) else None


def _repeated(event: DpEvent, size: int) -> DpEvent | None:
    inner = enlarged(event.event, size)
    return None if inner is None else dp_event.SelfComposedDpEvent(inner, event.count)


def _sampled(event: DpEvent, size: int) -> DpEvent | None:
    inner = events.joint([event.event])
    if isinstance(inner, dp_event.GaussianDpEvent):
        return sampled_together(size, event.sampling_probability, inner.noise_multiplier)
    return event if isinstance(inner, dp_event.NoOpDpEvent | dp_event.NonPrivateDpEvent) else None


def _allocated(event: DpEvent, size: int) -> DpEvent | None:
    """In shuffled epochs: one release per epoch without amplification (`assay.data.samplers.shuffled` says why)."""
    return enlarged(events.joint([event.event]), size)


def _mixed(event: DpEvent, size: int) -> DpEvent:
    """Several persons, each with records of their own: their shifts add up, and are independent of each other."""
    total = {0.0: 1.0}
    for _ in range(size):
        longer: dict[float, float] = {}
        for shift, mass in total.items():
            for more, chance in zip(event.sensitivities, event.sampling_probs, strict=True):
                longer[shift + more] = longer.get(shift + more, 0.0) + mass * chance
        total = longer
    shifts = sorted(total)
    masses = [total[shift] for shift in shifts]
    return dp_event.MixtureOfGaussiansDpEvent(event.standard_deviation, tuple(shifts), tuple(masses))


_RULES: Mapping[type[DpEvent], Callable[[DpEvent, int], DpEvent | None]] = {
    dp_event.NoOpDpEvent: _same,
    dp_event.NonPrivateDpEvent: _same,
    dp_event.GaussianDpEvent: _gaussian,
    dp_event.LaplaceDpEvent: _laplace,
    dp_event.ComposedDpEvent: _composed,
    dp_event.SelfComposedDpEvent: _repeated,
    dp_event.PoissonSampledDpEvent: _sampled,
    dp_event.MixtureOfGaussiansDpEvent: _mixed,
    RandomAllocationDpEvent: _allocated,
}
