"""Randomness: where noise and samples come from, and what that is worth.

A `Randomness` gives a `Stream` of numbers for each purpose and step. Within one `Randomness` in one process, the same
purpose and step always give the same numbers, and different ones give independent numbers. A run can therefore continue
at any step without storing the state of a generator, with which anybody could subtract the noise. For the same reason
a purpose and step must serve one release only: whoever releases asks for a `fresh_source`.

There are three kinds. `OsSeeded`, the default, is AES-256 in counter mode. `Seeded` is the Mersenne Twister, for
results that must repeat and are therefore not private. `Secure` is SHAKE-256: slower, with 64 bits in every number and
the same generator on every device.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol, runtime_checkable

from assay._util.lazy import torch
from assay._util.process import Unique, here
from assay.errors import ConfigError
from assay.randomness.normal import add_drawn, drawn_together
from assay.randomness.rounded import Words

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.generators import Shake


class Stream(Protocol):
    """Random numbers for one purpose and step. Every call continues the stream: no number is given twice."""

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Independent standard normal numbers; the tails reach beyond 8 standard deviations."""
        ...

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Independent Laplace numbers of scale 1; the tails reach beyond 36."""
        ...

    def uniform(self, n: int) -> Tensor:
        """Independent uniform multiples of 2⁻⁵³ in [0, 1), in float64 on the CPU, so that P(u < q) = q ± 2⁻⁵³."""
        ...

    def integers(self, high: int, n: int) -> Tensor:
        """Independent whole numbers, uniform on [0, high) to within high/2⁵³, int64 on the CPU."""
        ...


class Randomness(Protocol):
    """A source of streams."""

    @property
    def fingerprint(self) -> str | None:
        """A name for these numbers if somebody else can draw them again; None if nobody can."""
        ...

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step."""
        ...

    def describe(self) -> str:
        """A phrase for the privacy statement."""
        ...


def seed_torch(stream: Stream, device: torch.device) -> None:
    """Seed torch's own generators, which dropout draws from, from a stream.

    `torch.manual_seed` would queue a stack trace at every call where CUDA is not in use yet.
    """
    seed = int(stream.integers(2**62, 1))
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


class _OsKey:
    """A key of 256 bits from the operating system. It lives in memory only and is never shown."""

    __slots__ = ("_key",)

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def _seed(self, purpose: str, step: int) -> Shake:
        """What a stream begins with: different in every process, forked children included."""
        salt = here().salt
        key = hashlib.blake2b(self._key, key=salt, digest_size=32, person=b"assay fork").digest() if salt else self._key
        return _hash(key, purpose, step)

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"the key of {name} is secret: make a new {name}() instead of pickling or copying one")


class OsSeeded(_OsKey):
    """AES-256 in counter mode with a key of the operating system. Telling its numbers from random ones breaks AES.

    Every stream has its own key and first counter, derived from that key by SHAKE-256, so that one stream reveals
    nothing about another. float32 normal numbers are made of 32 bits each (`generators.Encrypted`), all others of 64
    like those of `Secure`. Normal numbers on CUDA are the exception: torch's generator there draws them, seeded from
    the same key. It is Philox, which is not made to withstand an attack.
    """

    __slots__ = ()
    fingerprint = None

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step, in this process only."""
        seed = self._seed(purpose, step)
        from assay.randomness.generators import KEY_BYTES, Encrypted, Generated

        return Encrypted(seed.digest(KEY_BYTES), Generated(seed))

    def describe(self) -> str:
        """For the statement."""
        return "AES-256 in counter mode, keyed by the operating system; the key was never stored"


class Secure(_OsKey):
    """SHAKE-256 with a key of the operating system, on every device. Telling its numbers from random ones breaks SHA-3.

    A number is made in float64 from 64 random bits by inverting the distribution function, with one bit for the sign.
    This cuts off 2⁻⁶⁴ of the probability, at 9 standard deviations. It does not change what adding noise to float32
    gradients does to the last bits of a release (Mironov 2012, "On significance of the least significant bits for
    differential privacy"). float32 normal numbers take about eight times as long as those of `OsSeeded`.
    """

    __slots__ = ()
    fingerprint = None

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this purpose and step, in this process only."""
        from assay.randomness.generators import Hashed

        return Hashed(self._seed(purpose, step))

    def describe(self) -> str:
        """For the statement."""
        return "cryptographically secure generator (SHAKE-256) keyed by the operating system; the key was never stored"


class Seeded:
    """torch's generators, with states derived from a seed of the user: bitwise the same in every run on the CPU.

    Whoever knows the seed can subtract the noise.

    Args:
        seed: From 0 to 2⁶⁴ - 1.

    Raises:
        ConfigError: The seed is anything else.
    """

    __slots__ = ("_key", "fingerprint", "seed")

    def __init__(self, seed: int) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
            raise ConfigError("seed", seed, "a whole number from 0 to 2⁶⁴ - 1")
        self.seed = seed
        self._key = hashlib.blake2b(seed.to_bytes(8, "little"), digest_size=32, person=b"assay seed").digest()
        self.fingerprint = f"seed {seed}"

    def stream(self, purpose: str, step: int) -> Stream:
        """The numbers for this seed, purpose and step."""
        from assay.randomness.generators import Generated

        return Generated(_hash(self._key, purpose, step))

    def describe(self) -> str:
        """For the statement."""
        return f"fixed seed {self.seed}: reproducible, not private"


class Within:
    """Randomness for one component of a run. None of its streams is one of the run's, whatever its purpose's name."""

    def __init__(self, base: Randomness, name: str) -> None:
        self._base, self._name = base, name

    @property
    def fingerprint(self) -> str | None:
        """That of the run."""
        return self._base.fingerprint

    def stream(self, purpose: str, step: int) -> Stream:
        """The component's stream for this purpose and step."""
        return self._base.stream(f"{self._name}: {purpose}", step)

    def describe(self) -> str:
        """That of the run."""
        return self._base.describe()


def fresh_source(randomness: Randomness) -> Randomness:
    """A source for one user, who draws numbers that no other user of `randomness` has.

    128 bits of the operating system tell the users apart. A seeded source, whose numbers are to repeat, is returned as
    it is.
    """
    if randomness.fingerprint is not None:
        return randomness
    return Within(randomness, f"taken {os.urandom(16).hex()}")


def check_source(seed: int | None, secure: bool) -> None:
    """Refuse a seed if numbers are to be secret.

    Raises:
        ConfigError: Both are given.
    """
    if seed is not None and secure:
        raise ConfigError("seed", seed, "no seed together with secure_rng: a seeded run is reproducible, not private")


def source(seed: int | None, secure: bool) -> Randomness:
    """The source of a run's random numbers: `Seeded` with a seed, `Secure` if asked for, else `OsSeeded`."""
    if seed is not None:
        return Seeded(seed)
    return Secure() if secure else OsSeeded()


def _hash(key: bytes, purpose: str, step: int) -> Shake:
    # Key and step have fixed lengths, so no two inputs give the same bytes.
    return hashlib.shake_256(key + step.to_bytes(8, "little") + purpose.encode())


@runtime_checkable
class AddsNormal(Protocol):
    """A stream with a faster way to add its normal numbers than to hand them over first."""

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """As the function `add_normal`, and with the same numbers as if it called `normal`."""
        ...


def add_normal(values: Sequence[Tensor], std: float, stream: Stream) -> None:
    """Add std · z to the values in place, z being independent standard normal numbers of the stream.

    Args:
        values: What the noise is added to.
        std: The noise's standard deviation. Nothing is drawn if it is 0.
        stream: Where the noise comes from.
    """
    if not values or std == 0:
        return
    own = getattr(stream, "add_normal", None)  # `isinstance` of a protocol takes longer than a small model's noise
    if own is not None:
        own(values, std)
    else:
        add_drawn(values, std, stream.normal)


_BLOCK_NUMBERS, _SERIES = 1 << 16, 64  # 256 KB: what fits a core's cache is drawn fastest


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows of a series that were drawn together, from place `first` on."""

    series: int
    stream: Stream
    first: int
    drawn: Tensor | None = None
    rows: tuple[Tensor, ...] = ()
    cut: dict[tuple[torch.Size, ...], list[tuple[Tensor, ...]]] = field(default_factory=dict)
    """The rows as tensors of several shapes. Cutting all of a block at once costs as much as cutting a row."""

    def pieces(self, place: int, shapes: tuple[torch.Size, ...]) -> tuple[Tensor, ...]:
        """A row as tensors of these shapes, one after the other."""
        found = self.cut.get(shapes)
        if found is None:
            assert self.drawn is not None
            parts = self.drawn.split_with_sizes(list(map(math.prod, shapes)), 1)
            rows = [part.view(-1, *shape).unbind(0) for part, shape in zip(parts, shapes, strict=True)]
            found = self.cut[shapes] = list(zip(*rows, strict=True))
        return found[place - self.first]


class Blocks(Unique):
    """The streams of one purpose, with the normal numbers of many steps drawn at once. Steps in order are cheapest.

    For a small model, seeding a generator and checking its tails costs as much as the numbers. A stream therefore
    serves a series of 64 steps, and its numbers are drawn in blocks of several steps. A step's series and place in it
    follow from its number alone, so a resumed run with a seed finds its noise again, by drawing the series from the
    beginning. Every row is handed out for one step only.
    """

    def __init__(self, randomness: Randomness, purpose: str) -> None:
        self._randomness, self._purpose = randomness, purpose
        self._kept: dict[tuple[int, int, torch.dtype, torch.device | str], _Block] = {}

    def at(self, step: int) -> Stream:
        """The numbers for this step."""
        return _Step(self, step)

    def stream_of(self, step: int) -> Stream:
        """The stream of everything but normal numbers."""
        return self._randomness.stream(self._purpose, step)

    def stream_of_call(self, step: int, call: int) -> Stream:
        """The stream of a call that asks for more numbers than a block holds."""
        return self._randomness.stream(f"{self._purpose}, call {call}", step)

    def row(self, step: int, call: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """The normal numbers of one call of a step."""
        size = math.prod(shape)
        if _exceeds_block(size):
            return self.stream_of_call(step, call).normal(shape, dtype=dtype, device=device)
        place, kept = self._block(step, call, size, dtype, device)
        numbers = kept.rows[place - kept.first]
        return numbers if len(shape) == 1 else numbers.view(tuple(shape))

    def pieces(self, step: int, call: int, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The normal numbers of one call of a step, in the shapes of these tensors. They must fit into a block."""
        size = sum([v.numel() for v in like])
        place, kept = self._block(step, call, size, like[0].dtype, like[0].device)
        return kept.pieces(place, tuple([v.shape for v in like]))

    def _block(
        self, step: int, call: int, size: int, dtype: torch.dtype, device: torch.device | str
    ) -> tuple[int, _Block]:
        """The place of a step in its series, and the block that holds it."""
        self.check_process()
        series, place = divmod(step, _SERIES)
        kind = (call, size, dtype, device)
        # Popped until the new rows are there: after an exception while drawing, the next call begins the series again.
        kept = self._kept.pop(kind, None)
        if kept is None or kept.series != series or kept.first > place:
            name = f"{self._purpose}, call {call}, {size} numbers, {dtype}, {device}"
            kept = _Block(series, self._randomness.stream(name, series), 0)
        while place >= kept.first + len(kept.rows):
            # a power of two, so that blocks fill a series
            rows = min(_SERIES, 1 << (_BLOCK_NUMBERS // max(1, size)).bit_length() - 1)
            drawn = kept.stream.normal((rows, size), dtype=dtype, device=device)
            kept = _Block(series, kept.stream, kept.first + len(kept.rows), drawn, drawn.unbind(0))
        self._kept[kind] = kept
        return place, kept


def _exceeds_block(size: int) -> bool:
    return 2 * size > _BLOCK_NUMBERS


class _Step:
    """One step's stream."""

    __slots__ = ("_blocks", "_calls", "_others", "_step")

    def __init__(self, blocks: Blocks, step: int) -> None:
        self._blocks, self._step, self._calls = blocks, step, 0
        self._others: Stream | None = None

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        return self._blocks.row(self._step, self._next_call(), shape, dtype, device)

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        for group in drawn_together(values):
            size = sum(v.numel() for v in group)
            if _exceeds_block(size):
                add_normal(group, std, self._blocks.stream_of_call(self._step, self._next_call()))
            else:
                torch._foreach_add_(list(group), self._blocks.pieces(self._step, self._next_call(), group), alpha=std)

    def _next_call(self) -> int:
        call, self._calls = self._calls, self._calls + 1
        return call

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        return self._rest().laplace(shape, dtype=dtype, device=device)

    def uniform(self, n: int) -> Tensor:
        return self._rest().uniform(n)

    def integers(self, high: int, n: int) -> Tensor:
        return self._rest().integers(high, n)

    def words(self, n: int) -> Tensor:
        rest = self._rest()
        if not isinstance(rest, Words):
            raise ConfigError("randomness", type(rest).__name__, "streams with `words`: exact noise is made of bits")
        return rest.words(n)

    def _rest(self) -> Stream:
        """The stream of everything but normal numbers."""
        if self._others is None:
            self._others = self._blocks.stream_of(self._step)
        return self._others
