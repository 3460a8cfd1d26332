"""Inputs without the mean over classes of their class means: no class weighs more because it has more records.

The sum of each class's inputs and its number of records are released together, with noise. The model subtracts the mean
over classes of sum over number. Where classes are of equal size that is the mean of all inputs, with √K times the noise
at the same cost, for K classes: each of K sums gets the noise that one sum would get. So this can only be worth its
price where classes differ much in size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay._util.lazy import torch
from assay.errors import ConfigError
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.types import Bounded
from assay.methods.perturb.mean import Centered, Mean, cut, describe, largest_norm
from assay.methods.stage import WHOLE, Part, PrivateTraining, Released, Stage

if TYPE_CHECKING:
    from torch import nn

    from assay.data.records import Records
    from assay.randomness.streams import Randomness

_COUNTS = 0.1  # the share of the bound's square that the numbers of records get
_LEAST = 0.1  # no class counts as smaller than this share of an equal one


@dataclass(frozen=True, kw_only=True)
class ClassMean(Mean):
    """How the class means are released, as for `Mean`.

    Attributes:
        classes: the number of classes, K. Records of other labels add nothing.

    Raises:
        ConfigError: a setting is out of range.

    >>> describe(ClassMean(classes=10))
    'class-mean:noise=40,classes=10'
    """

    classes: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes < 2:
            raise ConfigError("center classes", self.classes, "the number of classes, 2 or more")

    def stage(self, records: int) -> Stage:
        """The stage that releases the class means of this many records."""
        return ByClass(self, records)


@dataclass(frozen=True)
class ByClass(Centered):
    """The stage (`assay.methods.stage`).

    A record of class k with input x adds (√(1-c)·x/B ⊗ e_k, √c·e_k) to the released sum, where ‖x‖ ≤ B and c is the
    share of the numbers of records. Its norm is at most √(1-c + c) = 1, and that is the most by which adding or
    removing a record moves the sum. Every coordinate gets N(0, `noise`²).
    """

    how: ClassMean

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of the bound's square that the sums and the numbers get: 1 together."""
        return 1 - _COUNTS, _COUNTS

    def parts(self) -> Sequence[Part]:
        """The class means and the numbers of records, one Gaussian release."""
        return [Part(name="class means of the inputs and class sizes", unit=WHOLE, claimed=None, event=self.event())]

    def check(self, model: nn.Module, records: Records, data: str | None) -> None:
        """Refuse what has no mean, and targets that are not classes."""
        super().check(model, records, data)
        y = records.gather(torch.tensor([0]))[1]
        if y.is_floating_point() or y.dim() != 1:
            raise ConfigError("center", describe(self.how), "records whose targets are classes")

    def release(
        self,
        model: nn.Module,  # noqa: ARG002
        records: Records,
        randomness: Randomness,
        device: torch.device,  # noqa: ARG002
        train_privately: PrivateTraining,  # noqa: ARG002
    ) -> Released:
        """Release sums and numbers, and compute the mean over classes."""
        classes = torch.arange(self.how.classes)
        bound = largest_norm(self.how, records)
        shape = records.gather(torch.tensor([0]))[0].shape[1:]
        sums, counts = torch.zeros(len(classes), *shape).double(), torch.zeros(len(classes)).double()
        for x, y in cut(records, bound):
            ours = (y.cpu()[:, None] == classes).double()
            sums += torch.tensordot(ours.T, x, 1)
            counts += ours.sum(0)
        a, c = map(math.sqrt, self.shares)
        total = {"sums": a / bound * sums, "counts": c * counts}
        noise = Gaussian(multiplier=self.how.noise)
        private = noise.release(Bounded(total, 1.0), randomness.stream("mean", 0)).value
        sizes = (private["counts"] / c).clamp(min=_LEAST * self.count / len(classes))
        means = torch.tensordot(1 / sizes, private["sums"], 1) * (bound / a / len(classes))
        return {"mean": means.float()}

    def describe(self) -> list[str]:
        """For the statement."""
        limit = "√d, of d coordinates" if self.how.bound is None else f"{self.how.bound:g}"
        return [
            "the sum of each class's inputs and the number of its records are released with Gaussian noise of "
            f"multiplier {self.how.noise:g}, each input cut to norm {limit}; the model subtracts the mean over classes"
        ]
