"""How the noise changes from step to step: equal and independent, falling in levels, or correlated.

A schedule divides the steps of a run into stretches and states the factor on the noise multiplier for each. Each
stretch is charged for its own noise. A schedule also states how the noise of a step cancels some of the noise before
it. All of it is fixed before the run and does not depend on the records.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

from assay._util import spec
from assay._util.registry import Registry
from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.accounting.blt import Buffers

_INDEPENDENT = (1.0,)
_LONGEST = 10**5  # steps; the search takes minutes there


class NoiseSchedule(ABC):
    """How the noise multiplier changes over a run. A frozen dataclass whose fields are its settings."""

    name: ClassVar[str]
    """Its name in `--noise-schedule` and in records."""

    def for_run(self, steps: int, records: int, batch_size: float) -> NoiseSchedule:  # noqa: ARG002
        """The schedule with all its settings: those left open are taken from the run."""
        return self

    @abstractmethod
    def stretches(self, steps: int) -> list[tuple[int, float]]:
        """(steps, factor) in the order of the run. Steps add up to `steps`; the first factor is 1 and the largest."""

    @property
    def strategy(self) -> tuple[float, ...]:
        """c_0 ... c_(b-1) of unit norm: the noise w of the steps solves Σ_j c_j w_(t-j) = z_t for independent z.

        It is just 1 where the noise of the steps is independent.
        """
        return _INDEPENDENT

    @property
    def separation(self) -> int:
        """How far apart two batches of a record are at least, in steps; 1 where the noise of the steps is independent.

        Records are then in groups that take turns (`assay.data.samplers.cyclic`).
        """
        return len(self.strategy)

    @property
    def correlated(self) -> bool:
        """Whether steps have noise in common."""
        return self.separation > 1

    @property
    def blt(self) -> Buffers | None:
        """The strategy, where no step is the last to take back noise; `strategy` is not used then.

        Finding one may take a while, and what it costs does not depend on it.
        """
        return None

    @property
    def amplified(self) -> bool:
        """Whether a batch may be a sample of those whose turn it is; if not, it is all of them."""
        return self.blt is None

    @property
    def longest(self) -> int | None:
        """The most steps for which the noise is proven; None where there is no limit."""
        return None if self.blt is None else self.blt.length


@dataclass(frozen=True, kw_only=True)
class Constant(NoiseSchedule):
    """The same noise in every step."""

    name: ClassVar[str] = "constant"

    def stretches(self, steps: int) -> list[tuple[int, float]]:
        """One stretch."""
        return [(steps, 1.0)]


@dataclass(frozen=True, kw_only=True)
class Decay(NoiseSchedule):
    """Equal stretches, one for each level, from factor 1 down to `last` in equal ratios.

    Attributes:
        levels: the number of stretches.
        last: the factor of the last stretch.

    Raises:
        ConfigError: a setting is out of range.

    >>> Decay(levels=2, last=0.5).stretches(10)
    [(5, 1.0), (5, 0.5)]
    """

    name: ClassVar[str] = "decay"

    levels: int = 4
    last: float = 0.5

    def __post_init__(self) -> None:
        if not 2 <= self.levels <= 32:
            raise ConfigError("noise_schedule levels", self.levels, "a whole number from 2 to 32")
        if not 0 < self.last <= 1:
            raise ConfigError("noise_schedule last", self.last, "a number above 0 and at most 1")

    def stretches(self, steps: int) -> list[tuple[int, float]]:
        """The stretches. A run with fewer steps than levels has fewer stretches."""
        ends = [round(steps * (i + 1) / self.levels) for i in range(self.levels)]
        counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        levels = [(n, self.last ** (i / (self.levels - 1))) for i, n in enumerate(counts) if n]
        return [(n, factor / levels[0][1]) for n, factor in levels]


@dataclass(frozen=True, kw_only=True)
class Banded(NoiseSchedule):
    """Noise that later steps partly cancel, by a banded strategy matrix.

    The sum that the optimizer forms over the run then has less noise than with independent steps (Choquette-Choo et
    al.: "(Amplified) Banded Matrix Factorization: A Unified Approach to Private Training", NeurIPS 2023,
    arXiv:2306.08153).

    The strategy is the banded square root (Kalinin and Lampert: "Banded Square Root Matrix Factorization for
    Differentially Private Model Training", 2024, arXiv:2405.13763). It has the first b coefficients of
    (1-x)^-½ (1-βx)^-½, whose square is what SGD with momentum β does to its gradients, scaled to unit norm. So every
    column of the matrix has norm at most 1, and columns b or more apart have no row in common.

    Attributes:
        bands: b.
        momentum: β, the optimizer's.

    Raises:
        ConfigError: a setting is out of range.
    """

    name: ClassVar[str] = "banded"

    bands: int = 4
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 2 <= self.bands <= 1024:
            raise ConfigError("noise_schedule bands", self.bands, "a whole number from 2 to 1024")
        _check_momentum(self.momentum)

    def stretches(self, steps: int) -> list[tuple[int, float]]:
        """One stretch."""
        return [(steps, 1.0)]

    @property
    def strategy(self) -> tuple[float, ...]:
        """The coefficients."""
        return _square_root(self.bands, self.momentum)


@dataclass(frozen=True, kw_only=True)
class Toeplitz(Banded):
    """As `banded`, with coefficients optimised for the length of the run (`assay.accounting.toeplitz`).

    Among all banded strategies that are the same in every step, they have the least noise in what the optimizer sums
    up: the least mean variance over the steps of the run. They are scaled to unit norm as the square root is, so the
    cost is the same: it does not depend on `length`.

    Attributes:
        length: The steps of the run, or None for those of the plan. Another number costs accuracy, not privacy.

    Raises:
        ConfigError: a setting is out of range.

    >>> from assay.accounting.toeplitz import error
    >>> error(Toeplitz(bands=4, length=100).strategy, 100) < error(Banded(bands=4).strategy, 100)
    True
    """

    name: ClassVar[str] = "toeplitz"

    length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_length(self.length)

    def for_run(self, steps: int, records: int, batch_size: float) -> Toeplitz:  # noqa: ARG002
        """With the length of the run."""
        return replace(self, length=min(max(2, steps), _LONGEST)) if self.length is None else self

    @property
    def separation(self) -> int:
        """As many steps as there are bands; the strategy need not be known for it."""
        return self.bands

    @property
    def strategy(self) -> tuple[float, ...]:
        """The coefficients."""
        return _optimised(self.bands, self.momentum, _known("length", self.length))


@dataclass(frozen=True, kw_only=True)
class Buffered(NoiseSchedule):
    """Noise that all later steps partly cancel, at the memory of a few buffers (BLT: `assay.accounting.blt`).

    The best strategies have no last band. So the noise cancels better than with bands, and costs one copy of the
    parameters for each buffer. In return sampling does not amplify: records are in groups that take turns, and
    everybody in the group whose turn it is enters the batch.

    Attributes:
        buffers: how many.
        separation: the number of groups; a batch is one of them. None for as many as there are batches in an epoch.
        length: the steps of the run, which may not be longer. None for those of the plan.
        momentum: the optimizer's.

    Raises:
        ConfigError: a setting is out of range.
    """

    name: ClassVar[str] = "blt"

    buffers: int = 4
    separation: int | None = None  # type: ignore[assignment]  # known once there is a run
    length: int | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.buffers <= 8:
            raise ConfigError("noise_schedule buffers", self.buffers, "a whole number from 1 to 8")
        if self.separation is not None and not 2 <= self.separation <= 10**5:
            raise ConfigError("noise_schedule separation", self.separation, "a whole number from 2 to 100,000")
        _check_length(self.length)
        _check_momentum(self.momentum)

    def for_run(self, steps: int, records: int, batch_size: float) -> Buffered:
        """With the length of the run, and as many groups as there are batches in an epoch."""
        length = max(2, steps) if self.length is None else self.length
        separation = max(2, round(records / batch_size)) if self.separation is None else self.separation
        return replace(self, length=length, separation=separation)

    def stretches(self, steps: int) -> list[tuple[int, float]]:
        """One stretch."""
        return [(steps, 1.0)]

    @property
    def correlated(self) -> bool:
        """Yes, however many groups there are."""
        return True

    @property
    def amplified(self) -> bool:
        """No: a batch is a whole group."""
        return False

    @property
    def longest(self) -> int | None:
        """`length`."""
        return self.length

    @property
    def blt(self) -> Buffers:
        """The strategy."""
        length, separation = _known("length", self.length), _known("separation", self.separation)
        return _buffered(self.buffers, length, separation, self.momentum)


def _known(name: str, value: int | None) -> int:
    if value is None:
        raise ConfigError(f"noise_schedule {name}", None, "a whole number, or a plan whose run decides it")
    return value


def _check_length(length: int | None) -> None:
    if length is not None and not 2 <= length <= _LONGEST:
        raise ConfigError("noise_schedule length", length, "the steps of the run: from 2 to 100,000")


def _check_momentum(momentum: float) -> None:
    if not 0 <= momentum < 1:
        raise ConfigError("noise_schedule momentum", momentum, "that of the optimizer: from 0 to below 1")


@lru_cache(maxsize=16)
def _buffered(buffers: int, length: int, separation: int, momentum: float) -> Buffers:
    from assay.accounting import blt  # scipy's optimizers take a while to import

    return blt.optimised(buffers, length, separation, momentum)


@lru_cache(maxsize=16)
def _optimised(bands: int, momentum: float, length: int) -> tuple[float, ...]:
    from assay.accounting import toeplitz  # scipy's optimizers take a while to import

    return _scaled(toeplitz.optimised(_square_root(bands, momentum), length, momentum))


def _scaled(coefficients: Sequence[float]) -> tuple[float, ...]:
    # Slightly larger than the norm, so that rounding does not leave a norm above 1.
    norm = math.hypot(*coefficients) * (1 + 1e-12)
    return tuple(c / norm for c in coefficients)


@lru_cache(maxsize=16)
def _square_root(bands: int, momentum: float) -> tuple[float, ...]:
    roots = [1.0]  # of (1-x)^-½: binomial(2k, k) / 4^k
    for k in range(1, bands):
        roots.append(roots[-1] * (2 * k - 1) / (2 * k))
    coefficients = [sum(roots[i] * momentum ** (k - i) * roots[k - i] for i in range(k + 1)) for k in range(bands)]
    return _scaled(coefficients)


KINDS: Registry[type[NoiseSchedule]] = Registry(
    "noise_schedule",
    of=NoiseSchedule,
    classes=True,
    wanted="a class of noise schedules, derived from assay.accounting.schedules.NoiseSchedule",
    known=(Constant, Decay, Banded, Toeplitz, Buffered),
)


def parse(text: str) -> NoiseSchedule:
    """The schedule that `text` names.

    Raises:
        ConfigError: there is no such schedule, or it does not take these settings.

    >>> parse("decay:levels=2")
    Decay(levels=2, last=0.5)
    """
    return spec.parse("noise_schedule", text, KINDS)


def describe(schedule: NoiseSchedule) -> str:
    """The text that `parse` turns into this schedule, with all its settings."""
    return spec.written(schedule, KINDS)


def within(stretches: list[tuple[int, float]], start: int, steps: int) -> list[tuple[int, float]]:
    """The stretches of `steps` steps from step `start` on."""
    ends = list(accumulate(n for n, _ in stretches))
    counts = [
        (min(end, start + steps) - max(end - n, start), factor)
        for end, (n, factor) in zip(ends, stretches, strict=True)
    ]
    return [(n, factor) for n, factor in counts if n > 0]
