"""The lowest bits of a release, which no statistic of its values shows.

Mironov, "On significance of the least significant bits for differential privacy", 2012 (doi:10.1145/2382196.2382264).
Noise with few bits gives itself away: the released value minus the true sum has few bits, and minus another sum it has
many. `low_bits` tests this for half-precision noise on single-precision sums, which shows in every coordinate.

Single-precision noise shows where it cancels the sum: the remainder has more digits than the two numbers had, unless
the sum was another one. `cancelled_bits` tests this. It detects floating-point noise of any mechanism, Assay's
included; privacy statements say that ε does not cover it. Exact noise (`assay.mechanisms.exact`) leaves nothing to
detect.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.audit import bounds
from assay.audit.bounds import Errors
from assay.audit.specimen import Specimen, flat, releases_of
from assay.mechanisms.types import Bounded
from assay.methods.chain import Chain
from assay.randomness.streams import Blocks, OsSeeded, Randomness


def low_bits(
    chain: Chain,
    specimen: Specimen,
    *,
    delta: float,
    confidence: float = 0.95,
    releases: int = 2000,
    randomness: Randomness | None = None,
) -> float:
    """A lower bound on one step's ε, without assumptions, from the test "is the noise a number of half precision?"."""
    streams = Blocks(randomness or OsSeeded(), "audit")
    record = torch.linspace(-1.0, 1.0, specimen.size).unsqueeze(0)
    slots = torch.zeros(2, dtype=torch.int64) if chain.micro > 1 else None
    without = specimen.total(chain, record, None if slots is None else slots[:1])
    with_canary = specimen.total(chain, torch.cat([record, -3 * record.roll(1, 1)]), slots)
    std = chain.release(Bounded({}, chain.l2), streams.at(2 * releases)).noise_std
    few = [
        _few_bits(
            releases_of(chain, total, [streams.at(i) for i in range(first, first + releases)]), flat(without), std
        )
        for total, first in ((without, 0), (with_canary, releases))
    ]
    errors = Errors(
        false_positives=int((~few[0]).sum()),
        excluded=releases,
        false_negatives=int(few[1].sum()),
        included=releases,
    )
    return bounds.epsilon_lower(errors, delta=delta, significance=1 - confidence)


def cancelled_bits(
    chain: Chain,
    specimen: Specimen,
    *,
    delta: float,
    confidence: float = 0.95,
    releases: int = 2000,
    randomness: Randomness | None = None,
) -> float:
    """A lower bound on one step's ε, without assumptions, from the test "can single-precision noise cancel like this?".

    The data sets are a record whose gradient is zero, with and without a canary beside it.
    """
    streams = Blocks(randomness or OsSeeded(), "audit")
    record = torch.zeros(1, specimen.size)
    canary = torch.linspace(-3.0, -2.0, specimen.size).unsqueeze(0)
    without, with_canary = specimen.total(chain, record, None), specimen.total(chain, torch.cat([record, canary]), None)
    std = chain.release(Bounded({}, chain.l2), streams.at(2 * releases)).noise_std
    impossible = [
        _cannot_be(releases_of(chain, total, [streams.at(i) for i in range(at, at + releases)]), flat(with_canary), std)
        for total, at in ((without, 0), (with_canary, releases))
    ]
    errors = Errors(
        false_positives=int(impossible[1].sum()),
        excluded=releases,
        false_negatives=int((~impossible[0]).sum()),
        included=releases,
    )
    return bounds.epsilon_lower(errors, delta=delta, significance=1 - confidence)


_NEAR = 1 / 16  # of the canary: four more bits than the noise has


def _cannot_be(released: Tensor, total: Tensor, std: float) -> Tensor:
    """Whether some coordinate near zero of each release is not `total` plus std times a single-precision number."""
    noise = ((released.double() - total.double()) / std).float().to(released.dtype)
    wrong = torch.add(total, noise, alpha=std) != released
    return (wrong & (released.abs() < _NEAR * total.abs())).any(1)


def _few_bits(released: Tensor, total: Tensor, std: float) -> Tensor:
    """Whether half of the coordinates of each release are `total` plus std times a half-precision number."""
    noise = ((released - total) / std).to(torch.float16).to(released.dtype)
    return (torch.add(total, noise, alpha=std) == released).double().mean(1) > 0.5
