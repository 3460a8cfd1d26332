"""Numbers from bits that nobody can tell from random ones.

The bits are those of SHAKE-256 (`Hashed`) or of AES-256 in counter mode (`Encrypted`). Both make numbers of 64 bits each in float64 by inverting the
distribution function; `Encrypted` makes float32 normal numbers, which training needs by the million, of 32 bits each by Box and Muller.
"""

from __future__ import annotations

import copy
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from assay._util.process import Unique
from assay.randomness import normal as pieces
from assay.randomness import tails
from assay.randomness.normal import PIECE

if TYPE_CHECKING:
    from assay.randomness.streams import Stream

_MAGNITUDE = 2**63 - 1
_BLOCK = 2**17


class _FromBits(Unique, ABC):
    """A stream whose numbers are made of 64 random bits each, in blocks so that little memory is taken."""

    __slots__ = ()

    @abstractmethod
    def _bits(self, n: int) -> Tensor:
        """The next n · 64 bits, int64, n at most `_BLOCK`."""

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Φ⁻¹ of a uniform number below ½, with a sign."""
        numbers = signed(lambda u: torch.special.ndtri(u.mul_(0.5)))
        return self._filled(torch.empty(tuple(shape), dtype=dtype), numbers).to(device)

    def laplace(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """The logarithm of a uniform number, with a sign."""
        return self._filled(torch.empty(tuple(shape), dtype=dtype), signed(torch.log)).to(device)

    def uniform(self, n: int) -> Tensor:
        """The upper 53 of 64 bits."""
        out = torch.empty(n, dtype=torch.float64)
        return self._filled(out, lambda bits: ((bits >> 11) & (2**53 - 1)).double().mul_(2.0**-53))

    def integers(self, high: int, n: int) -> Tensor:
        """The remainder of 63 bits."""
        return self._filled(torch.empty(n, dtype=torch.int64), lambda bits: (bits & _MAGNITUDE) % high)

    def words(self, n: int) -> Tensor:
        """The bits themselves."""
        return self._filled(torch.empty(n, dtype=torch.int64), lambda bits: bits)

    def _filled(self, out: Tensor, numbers: Callable[[Tensor], Tensor]) -> Tensor:
        flat = out.view(-1)
        for start in range(0, len(flat), _BLOCK):
            part = flat[start : start + _BLOCK]
            part.copy_(numbers(self._bits(len(part))))
        return out


def signed(quantile: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Numbers from 64 bits each: 63 of them uniform in (0, 1), put through `quantile`, and a sign."""

    def numbers(bits: Tensor) -> Tensor:
        size = quantile((bits & _MAGNITUDE).double().add_(0.5).mul_(2.0**-63))
        return torch.where(bits < 0, -size, size)

    return numbers


class Shake(Protocol):
    """What `hashlib.shake_256` makes."""

    def copy(self) -> Self: ...
    def update(self, data: bytes, /) -> None: ...
    def digest(self, length: int, /) -> bytes: ...


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


KEY_BYTES = 32 + 16  # AES-256's key, and where its counter of 128 bits begins
_ZEROS = memoryview(bytes(8 * _BLOCK))
_SPARE = 16  # bytes that `update_into` of older versions wants to see behind what it writes


class _Room:
    """Where pairs of float32 numbers are made: bits, logarithms and radii."""

    def __init__(self, pairs: int) -> None:
        self.zeros, self.bytes = _ZEROS[: 4 * pairs], bytearray(4 * pairs + _SPARE)
        self.words = torch.frombuffer(self.bytes, dtype=torch.int32, count=pairs)
        self.double = torch.empty(pairs, dtype=torch.float64)
        self.radius = torch.empty(pairs)
        self.radii: NDArray[np.float32] = self.radius.numpy()

    def part(self, pairs: int) -> _Room:
        """The beginning of this room."""
        part = copy.copy(self)
        part.zeros, part.words, part.double = self.zeros[: 4 * pairs], self.words[:pairs], self.double[:pairs]
        part.radius, part.radii = self.radius[:pairs], self.radii[:pairs]
        return part


class _Rooms(threading.local):
    """Each thread's own room, kept from call to call: new memory would cost as much as the numbers."""

    def __init__(self) -> None:
        self._whole = _Room(PIECE // 2)
        self._parts: dict[int, _Room] = {}

    def of(self, pairs: int) -> _Room:
        """For this number of pairs, of a piece at most."""
        room = self._parts.get(pairs)
        if room is None:
            if len(self._parts) >= _SIZES:
                self._parts.clear()
            room = self._parts[pairs] = self._whole.part(pairs)
        return room


_SIZES = 64  # of pieces that a thread remembers: a model has few
_rooms = _Rooms()


def aes_counter(key: bytes) -> CipherContext:
    """AES-256 in counter mode, from `KEY_BYTES` of key and first counter: what encrypting zeros gives are random bits."""
    return Cipher(algorithms.AES(key[:32]), modes.CTR(key[32:])).encryptor()


class Encrypted(_FromBits):
    """Numbers from AES-256 in counter mode: zeros encrypted, from beginning to end, no block twice.

    Normal numbers on CUDA are those of `elsewhere`.
    """

    __slots__ = ("_cipher", "_elsewhere")

    def __init__(self, key: bytes, elsewhere: Stream) -> None:
        self._cipher = aes_counter(key)
        self._elsewhere = elsewhere

    def normal(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """By inversion in float64, else by Box and Muller (see `fill`) and then rounded to the type."""
        device = torch.device(device)
        if device.type == "cuda":
            return self._elsewhere.normal(shape, dtype=dtype, device=device)
        if dtype == torch.float64:
            return super().normal(shape, dtype=dtype, device=device)
        return pieces.normal(shape, self).to(device=device, dtype=dtype)

    def add_normal(self, values: Sequence[Tensor], std: float) -> None:
        """In pieces."""
        pieces.add_normal(values, std, self)

    def fill(self, piece: Tensor) -> Mapping[int, float]:
        """Independent standard normal numbers in float32, in pairs of 64 bits: r cos θ in the first half, r sin θ in the second.

        The radius r = sqrt(-2 log u) takes 32 bits: u is an odd multiple of 2⁻³³, and its logarithm is taken in float64, because u near 1 has no
        more than 24 bits in float32 and would leave 2⁻²⁵ of all pairs without any noise. So r takes 2³² values from 1.5e-5 to 6.8.
        The angle takes 32 bits as well, in [-π, π), and is rounded to float32: that moves it by less than 2⁻²², no more than the angle of torch's own
        float32 numbers is coarse (2⁻²¹·⁴). What is beyond 4.5 is taken out, to be drawn anew from that tail (`assay.randomness.tails`); its partner is
        independent of it and stays. The last number of an odd piece has a partner that nobody gets.
        """
        if len(piece) % 2:
            even = piece.new_empty(len(piece) + 1)
            beyond = self.fill(even)
            piece.copy_(even[:-1])
            return {place: number for place, number in beyond.items() if place < len(piece)}
        half = len(piece) // 2
        first, second, room = piece[:half], piece[half:], _rooms.of(half)
        self._next_bits(room)
        _set_radius(room)
        self._next_bits(room)
        second.copy_(room.words).mul_(_ANGLE)
        torch.cos(second, out=first).mul_(room.radius)
        second.sin_().mul_(room.radius)
        numbers, beyond = piece.numpy(), {}
        for pair in (room.radii > tails.TAIL).nonzero()[0].tolist():  # one in 25,000: no other has a number beyond
            for place in (pair, half + pair):
                if abs(number := float(numbers[place])) > tails.TAIL:
                    beyond[place], numbers[place] = number, 0
        return beyond

    def _next_bits(self, room: _Room) -> None:
        self.check_process()
        self._cipher.update_into(room.zeros, room.bytes)

    def _bits(self, n: int) -> Tensor:
        self.check_process()
        buffer = bytearray(8 * n + _SPARE)
        self._cipher.update_into(_ZEROS[: 8 * n], buffer)
        return torch.frombuffer(buffer, dtype=torch.int64, count=n)


# tensors, because torch takes a few microseconds to make one of a Python number, at every call
_ANGLE = torch.tensor(math.pi * 2.0**-31)
_FIRST = torch.tensor(2.0**31 + 0.5, dtype=torch.float64)
_LOG_OF_ALL = torch.tensor(64 * math.log(2), dtype=torch.float64)


def _set_radius(room: _Room) -> None:
    """sqrt(-2 log u), u = (b + ½)/2³² for the room's bits read as whole numbers b from 0 to 2³² - 1.

    As 64 log 2 - 2 log(b + ½): the difference is at least 2⁻³², and float64's error in it 2⁻⁴⁶.
    """
    room.double.copy_(room.words).add_(_FIRST).log_()
    room.radius.copy_(torch.sub(_LOG_OF_ALL, room.double, alpha=2, out=room.double)).sqrt_()
