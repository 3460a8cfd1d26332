"""The lowest bits of a release (Mironov 2012), which no statistic of its values shows.

Noise with few bits gives itself away: released value less the true sum is then a number of few bits, and less another sum
it is not. What is tested here is noise of half precision added to sums of single precision. Noise of single precision
leaves traces too, in far fewer releases (a sum near zero of two larger numbers ends in zeros); that remains, and privacy
statements say so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.audit import bounds
from assay.audit.bounds import Errors
from assay.audit.specimen import Specimen, flat, releases_of
from assay.mechanisms.types import Bounded
from assay.methods.chain import Chain
from assay.randomness.blocks import Blocks
from assay.randomness.streams import OsSeeded, Randomness


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


def _few_bits(released: Tensor, total: Tensor, std: float) -> Tensor:
    """Whether half of the coordinates of each release are the sum plus std times a number of half precision."""
    noise = ((released - total) / std).to(torch.float16).to(released.dtype)
    return (torch.add(total, noise, alpha=std) == released).double().mean(1) > 0.5
