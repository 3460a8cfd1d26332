"""Gaussian and Laplace noise: on all records, or on a sample (Poisson sampling, samples of fixed size)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from assay.accounting import events
from assay.accounting.events import (
    COUNT,
    LEAST_RATE,
    NOISE,
    PROBABILITY,
    SIZE,
    Accountant,
    Adjacency,
    Parts,
    UnaccountableError,
)
from assay.accounting.losses import Gaussian, Laplace, Poisson, PoissonReplaced, Term, WithoutReplacement
from assay.errors import ConfigError

_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e9  # noise outside counts as the nearest that costs more


def noise(event: DpEvent, shift: int) -> Gaussian | Laplace | None:
    """The noise of one release relative to `shift` times the bound of one record; None if there is none."""
    if event.noise_multiplier < _LEAST_NOISE:
        return None
    multiplier = min(event.noise_multiplier, _MOST_NOISE) / shift
    return Gaussian(multiplier) if isinstance(event, dp_event.GaussianDpEvent) else Laplace(multiplier)


@dataclass(frozen=True, kw_only=True)
class Noise(Accountant):
    """Noise added once, relative to what one record contributes."""

    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:  # noqa: ARG002
        """The noise. Where a record is replaced, the sum moves by twice as much."""
        yield noise(event, 2 if adjacency is Adjacency.REPLACE_ONE else 1), 1


@dataclass(frozen=True, kw_only=True)
class Sampled(Accountant):
    """Releases from one sample, amplified."""

    shift: ClassVar[int]
    """How far a record of the sample moves the release, in multiples of the bound on one record."""

    @abstractmethod
    def rate(self, event: DpEvent) -> float:
        """The probability that a record is in the sample."""

    @abstractmethod
    def amplified(self, event: DpEvent, base: Gaussian | Laplace, rate: float, adjacency: Adjacency) -> Term:
        """The term of noise `base` on a sample that is drawn with this probability, at least `LEAST_RATE`."""

    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:
        """The term of all releases from the sample together, because they are not sampled independently."""
        rate = self.rate(event)
        inner = events.joint([event.event])
        if rate == 0 or isinstance(inner, dp_event.NoOpDpEvent):
            return
        if rate == 1:
            yield from parts(inner)
        elif isinstance(inner, dp_event.NonPrivateDpEvent):
            yield None, 1
        elif isinstance(inner, dp_event.GaussianDpEvent | dp_event.LaplaceDpEvent):
            base = noise(inner, self.shift)
            yield None if base is None else self.amplified(event, base, max(rate, LEAST_RATE), adjacency), 1
        else:
            raise _unbounded(event, inner)


def _unbounded(event: DpEvent, inner: DpEvent) -> UnaccountableError:
    return UnaccountableError(
        f"{event} has no bound: what is released from one sample must be Gaussian (any number of "
        f"releases) or one Laplace release, not {inner}."
    )


def _not_for_laplace(event: DpEvent, adjacency: Adjacency) -> UnaccountableError:
    return UnaccountableError(
        f"{event} has no bound under {adjacency}: no dominating pair is known for Laplace noise on a "
        f"sample when a record is replaced. Use Gaussian noise, or Poisson sampling under "
        f"{Adjacency.ADD_OR_REMOVE_ONE}."
    )


@dataclass(frozen=True, kw_only=True)
class PoissonSampled(Sampled):
    """Each record is in the sample independently with the same probability."""

    shift: ClassVar[int] = 1

    def rate(self, event: DpEvent) -> float:
        """The sampling probability q."""
        probability: float = event.sampling_probability
        return probability

    def amplified(self, event: DpEvent, base: Gaussian | Laplace, rate: float, adjacency: Adjacency) -> Term:
        """Zhu, Dong and Wang 2022 (arXiv:2106.08567); where a record is replaced, for Gaussian noise only."""
        if adjacency is not Adjacency.REPLACE_ONE:
            return Poisson(rate, base)
        if isinstance(base, Gaussian):
            return PoissonReplaced(rate, base.multiplier)
        raise _not_for_laplace(event, adjacency)


@dataclass(frozen=True, kw_only=True)
class FixedSize(Sampled):
    """A uniformly random subset of fixed size. Replacing a record of it moves the release by twice the bound."""

    shift: ClassVar[int] = 2

    def rate(self, event: DpEvent) -> float:
        """The size of the sample b divided by the number of records N."""
        share: float = event.sample_size / event.source_dataset_size
        return share

    def amplified(
        self,
        event: DpEvent,
        base: Gaussian | Laplace,
        rate: float,  # noqa: ARG002
        adjacency: Adjacency,
    ) -> Term:
        """Balle, Barthe and Gaboardi 2018 (arXiv:1807.01647), Theorem 9."""
        if isinstance(base, Gaussian):
            return WithoutReplacement(event.sample_size, event.source_dataset_size, base)
        raise _not_for_laplace(event, adjacency)

    def terms(self, event: DpEvent, adjacency: Adjacency, parts: Callable[[DpEvent], Parts]) -> Parts:
        """As for every sample, but defined only where a record is replaced."""
        if adjacency is not Adjacency.REPLACE_ONE:
            raise UnaccountableError(
                f"{event} has no bound under {adjacency}: adding a record changes the number of records and with "
                f"it every sample of fixed size. Use {Adjacency.REPLACE_ONE}, or Poisson sampling."
            )
        return super().terms(event, adjacency, parts)

    def check(self, data: Mapping[str, object], path: str) -> None:
        """Refuse samples that are larger than the data set."""
        size, source = data.get("sample_size"), data.get("source_dataset_size")
        if isinstance(size, int) and isinstance(source, int) and size > source:
            raise ConfigError(f"{path}.sample_size", size, f"at most source_dataset_size = {source}")


ACCOUNTANTS = (
    Noise(name="gaussian", event=dp_event.GaussianDpEvent, numbers={"noise_multiplier": NOISE}),
    Noise(name="laplace", event=dp_event.LaplaceDpEvent, numbers={"noise_multiplier": NOISE}),
    PoissonSampled(
        name="poisson-sampled",
        event=dp_event.PoissonSampledDpEvent,
        numbers={"sampling_probability": PROBABILITY},
        inner="event",
    ),
    FixedSize(
        name="sampled-without-replacement",
        event=dp_event.SampledWithoutReplacementDpEvent,
        numbers={"source_dataset_size": SIZE, "sample_size": COUNT},
        inner="event",
    ),
)
