"""A linear layer that starts at the private least-squares solution; DP-SGD spends the rest.

Before training the stage releases, with Gaussian noise, what least squares needs to know about the records: the mean of
their inputs, and then second moments of inputs and labels. This is known as sufficient-statistics perturbation (see
Wang: "Revisiting differentially private linear regression: optimal and adaptive prediction & estimation in unbounded
domain", UAI 2018, arXiv:1803.02596). Mehta, Krichene, Thakurta, Kurakin and Cutkosky ("Differentially Private Image
Classification from Features", 2022, arXiv:2211.13403) find linear regression more effective than logistic regression on
features, especially below ε = 1. On features of CIFAR-10 at ε = 1 and 3 we do not (experiments/utility).

Guarantee, for inputs of d numbers, K classes and the released mean m. A record with input u and label y contributes

    v = (√a · svec(x xᵀ), √b · x tᵀ, √c · t),  x = (u - m)/C cut to norm 1,  t = onehot(y) - 1/K,  a + b + c = 1,

where svec lists the diagonal, and the entries above it times √2, so that ‖svec(M)‖₂ = ‖M‖_F for symmetric M. Then
‖svec(x xᵀ)‖ = ‖x‖² ≤ 1, ‖x tᵀ‖_F = ‖x‖ ‖t‖ ≤ 1 and ‖t‖ ≤ 1, so ‖v‖² ≤ a + b + c = 1. Adding or removing a record
moves the sum of all v by at most 1. The stage adds N(0, z²) to every coordinate of the sum, once: a Gaussian mechanism
of multiplier z = `relative` × the noise multiplier of a step. The mean is a Gaussian release too, of multiplier 8z
(`assay.methods.perturb.mean`). Both are charged before any step. Solving the system is post-processing. Its ridge is
`ridge` times the spectral radius z√(2d/a) that the noise has by itself, a constant. The number of records, by which
label counts are divided, is the plan's.

The steps are those of DP-SGD. With the default `relative` one step takes about one percent of the budget.

Claimed ε: Rényi composition of the whole. No paper claims another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay._util.figures import at_least
from assay._util.lazy import torch
from assay.errors import ConfigError, check_above_zero
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.types import Bounded
from assay.methods import moments
from assay.methods.dpsgd import DPSGD
from assay.methods.stage import Part, Released, Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.data.records import Records
    from assay.methods.plan import Plan
    from assay.randomness.streams import Stream

_MEAN = 8.0  # the noise of the mean over that of the moments
_COUNTS = 0.02  # c: the label counts need little
_FLOOR = 1e-6  # the smallest ridge for each record: without noise the system may be singular


@dataclass(frozen=True, kw_only=True)
class LeastSquares(DPSGD):
    """DP-SGD from the private least-squares solution.

    Attributes:
        relative: the noise multiplier of the moments over that of a step.
        share: the share a of the bound that the second moments of the inputs get.
        ridge: the ridge over the spectral radius of the noise.
        bound: C over √d. Inputs whose squares are 1 on average have norm √d before the mean is subtracted.
        scale: what the solution is multiplied by: least squares has scores from 0 to 1, the loss wants larger ones.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ("relative", "share", "ridge", "bound", "scale")
    varying_noise: ClassVar[bool] = False

    name: str = "least-squares"
    summary: str = "least squares on noisy second moments, then DP-SGD from there (Wang 2018, Mehta et al. 2022)"
    relative: float = 0.1
    share: float = 0.6
    ridge: float = 0.4
    bound: float = 0.7
    scale: float = 10.0

    def __post_init__(self) -> None:
        for name in ("relative", "ridge", "bound", "scale"):
            check_above_zero(name, getattr(self, name))
        if not 0 < self.share < 1 - _COUNTS:
            raise ConfigError("share", self.share, f"a number between 0 and {1 - _COUNTS:g}, both excluded")

    def stage(self, plan: Plan) -> Stage:
        """The mean and the moments."""
        return Solved(how=self, noise=self.relative * plan.noise_multiplier, count=plan.records)

    def model_for(self, input_shape: tuple[int, ...]) -> str | None:  # noqa: ARG002
        """One linear layer."""
        return "linear-head"


@dataclass(frozen=True, kw_only=True)
class Solved(moments.OfHead):
    """The stage (`assay.methods.stage`). A finished run has the solution in its parameters.

    Attributes:
        how: the method's settings.
    """

    how: LeastSquares

    @property
    def method(self) -> str:
        """The method's name."""
        return self.how.name

    @property
    def mean_noise(self) -> float:
        """8z."""
        return _MEAN * self.noise

    @property
    def bound(self) -> float:
        """C over √d."""
        return self.how.bound

    def parts(self) -> Sequence[Part]:
        """The mean and the moments."""
        return self.parts_of("second moments of inputs and labels")

    def check(self, model: nn.Module, records: Records, data: str | None) -> None:
        """Refuse models of more than one linear layer, and inputs or labels of which there are no moments."""
        super().check(model, records, data)
        y = records.gather(torch.tensor([0]))[1]
        if y.is_floating_point() or y.dim() != 1:
            raise ConfigError("method", self.how.name, "records whose targets are classes")

    def release_moments(self, model: nn.Module, records: Records, mean: Tensor, stream: Stream) -> Released:
        """Release the sum of all v."""
        second, cross, counts = self._moments(records, mean, moments.only_layer(model).out_features)
        a, b, c = self._shares
        total = {
            "second": math.sqrt(a) * moments.packed(second),
            "cross": math.sqrt(b) * cross,
            "counts": math.sqrt(c) * counts,
        }
        private = Gaussian(multiplier=self.noise).release(Bounded(total, 1.0), stream).value
        return {
            "second": moments.unpacked(private["second"] / math.sqrt(a), len(second)),
            "cross": private["cross"] / math.sqrt(b),
            "counts": private["counts"] / math.sqrt(c),
        }

    @property
    def _shares(self) -> tuple[float, float, float]:
        """a, b and c."""
        return self.how.share, 1 - self.how.share - _COUNTS, _COUNTS

    def _moments(self, records: Records, mean: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
        """The sums of x xᵀ, x tᵀ and t. An input that is not finite counts as zeros."""
        inputs = mean.numel()
        second, cross = torch.zeros(inputs, inputs).double(), torch.zeros(inputs, classes).double()
        counts = torch.zeros(classes).double()
        for cut, y in moments.blocks(records, mean, self.norm(inputs)):
            targets = (y[:, None] == torch.arange(classes)).double() - 1 / classes
            second += cut.T @ cut
            cross += cut.T @ targets
            counts += targets.sum(0)
        return second, cross, counts

    def install(self, model: nn.Module, released: Released) -> None:
        """Let the model subtract the mean and start at the solution (S₊ + r)⁻¹ B.

        S₊ is the noisy matrix with its negative eigenvalues replaced by zero.
        """
        self.centered().install(model, released)
        if "second" not in released:
            return
        values, vectors = torch.linalg.eigh(released["second"])
        radius = moments.radius(self.noise / math.sqrt(self.how.share), len(values))
        ridge = self.how.ridge * radius + _FLOOR * self.count
        solution = vectors @ ((vectors.T @ released["cross"]) / (values.clamp(min=0.0) + ridge)[:, None])
        layer = moments.only_layer(model)
        with torch.no_grad():
            layer.weight.copy_(self.how.scale / self.norm(len(values)) * solution.T)
            if layer.bias is not None:
                layer.bias.copy_(self.how.scale / self.count * released["counts"])

    def describe(self) -> list[str]:
        """For the statement."""
        return [
            f"the mean of the inputs is released with Gaussian noise of multiplier {at_least(self.mean_noise)}, and "
            "the model subtracts it from every input",
            "second moments of the inputs, their products with the labels and the label counts are released "
            f"with Gaussian noise of multiplier {at_least(self.noise)}; training starts at the least-squares solution "
            "of them",
        ]


METHOD = LeastSquares()
