"""Where the bits of a stream come from, and the numbers made of them.

`Hashed` takes its bits from SHAKE-256, `Encrypted` from AES-256 in counter mode; both are cryptographic. They make a
float64 number of 64 bits by inverting the distribution function. Training needs float32 normal numbers by the million:
`Encrypted` makes them of 32 bits each by Box and Muller's method. `Generated` takes torch's own numbers, which repeat
with a seed and do not withstand an attack.

float32 normal numbers are drawn piece by piece (`PiecewiseNormal`). A piece stays in a core's cache while it is drawn,
checked and added. A whole vector of noise would have to be allocated, which for a large one costs as much as drawing
it.
"""

from __future__ import annotations

import bisect
import copy
import functools
import itertools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from assay._util.process import Unique
from assay.errors import AssayError
from assay.randomness import normal
from assay.randomness.normal import PIECE

if TYPE_CHECKING:
    from assay.randomness.streams import Stream

KEY_BYTES = 32 + 16  # AES-256's key, and where its counter of 128 bits begins
_MAGNITUDE = 2**63 - 1
_BLOCK = 2**17
_ZEROS = memoryview(bytes(8 * _BLOCK))
_SPARE = 16  # bytes that `update_into` of older versions expects behind what it writes
_CPU = torch.device("cpu")


class Shake(Protocol):
    """What `hashlib.shake_256` makes."""

    def copy(self) -> Self: ...
    def update(self, data: bytes, /) -> None: ...
    def digest(self, length: int, /) -> bytes: ...


class PiecewiseNormal(ABC):
    """A stream that draws float32 normal numbers into existing memory, a piece at a time."""

    __slots__ = ()

    @abstractmethod
    def fill(self, piece: Tensor) -> Mapping[int, float]:
        """Draw into a piece. Numbers beyond `normal.TAIL` are returned by their place, with 0 left there."""

    @abstractmethod
    def uniform(self, n: int) -> Tensor:
        """As `assay.randomness.streams.Stream.uniform`."""

    @abstractmethod
    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """As `assay.randomness.streams.Stream.normal`."""

    def normal_float32(self, shape: Sequence[int]) -> Tensor:
        """Normal numbers on the CPU; those beyond `normal.TAIL` come from the tail's true distribution."""
        drawn = torch.empty(tuple(shape), dtype=torch.float32)
        flat, beyond = drawn.view(-1), {}
        for start, piece in _pieces(flat):
            beyond.update(_placed(self.fill(piece), start))
        for place, number in self._tail(beyond).items():
            flat[place] = number
        return drawn

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """Add std · `normal` in place, bit for bit. float32 vectors on the CPU need no memory for their noise."""
        for group in normal.drawn_together(values):
            if (vectors := _plain_vectors(group)) is None:
                size = sum(v.numel() for v in group)
                drawn = self.normal((size,), dtype=group[0].dtype, device=group[0].device)
                normal.add_vector(group, std, drawn)
            else:
                self._add(vectors, std)

    def _add(self, vectors: Sequence[Tensor], std: float) -> None:
        sizes = [v.numel() for v in vectors]
        ends = list(itertools.accumulate(sizes))
        beyond: dict[int, float] = {}
        i = done = 0  # which vector gets the next number, and how many it has
        for start in range(0, ends[-1], PIECE):
            count = min(PIECE, ends[-1] - start)
            piece = _memory.numbers if count == PIECE else _memory.numbers[:count]
            beyond.update(_placed(self.fill(piece), start))
            targets: list[Tensor] = []
            parts: list[int] = []
            while count:
                part = min(sizes[i] - done, count)
                targets.append(vectors[i] if part == sizes[i] else vectors[i][done : done + part])
                parts.append(part)
                count, done = count - part, done + part
                if done == sizes[i]:
                    i, done = i + 1, 0
            torch._foreach_add_(targets, piece.split_with_sizes(parts), alpha=std)
        for place, number in self._tail(beyond).items():
            i = bisect.bisect_right(ends, place)
            vectors[i][place - ends[i]].add_(number, alpha=std)  # from the end: negative

    def _tail(self, beyond: Mapping[int, float]) -> dict[int, Tensor]:
        """What belongs in the places of numbers beyond `normal.TAIL`."""
        if not beyond:
            return {}
        places = sorted(beyond)
        replaced = torch.tensor([beyond[place] for place in places])
        return dict(zip(places, normal.tail_numbers(replaced, self.uniform(len(places))).unbind(), strict=True))


class _Memory(threading.local):
    """Memory for one piece, one per thread and kept between calls: allocating it would cost as much as drawing."""

    @functools.cached_property
    def numbers(self) -> Tensor:
        return torch.empty(PIECE)


_memory = _Memory()


def _plain_vectors(values: Sequence[Tensor]) -> list[Tensor] | None:
    """Contiguous float32 values on the CPU as vectors to write to; None if any is something else."""
    if all(v.dtype == torch.float32 and v.device.type == "cpu" and v.is_contiguous() for v in values):
        return [v.view(-1) for v in values]
    return None


def _pieces(flat: Tensor) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(flat), PIECE):
        yield start, flat[start : start + PIECE]


def _placed(beyond: Mapping[int, float], start: int) -> dict[int, float]:
    return {start + place: number for place, number in beyond.items()}


class _FromBits(Unique, ABC):
    """A stream whose numbers are made of 64 random bits each, in blocks that take little memory."""

    __slots__ = ()

    @abstractmethod
    def _bits(self, n: int) -> Tensor:
        """The next n words of 64 bits, int64; n is at most `_BLOCK`."""

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Φ⁻¹ of a uniform number below ½, with a sign."""
        numbers = signed(lambda u: torch.special.ndtri(u.mul_(0.5)))
        return self._filled(torch.empty(tuple(shape), dtype=dtype), numbers).to(device)

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """The logarithm of a uniform number, with a sign."""
        return self._filled(torch.empty(tuple(shape), dtype=dtype), signed(torch.log)).to(device)

    def uniform(self, n: int) -> Tensor:
        """The upper 53 of 64 bits."""
        out = np.empty(n)
        for start in range(0, n, _BLOCK):
            block = out[start : start + _BLOCK]
            np.multiply(self._bits(len(block)).numpy().view(np.uint64) >> 11, 2.0**-53, out=block)
        return torch.from_numpy(out)

    def integers(self, high: int, n: int) -> Tensor:
        """The remainder of 63 bits."""
        return self._filled(torch.empty(n, dtype=torch.int64), lambda bits: (bits & _MAGNITUDE) % high)

    def words(self, n: int) -> Tensor:
        """The bits themselves."""
        return self._filled(torch.empty(n, dtype=torch.int64), lambda bits: bits)

    def _filled(self, out: Tensor, numbers: Callable[[Tensor], Tensor]) -> Tensor:
        flat = out.view(-1)
        for start in range(0, len(flat), _BLOCK):
            block = flat[start : start + _BLOCK]
            block.copy_(numbers(self._bits(len(block))))
        return out


def signed(quantile: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Turns words of 64 bits into numbers: `quantile` of a uniform number in (0, 1) made of 63 bits, and a sign."""

    def numbers(bits: Tensor) -> Tensor:
        size = quantile((bits & _MAGNITUDE).double().add_(0.5).mul_(2.0**-63))
        return torch.where(bits < 0, -size, size)

    return numbers


class Hashed(_FromBits):
    """Numbers from the output of an extendable hash, block by block."""

    __slots__ = ("_block", "_seed")

    def __init__(self, seed: Shake) -> None:
        self._seed, self._block = seed, 0

    def _bits(self, n: int) -> Tensor:
        self.check_process()
        seed = self._seed.copy()
        seed.update(self._block.to_bytes(8, "little"))
        self._block += 1
        return torch.frombuffer(bytearray(seed.digest(8 * n)), dtype=torch.int64)


def aes_counter(key: bytes) -> CipherContext:
    """AES-256 in counter mode, from `KEY_BYTES` of key and first counter. Encrypting zeros gives random bits."""
    return Cipher(algorithms.AES(key[:32]), modes.CTR(key[32:])).encryptor()


class Encrypted(_FromBits, PiecewiseNormal):
    """Numbers from AES-256 in counter mode: zeros are encrypted from beginning to end, and no block is used twice.

    Args:
        key: `KEY_BYTES` bytes: the key and the first counter.
        elsewhere: The stream of normal numbers on CUDA.
    """

    __slots__ = ("_cipher", "_elsewhere")

    def __init__(self, key: bytes, elsewhere: Stream) -> None:
        self._cipher = aes_counter(key)
        self._elsewhere = elsewhere

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """By inversion in float64; for other types by Box and Muller's method (see `fill`), then rounded."""
        device = torch.device(device)
        if device.type == "cuda":
            return self._elsewhere.normal(shape, dtype=dtype, device=device)
        if dtype == torch.float64:
            return super().normal(shape, dtype=dtype, device=device)
        return self.normal_float32(shape).to(device=device, dtype=dtype)

    def fill(self, piece: Tensor) -> Mapping[int, float]:
        """Independent standard normal numbers in float32.

        A pair takes 64 bits: r cos θ goes into the first half of the piece, r sin θ into the second.

        The radius r = sqrt(-2 log u) takes 32 bits: u is an odd multiple of 2⁻³³, and r ranges from 1.5e-5 to 6.8
        (`set_radius`). The angle takes 32 bits as well, in [-π, π). Rounding to float32 moves it by less than 2⁻²²; the
        angles of torch's own float32 numbers are as coarse (2⁻²¹·⁴). Numbers beyond `TAIL` are taken out, to be
        replaced from the true tail; the partner of such a number is independent of it and stays. The last number of an
        odd piece has a partner that is thrown away.
        """
        if len(piece) % 2:
            even = piece.new_empty(len(piece) + 1)
            beyond = self.fill(even)
            piece.copy_(even[:-1])
            return {place: number for place, number in beyond.items() if place < len(piece)}
        half = len(piece) // 2
        numbers, space = piece.numpy(), _workspaces.of(half)
        first, second = numbers[:half], numbers[half:]
        self._next_bits(space)
        set_radius(space)
        self._next_bits(space)
        np.copyto(second, space.signed, casting="same_kind")
        second *= _ANGLE
        np.cos(second, out=first)  # NumPy's take a third of the time of torch's
        np.sin(second, out=second)
        first *= space.radii
        second *= space.radii
        beyond = {}
        for pair in (space.radii > normal.TAIL).nonzero()[0].tolist():  # one in 25,000: no other has a number beyond
            for place in (pair, half + pair):
                if abs(number := float(numbers[place])) > normal.TAIL:
                    beyond[place], numbers[place] = number, 0
        return beyond

    def _next_bits(self, space: Workspace) -> None:
        self.check_process()
        self._cipher.update_into(space.zeros, space.bytes)

    def _bits(self, n: int) -> Tensor:
        self.check_process()
        buffer = bytearray(8 * n + _SPARE)
        self._cipher.update_into(_ZEROS[: 8 * n], buffer)
        return torch.frombuffer(buffer, dtype=torch.int64, count=n)


_WIDE = torch.backends.cpu.get_cpu_capability() == "AVX512"
_ANGLE, _HALF, _TOP = np.float32(math.pi * 2.0**-31), np.float32(0.5), np.uint32(2**31)


def set_radius(space: Workspace) -> None:
    """sqrt(-2 log u), u = (b + ½)/2³², where b - 2³¹ is the signed number that the bits are.

    As -log u = log1p((1 - u)/u), whose parts are b + ½ and 2³² - 1 - b + ½. float32 rounds either by 2⁻²⁴ of itself, so
    that r is within 4 units in its last place, whether u is near 0 or near 1. The logarithm of u itself, in float32,
    would leave 2⁻²⁵ of all pairs without any noise.
    """
    np.bitwise_xor(space.bits, _TOP, out=space.bits)
    np.copyto(space.part, space.bits, casting="same_kind")
    np.invert(space.bits, out=space.bits)
    np.copyto(space.radii, space.bits, casting="same_kind")
    space.part += _HALF
    space.radii += _HALF
    space.radii /= space.part
    if _WIDE:
        np.log1p(space.radii, out=space.radii)
    else:
        space.radius.log1p_()  # without AVX-512, NumPy's takes the numbers one by one; with it, half of torch's time
    space.radii += space.radii
    np.sqrt(space.radii, out=space.radii)


class Workspace:
    """Memory in which pairs of float32 numbers are made: bits, read with and without a sign, and radii."""

    def __init__(self, pairs: int) -> None:
        self.zeros, self.bytes = _ZEROS[: 4 * pairs], bytearray(4 * pairs + _SPARE)
        self.bits: NDArray[np.uint32] = np.frombuffer(self.bytes, dtype=np.uint32, count=pairs)
        self.signed: NDArray[np.int32] = self.bits.view(np.int32)
        self.part: NDArray[np.float32] = np.empty(pairs, dtype=np.float32)
        self.radius = torch.empty(pairs)
        self.radii: NDArray[np.float32] = self.radius.numpy()

    def cut(self, pairs: int) -> Workspace:
        """The beginning of the same memory."""
        beginning = copy.copy(self)
        beginning.zeros, beginning.part = self.zeros[: 4 * pairs], self.part[:pairs]
        beginning.bits, beginning.signed = self.bits[:pairs], self.signed[:pairs]
        beginning.radius, beginning.radii = self.radius[:pairs], self.radii[:pairs]
        return beginning


class _Workspaces(threading.local):
    """One workspace per thread, kept between calls: allocating it would cost as much as the numbers."""

    _SIZES = 64  # of pieces that a thread remembers: a model has few

    def __init__(self) -> None:
        self._whole = Workspace(PIECE // 2)
        self._by_size: dict[int, Workspace] = {}

    def of(self, pairs: int) -> Workspace:
        """The workspace for this number of pairs, half a piece at most."""
        space = self._by_size.get(pairs)
        if space is None:
            if len(self._by_size) >= self._SIZES:
                self._by_size.clear()
            space = self._by_size[pairs] = self._whole.cut(pairs)
        return space


_workspaces = _Workspaces()


class Generated(PiecewiseNormal):
    """Numbers of torch's generators, with all words of their state from a seed."""

    __slots__ = ("_generators", "_seed")

    def __init__(self, seed: Shake) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Drawn in float64 on CUDA, whose float32 numbers end at 6.7 standard deviations; elsewhere on the CPU."""
        device = torch.device(device)
        if device.type == "cuda":
            drawn = torch.randn(shape, dtype=torch.float64, device=device, generator=self.generator(device))
        elif dtype == torch.float64:
            drawn = torch.randn(shape, dtype=dtype, generator=self.generator(_CPU))
        else:
            drawn = self.normal_float32(shape)
        return drawn.to(device=device, dtype=dtype)

    def fill(self, piece: Tensor) -> Mapping[int, float]:
        """torch's own numbers.

        One in 150,000 is beyond `TAIL`, so the largest and the smallest are taken out until they are within. NumPy
        finds either in the cache, without a temporary, in a fiftieth of the time that drawing takes.
        """
        numbers, beyond = piece.normal_(generator=self.generator(_CPU)).numpy(), {}
        while numbers[at := numbers.argmax()] > normal.TAIL or numbers[at := numbers.argmin()] < -normal.TAIL:
            beyond[int(at)] = float(numbers[at])
            numbers[at] = 0
        return beyond

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """The difference of two exponential numbers, each from 53 bits."""
        minus = self.uniform(2 * math.prod(shape)).neg_().log1p_().view(2, *shape)
        return (minus[0] - minus[1]).to(device=device, dtype=dtype)

    def uniform(self, n: int) -> Tensor:
        """53 bits each."""
        return torch.rand(n, dtype=torch.float64, generator=self.generator(_CPU))

    def integers(self, high: int, n: int) -> Tensor:
        """⌊u · high⌋. Even the largest u, 1 - 2⁻⁵³, gives a product that rounds below `high`."""
        return (self.uniform(n) * high).long()

    def words(self, n: int) -> Tensor:
        """Bits of torch's generator."""
        return torch.empty(n, dtype=torch.int64).random_(-(2**63), None, generator=self.generator(_CPU))

    def generator(self, device: torch.device) -> torch.Generator:
        """The generator of a device, seeded when it is first asked for."""
        generator = self._generators.get(device)
        if generator is None:
            generator = torch.Generator(device)
            if device == _CPU:
                generator.set_state(cpu_state(self._seed.digest(4 * _WORDS)))
            else:
                seed = self._seed.copy()
                seed.update(str(device).encode())  # or two devices would draw the same numbers
                generator.manual_seed(int.from_bytes(seed.digest(8), "little"))
            self._generators[device] = generator
        return generator


_WORDS = 624  # of the Mersenne Twister's state, 32 bits each
_FIRST, _STATE_BYTES = 3, 5056  # where torch keeps them, each in 64 bits, and the size of the state


@functools.cache
def _blank_state() -> NDArray[np.uint64]:
    state = torch.Generator().manual_seed(0).get_state().numpy()
    if state.nbytes != _STATE_BYTES:
        raise AssayError(
            f"torch {torch.__version__} keeps the state of its generator in {state.nbytes} bytes, not {_STATE_BYTES}: "
            "it cannot be seeded in full. Use --secure-rng, or another version of torch."
        )
    return state.view(np.uint64)


def cpu_state(seed: bytes) -> Tensor:
    """A state of torch's CPU generator with all its words from the seed.

    `manual_seed` would use 32 bits of what it is given. Two of 20,000 steps would then have the same noise with a
    probability of 5 %, and trying all seeds would find the noise of a step.
    """
    state = _blank_state().copy()
    state[_FIRST : _FIRST + _WORDS] = np.frombuffer(seed, dtype="<u4")
    return torch.from_numpy(state.view(np.uint8))


class GeneratorStates:
    """States for torch's CPU generator, none of which comes twice.

    All words of a state come from AES-256 in counter mode, with a key from the stream. `initial_seed` then gives a
    random number that tells the states apart.
    """

    _AT_ONCE = 32  # one at a time takes ten times as long

    def __init__(self, stream: Stream) -> None:
        self._cipher = aes_counter(bytes(stream.integers(256, KEY_BYTES).tolist()))
        self._zeros = bytes(4 * self._AT_ONCE * (_WORDS + 2))
        self._rows: list[NDArray[np.uint64]] = []
        # one tensor for all states: torch crashes on a state that is a slice of another tensor
        self._memory = _blank_state().copy()
        self._state = torch.from_numpy(self._memory.view(np.uint8))

    def next(self) -> Tensor:
        """The next state. The tensor is overwritten by the next call."""
        if not self._rows:
            words = np.frombuffer(self._cipher.update(self._zeros), dtype="<u4").reshape(self._AT_ONCE, -1)
            rows = np.tile(_blank_state(), (self._AT_ONCE, 1))
            rows[:, _FIRST : _FIRST + _WORDS] = words[:, :_WORDS]
            rows[:, 0] = (words[:, _WORDS].astype(np.uint64) << np.uint64(30)) ^ words[:, _WORDS + 1]
            self._rows = list(rows)
        self._memory[:] = self._rows.pop()
        return self._state
