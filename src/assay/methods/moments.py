"""Second moments of inputs, as one bounded vector: what the stages that release them share.

A symmetric matrix M is released as svec(M), its diagonal and the entries above it times √2. Then ‖svec(M)‖₂ = ‖M‖_F,
so a record with input x moves svec of the sum of x xᵀ by ‖x xᵀ‖_F = ‖x‖², which is at most 1 for inputs cut to norm 1.
Noise of one size in all coordinates of svec is symmetric noise on the matrix whose spectral radius is about z√(2d).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay._util.lazy import torch
from assay.errors import ConfigError
from assay.mechanisms.gaussian import gaussian_event
from assay.methods.perturb import mean as perturb
from assay.methods.perturb.mean import Centered, Mean
from assay.methods.stage import WHOLE, Part, PrivateTraining, Released, Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.data.records import Records
    from assay.randomness.streams import Randomness, Stream

MOST = 4096
"""The largest number of inputs: time grows with its third power."""


def blocks(records: Records, mean: Tensor, norm: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs (u - mean)/norm cut to norm 1, in float64, with their targets. One that is not finite counts as zeros."""
    for x, norms, y in perturb.blocks(records, mean):
        factors = torch.where(norms.isfinite(), 1 / norms.clamp(min=norm), 0.0)
        yield x.flatten(1) * factors[:, None], y.cpu()


def packed(matrix: Tensor) -> Tensor:
    """svec of a symmetric matrix."""
    rows, columns = torch.triu_indices(len(matrix), len(matrix))
    packed: Tensor = _weights(rows, columns) * matrix[rows, columns]
    return packed


def unpacked(vector: Tensor, size: int) -> Tensor:
    """The symmetric matrix of this size whose svec is `vector`."""
    rows, columns = torch.triu_indices(size, size)
    above = torch.zeros(size, size, dtype=vector.dtype)
    above[rows, columns] = vector / _weights(rows, columns)
    return above + above.triu(1).T


def radius(noise: float, size: int) -> float:
    """The spectral radius of symmetric noise whose svec has this standard deviation, for large matrices."""
    return noise * math.sqrt(2 * size)


def only_layer(model: nn.Module) -> nn.Linear:
    """The linear layer that is all of the model.

    Raises:
        ConfigError: The model has other parameters.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    if len(layers) != 1 or len(list(model.parameters())) != len(list(layers[0].parameters())):
        raise ConfigError("model", type(model).__name__, "one linear layer and nothing else to train: linear-head")
    return layers[0]


@dataclass(frozen=True, kw_only=True)
class OfHead(Stage):
    """A stage that releases the mean of a linear head's inputs, and then second moments of the inputs without it.

    Attributes:
        noise: z, the noise multiplier of the moments.
        count: the number of records, a constant.
    """

    kept: ClassVar[tuple[str, ...]] = ("mean",)
    takes_views: ClassVar[bool] = True

    noise: float
    count: int

    @property
    @abstractmethod
    def method(self) -> str:
        """The name of the method, for errors."""

    @property
    @abstractmethod
    def mean_noise(self) -> float:
        """The noise multiplier of the mean."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """C over √d: inputs of d numbers are cut to norm C."""

    @property
    def takes_fewer(self) -> bool:
        """Yes: the divisor is a constant."""
        return True

    def parts_of(self, what: str) -> Sequence[Part]:
        """The mean, and the moments, which have this name."""
        mean = gaussian_event(self.mean_noise)
        return [
            Part(name="mean of the inputs", unit=WHOLE, claimed=None, event=mean),
            Part(name=what, unit=WHOLE, claimed=None, event=gaussian_event(self.noise)),
        ]

    def check(self, model: nn.Module, records: Records, data: str | None) -> None:
        """Refuse a model that is not one linear layer on the records, and inputs of which there are too many."""
        self.centered().check(model, records, data)
        layer, x = only_layer(model), records.gather(torch.tensor([0]))[0]
        if layer.in_features != x[0].numel():
            raise ConfigError("model", f"Linear({layer.in_features}, …)", f"a layer of {x[0].numel()} inputs")
        if layer.in_features > MOST:
            raise ConfigError("method", self.method, f"at most {MOST} inputs, not {layer.in_features}")

    def release(
        self,
        model: nn.Module,
        records: Records,
        randomness: Randomness,
        device: torch.device,
        train_privately: PrivateTraining,
    ) -> Released:
        """Release the mean, and then the moments."""
        if self.noise == 0:  # a run without noise, which is not private
            mean: Tensor = records.all()[0].double().mean(0).float()
        else:
            mean = self.centered().release(model, records, randomness, device, train_privately)["mean"]
        return {"mean": mean, **self.release_moments(model, records, mean, randomness.stream("moments", 0))}

    @abstractmethod
    def release_moments(self, model: nn.Module, records: Records, mean: Tensor, stream: Stream) -> Released:
        """Release what is needed of inputs without this mean, with noise from the stream."""

    def centered(self) -> Centered:
        """The release of the mean. Without noise it only subtracts, and its multiplier is not used."""
        return Centered(Mean(noise=self.mean_noise or 1.0), self.count)

    def norm(self, inputs: int) -> float:
        """C, for this many inputs."""
        return self.bound * math.sqrt(inputs)


def _weights(rows: Tensor, columns: Tensor) -> Tensor:
    weights = torch.full(rows.shape, math.sqrt(2.0), dtype=torch.float64)
    return weights.masked_fill_(rows == columns, 1.0)
