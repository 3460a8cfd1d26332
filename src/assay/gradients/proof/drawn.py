"""Whether a loss that draws random numbers depends on how many records there are, which no single draw can show."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_TIMES = 512
_LIMIT = 6.5  # false alarms: at most 2 exp(-6.5² / 2) < 2e-9 for each record


def differs(among: Callable[[], Tensor], alone: Callable[[], Tensor]) -> bool:
    """Whether the losses of some records have another mean among others than alone.

    Each is drawn many times. If the two have the same distribution, the differences d of a record are symmetric: given
    their sizes, their signs are fair coins. So their sum exceeds x times the root of their sum of squares with
    probability at most 2 exp(-x²/2) (Hoeffding 1963, "Probability inequalities for sums of bounded random variables",
    doi:10.1080/01621459.1963.10500830). A dependence that is faint beside the random numbers is missed.

    Args:
        among: Draws the losses of the records, with all others in the batch.
        alone: Draws them without the others.

    Returns:
        Whether they differ; False where a loss is not finite.
    """
    d = torch.stack([among().double() - alone().double() for _ in range(_TIMES)])
    scale = float(among().double().abs().max())
    beyond = d.sum(0).abs() > _LIMIT * d.square().sum(0).sqrt()
    seen = d.mean(0).abs() > 1e-4 * scale  # rounding depends on the number of records, too, and is not symmetric
    return bool((beyond & seen).any())
