"""Steps preconditioned by released second moments of the inputs: Newton's method for one linear layer, in part.

Mehta, Krichene, Thakurta, Kurakin and Cutkosky: "Differentially Private Image Classification from Features", 2022,
arXiv:2211.13403, propose DP-FC, which uses the features' covariance in place of the Hessian of the logistic loss. For
one linear layer that begins at zero the two are the same up to a factor: the Hessian is (I/K - 11ᵀ/K²) ⊗ S for K
classes and the second moments S. This method has that idea in two forms, and neither is their code:

- `place=after`: each step releases a clipped, noisy gradient G as DP-SGD does, and moves along G·P. The directions in
  which inputs differ much are damped; noise stays what it is in the others.
- `place=before`: the model multiplies its inputs by √P. Gradients are clipped in these coordinates, and get their noise
  there. What the layer computes moves along G·P as well.

P = max(S/r, 1)^(-2·power) for the released matrix S, by eigenvalues. r is `ridge` times the spectral radius z√(2d) that
the noise has by itself, a constant. power = 0.5 is Newton's direction where S is larger than r. P ≤ I, so no direction
is ever amplified, and with ridge = 1 hardly any is damped that the noise made up. Most often S has few eigenvalues
above r, so P differs from I along few axes only.

Guarantee, for inputs of d numbers and the released mean m: x = (u - m)/C is cut to norm 1, so adding or removing a
record moves svec of the sum of x xᵀ by ‖x‖² ≤ 1 (`assay.methods.moments`). The stage adds N(0, z²) to every coordinate
of svec, once: a Gaussian mechanism of multiplier z = `relative` × the noise multiplier of a step. The mean is a
Gaussian release too, of multiplier `mean` × z. Both are charged before any step, and so is each step, as DP-SGD's. P
follows from what was released: with `after` it is post-processing, with `before` a constant that the steps are given.

Claimed ε: Rényi composition of the whole. No paper claims another for this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay._util.figures import at_least
from assay._util.lazy import torch
from assay.errors import ConfigError, check_above_zero, one_of
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.types import Bounded, Denoiser, Grads
from assay.methods import moments
from assay.methods.dpsgd import DPSGD
from assay.methods.stage import Part, Released, Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.data.records import Records
    from assay.methods.plan import Plan
    from assay.randomness.streams import Stream

_PLACES = "before", "after"
_FLOOR = 1e-6  # the smallest ridge for each record: without noise S may be singular


@dataclass(frozen=True, kw_only=True)
class Newton(DPSGD):
    """DP-SGD along directions that released second moments precondition.

    Attributes:
        relative: the noise multiplier of the moments over that of a step.
        mean: the noise multiplier of the mean over that of the moments.
        ridge: the ridge over the spectral radius of the noise.
        power: half of what P is raised to; 0.5 is Newton's direction.
        place: `before` changes coordinates before gradients are clipped; `after` applies P to noisy gradients.
        bound: C over √d. Inputs whose squares are 1 on average have norm √d before the mean is subtracted.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ("relative", "mean", "ridge", "power", "place", "bound")
    varying_noise: ClassVar[bool] = False

    name: str = "newton"
    summary: str = "DP-SGD preconditioned by noisy second moments of the inputs (after Mehta et al. 2022)"
    relative: float = 0.8
    mean: float = 4.0
    ridge: float = 1.0
    power: float = 0.5
    place: str = "before"
    bound: float = 0.8

    def __post_init__(self) -> None:
        for name in ("relative", "mean", "ridge", "power", "bound"):
            check_above_zero(name, getattr(self, name))
        if self.place not in _PLACES:
            raise ConfigError("place", self.place, one_of(self.place, _PLACES))

    def stage(self, plan: Plan) -> Stage:
        """The mean and the second moments."""
        return Preconditioned(how=self, noise=self.relative * plan.noise_multiplier, count=plan.records)

    def model_for(self, input_shape: tuple[int, ...]) -> str | None:  # noqa: ARG002
        """One linear layer."""
        return "linear-head"


@dataclass(frozen=True, kw_only=True)
class Preconditioned(moments.OfHead):
    """The stage (`assay.methods.stage`).

    Attributes:
        how: the method's settings.
    """

    kept: ClassVar[tuple[str, ...]] = ("mean", "second")

    how: Newton

    @property
    def method(self) -> str:
        """The method's name."""
        return self.how.name

    @property
    def mean_noise(self) -> float:
        """`mean` × z."""
        return self.how.mean * self.noise

    @property
    def bound(self) -> float:
        """C over √d."""
        return self.how.bound

    def parts(self) -> Sequence[Part]:
        """The mean and the moments."""
        return self.parts_of("second moments of the inputs")

    def release_moments(self, model: nn.Module, records: Records, mean: Tensor, stream: Stream) -> Released:  # noqa: ARG002
        """Release the sum of x xᵀ."""
        size = mean.numel()
        second = torch.zeros(size, size).double()
        for cut, _ in moments.blocks(records, mean, self.norm(size)):
            second += cut.T @ cut
        private = Gaussian(multiplier=self.noise).release(Bounded({"second": moments.packed(second)}, 1.0), stream)
        return {"second": moments.unpacked(private.value["second"], size)}

    def install(self, model: nn.Module, released: Released) -> None:
        """Let the model subtract the mean, and with `before` multiply its inputs by √P."""
        from assay.models.inputs import damp_inputs

        self.centered().install(model, released)
        if self.how.place == "before":
            damp_inputs(model, self._axes(released["second"], self.how.power).float())

    def denoisers(self, model: nn.Module, released: Released) -> Sequence[Denoiser]:
        """With `after`, G·P for the layer's weight."""
        if self.how.place == "before":
            return ()
        weight = moments.only_layer(model).weight
        name = next(name for name, parameter in model.named_parameters() if parameter is weight)
        return (Directions(name, self._axes(released["second"], 2 * self.how.power)),)

    def _axes(self, second: Tensor, power: float) -> Tensor:
        """A with I - A·Aᵀ = max(S/r, 1)^-power: an axis for each eigenvalue above r."""
        values, vectors = torch.linalg.eigh(second)
        ridge = self.how.ridge * moments.radius(self.noise, len(values)) + _FLOOR * self.count
        large = values > ridge
        axes: Tensor = vectors[:, large] * (1 - (values[large] / ridge) ** -power).sqrt()
        return axes

    def describe(self) -> list[str]:
        """For the statement."""
        used = (
            "the model shortens its inputs along the axes of their largest eigenvalues"
            if self.how.place == "before"
            else "every noisy gradient is shortened along the axes of their largest eigenvalues, at no cost"
        )
        return [
            "the mean of the inputs is released with Gaussian noise of multiplier "
            f"{at_least(self.mean_noise)}, and the model subtracts it from every input",
            f"second moments of the inputs are released with Gaussian noise of multiplier {at_least(self.noise)}; "
            f"{used}",
        ]


@dataclass(frozen=True)
class Directions:
    """G·P for one weight, P = I - A·Aᵀ: post-processing of a released gradient by what was released before.

    Attributes:
        weight: the name of the weight.
        axes: A.
    """

    weight: str
    axes: Tensor

    name: ClassVar[str] = "directions"
    needs_white: ClassVar[bool] = False
    keeps_white: ClassVar[bool] = False

    def __call__(self, grads: Grads, noise_std: float) -> Grads:  # noqa: ARG002
        """The gradients, that of the weight along other directions."""
        gradient = grads[self.weight]
        axes = self.axes.to(gradient)
        return {**grads, self.weight: gradient - (gradient @ axes) @ axes.T}


METHOD = Newton()
