"""Clipping of a batch's mean gradient, tensor by tensor, in place of clipping each record's.

This is not how a private step bounds a record, and no method uses it but `lssgd` in the variant `authors`. A record
whose gradient is long enough moves a clipped mean from any point of its ball to any other, whatever the batch size. So
the bound is the ball's diameter, not its radius divided by the batch size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from assay.errors import AssayError
from assay.mechanisms.types import Bounded


@dataclass(frozen=True, kw_only=True)
class ClippedMean:
    """Each tensor of the sum over a batch is scaled down to norm G·b, so that its mean has norm at most G.

    Guarantee: for any two batches, the results are at most 2·G·b·√(tensors) apart. Sums that are not finite count as
    zero.

    Attributes:
        bound: G.
        size: b, the public denominator.
        tensors: How many tensors are clipped, at most.
        substituted: Whether neighbouring batches always have the same number of records. One record then takes the
            place of another, and accountants double the bound that is stated here: it is the radius. Otherwise the
            batch without the record may be as far away as the diameter.
    """

    bound: float
    size: float
    tensors: int
    substituted: bool

    @property
    def radius(self) -> float:
        """The norm of all clipped tensors together, at most."""
        return self.bound * self.size * math.sqrt(self.tensors)

    @property
    def l2(self) -> float:
        """The bound on what one record does, as `Bounded` states it."""
        return self.radius if self.substituted else 2 * self.radius

    def __call__(self, grads: Bounded) -> Bounded:
        """The clipped sum, and the bound that holds for it.

        Raises:
            AssayError: There are more tensors than were accounted for.
        """
        import torch

        from assay.gradients.arithmetic import SHRINK

        if len(grads.total) > self.tensors:
            raise AssayError(f"{len(grads.total)} tensors are clipped, but ε was computed for {self.tensors}")
        clipped = {}
        for name, value in grads.total.items():
            norm = float(value.double().norm())  # squares of any float32 number are finite in 64 bits
            if not math.isfinite(norm):  # one long gradient must not turn the whole release into NaN
                clipped[name] = torch.zeros_like(value)
            else:
                allowed = self.bound * self.size
                clipped[name] = value * (1.0 if norm <= allowed else SHRINK[torch.float32] * allowed / norm)
        return Bounded(clipped, self.l2)

    def describe(self) -> str:
        """A sentence for the statement."""
        turned = f"{2 * self.radius:g}"
        if self.substituted:
            turned = f"twice its bound of {self.radius:g}"
        return (
            f"Single records are not clipped. The mean gradient of a batch is, to norm {self.bound:g} in each of"
            f" {self.tensors} tensors. One record can turn it round, however large the batch is: that moves a step's"
            f" sum by up to {turned}."
        )
