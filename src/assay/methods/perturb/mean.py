"""Inputs without their mean: the mean of the training inputs is released before training, and the model subtracts it.

What all records have in common takes up some of every gradient's norm, and does not help to tell classes apart. Without
it, clipped gradients carry more of what does, at the same noise. Tramèr and Boneh ("Differentially Private Learning
Needs Better Features (or Much More Data)", ICLR 2021, arXiv:2011.11660) normalise scattering features by private
statistics for the same reason. The mean of many records costs little: with multiplier 40 it takes about one percent of
the budget of ε = 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import DpEvent

from assay._util import spec
from assay._util.lazy import torch
from assay.errors import ConfigError, check_above_zero
from assay.mechanisms.gaussian import Gaussian, gaussian_event
from assay.mechanisms.types import Bounded
from assay.methods.stage import WHOLE, Part, PrivateTraining, Released, Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.data.records import Records
    from assay.randomness.streams import Randomness

_BLOCK = 1000  # records in memory at once


@dataclass(frozen=True, kw_only=True)
class Mean:
    """How the mean is released: N(0, (`noise`·`bound`)²) is added to the sum of the inputs, each clipped to `bound`.

    Attributes:
        noise: the noise multiplier.
        bound: the largest norm of an input. If None, it is √d for inputs of d numbers. That clips nothing where the
            squares are at most 1 on average: pixels from -1 to 1, normalised scattering features.

    Raises:
        ConfigError: one of them is not a finite number above 0.

    >>> describe(Mean(noise=20.0))
    'mean:noise=20'
    """

    noise: float = 40.0
    bound: float | None = None

    def __post_init__(self) -> None:
        check_above_zero("center noise", self.noise)
        if self.bound is not None:
            check_above_zero("center bound", self.bound)

    def stage(self, records: int) -> Stage:
        """The stage that releases the mean of this many records."""
        return Centered(self, records)


def parse(text: str) -> Mean:
    """The release that a text such as `mean`, `mean:noise=40,bound=8` or `class-mean:classes=10` describes.

    Raises:
        ConfigError: the text has another form.
    """
    return spec.parse("center", text, _kinds())


def describe(center: Mean) -> str:
    """The text that `parse` turns into this release, with all its settings."""
    return spec.written(center, _kinds())


def _kinds() -> dict[str, type[Mean]]:
    from assay.methods.perturb.class_mean import ClassMean

    return {"mean": Mean, "class-mean": ClassMean}


def largest_norm(how: Mean, records: Records) -> float:
    """The norm to which inputs are cut."""
    return math.sqrt(records.gather(torch.tensor([0]))[0][0].numel()) if how.bound is None else how.bound


def cut(records: Records, bound: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of inputs cut to this norm, in float64, with their targets. One that is not finite counts as zeros."""
    for x, norms, y in blocks(records):
        factors = torch.where(norms.isfinite(), (bound / norms).clamp(max=1.0), 0.0)
        yield (x.flatten(1) * factors[:, None]).view(x.shape), y


def blocks(records: Records, mean: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Blocks of inputs without this mean, in float64, with their norms and their targets.

    What is not finite is 0 in the inputs, and not in the norms.
    """
    for start in range(0, len(records), _BLOCK):
        x, y = records.gather(torch.arange(start, min(start + _BLOCK, len(records))))[:2]
        exact = x.detach().cpu().double()
        exact = exact if mean is None else exact - mean.double()
        yield exact.nan_to_num(0.0, 0.0, 0.0), exact.flatten(1).norm(dim=1), y


@dataclass(frozen=True)
class Centered(Stage):
    """The stage (`assay.methods.stage`).

    Adding or removing one record moves the sum by at most the bound. Replacing one moves it by twice that, which the
    accountant takes into account. The divisor, the plan's number of records, is a constant.
    """

    kept: ClassVar[tuple[str, ...]] = ("mean",)
    takes_views: ClassVar[bool] = True

    how: Mean
    count: int

    @property
    def takes_fewer(self) -> bool:
        """Yes: the sum is divided by a constant."""
        return True

    def event(self) -> DpEvent:
        """One Gaussian release."""
        return gaussian_event(self.how.noise)

    def parts(self) -> Sequence[Part]:
        """The mean alone."""
        return [Part(name="mean of the inputs", unit=WHOLE, claimed=None, event=self.event())]

    def check(self, model: nn.Module, records: Records, data: str | None) -> None:  # noqa: ARG002
        """Refuse inputs that have no mean, and models that scale their inputs."""
        from assay.models.inputs import check_inputs

        check_inputs(model, "input_shift")
        first = records.gather(torch.tensor([0]))[0]
        if not (isinstance(first, torch.Tensor) and first.is_floating_point()):
            raise ConfigError("center", describe(self.how), "inputs that are one tensor of floating-point numbers")

    def release(
        self,
        model: nn.Module,  # noqa: ARG002
        records: Records,
        randomness: Randomness,
        device: torch.device,  # noqa: ARG002
        train_privately: PrivateTraining,  # noqa: ARG002
    ) -> Released:
        """Release the noisy mean. An input that is not finite counts as zeros."""
        total: Tensor | None = None
        bound = largest_norm(self.how, records)
        for clipped, _ in cut(records, bound):
            here = clipped.sum(0)
            total = here if total is None else total + here
        assert total is not None
        noise = Gaussian(multiplier=self.how.noise)
        released = noise.release(Bounded({"mean": total}, bound), randomness.stream("mean", 0))
        return {"mean": (released.value["mean"] / self.count).float()}

    def install(self, model: nn.Module, released: Released) -> None:
        """Let the model subtract the mean."""
        from assay.models.inputs import shift_inputs

        shift_inputs(model, released["mean"])

    def describe(self) -> list[str]:
        """For the statement."""
        cut = "√d, of d coordinates" if self.how.bound is None else f"{self.how.bound:g}"
        return [
            "the mean of the inputs is released with noise, and the model subtracts it from every input. Each input is "
            f"first cut to norm {cut}; their sum gets Gaussian noise of {self.how.noise:g} times that norm"
        ]
