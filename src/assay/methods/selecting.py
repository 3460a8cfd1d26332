"""A selection: after each step a noisy test of the loss decides whether the model keeps what the step did.

The test draws a batch of its own, apart from that of the gradient. It releases one number about it: how the losses have
changed, bounded and with Gaussian noise. A step with a test is therefore the composition of two Poisson-sampled
Gaussian releases with independent coins and noise. Both are charged for every step, kept or not. Keeping the new
parameters or going back to the former is post-processing of the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dp_accounting.dp_event import DpEvent

from assay.data.samplers import Sampler
from assay.mechanisms.gaussian import Gaussian, gaussian_event
from assay.mechanisms.types import Bounded, Private
from assay.randomness.streams import Within

if TYPE_CHECKING:
    from torch import Tensor

    from assay.randomness.streams import Randomness


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The test after each step.

    Attributes:
        sampler: draws the records of the test.
        bound: C_v, the most that a change of loss counts for.
        multiplier: σ_v, the standard deviation of the noise over what one record can move the number by.
        threshold: β. A step is kept if the noisy change is below β·C_v.
        single: whether the change of each record's loss is bounded, and they are summed. Otherwise the change of the
            mean over the test's records is bounded.
        most: after so many kept steps none is kept; None for no limit.
    """

    sampler: Sampler
    bound: float
    multiplier: float
    threshold: float
    single: bool
    most: int | None = None

    @property
    def l2(self) -> float:
        """The most by which one record that is added or removed moves the number.

        A record's bounded change is a term of the sum. It may move a bounded mean from one end to the other.
        """
        return self.bound if self.single else 2 * self.bound

    @property
    def once(self) -> DpEvent:
        """What one test releases about its batch, before amplification."""
        return gaussian_event(self.multiplier)

    def event(self, steps: int) -> DpEvent:
        """The cost of the tests of this many steps."""
        return self.sampler.compose(self.once, steps)

    def draw(self, step: int, randomness: Randomness) -> Tensor:
        """The records of this step's test. Its coins are not those of the gradient's batch."""
        return self.sampler.draw(step, _apart(randomness))

    def measure(self, before: Tensor, after: Tensor) -> Bounded:
        """Sensitive: how the losses of the test's records changed. What is not a number counts as the bound.

        Args:
            before: one loss per record, at the former parameters.
            after: the same at the new ones.
        """
        change = after.double() - before.double()
        if not self.single:
            change = change.mean().view(1) if len(change) else change
        total = change.nan_to_num(nan=self.bound).clamp(-self.bound, self.bound).sum()
        return Bounded({"": total.view(1)}, self.l2)

    def release(self, measured: Bounded, step: int, randomness: Randomness) -> Private:
        """The number with its noise."""
        return Gaussian(multiplier=self.multiplier).release(measured, _apart(randomness).stream("noise", step))

    def keeps(self, released: Private) -> bool:
        """Whether the new parameters stay."""
        change = float(released.value[""]) / (self.sampler.expected_size if self.single else 1.0)
        return change < self.threshold * self.bound

    @property
    def least(self) -> float:
        """The least probability that a test of means keeps a step: Φ((β - 1)/(2σ_v)), whatever the records are."""
        return math.erfc((1 - self.threshold) / (2 * self.multiplier * math.sqrt(2))) / 2 if self.multiplier else 0.0

    def describe(self) -> str:
        """A sentence for the statement."""
        what = (
            f"the change of each one's loss is bounded by {self.bound:g}, and they are summed"
            if self.single
            else f"the change of their mean loss is bounded by {self.bound:g}"
        )
        until = "" if self.most is None else f", and {self.most} steps at most are kept"
        return (
            f"Each step is tested on a batch of its own, drawn with probability {self.sampler.rate:.4g}: {what}, with"
            f" Gaussian noise of standard deviation {self.multiplier:.4g} times what one record moves it by. A step"
            f" that fails is taken back{until}. All steps and all tests are charged, also those taken back"
        )


def _apart(randomness: Randomness) -> Randomness:
    return Within(randomness, "selection")
