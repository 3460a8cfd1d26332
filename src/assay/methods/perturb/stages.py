"""The two stages of AFRRS: what is done with the records before training.

`ScaledByRelevance` (sound): relevance is released with bounded maps, regions are made of it, and the model multiplies its inputs by
α_k, the share of the relevance that a feature's region has (Eq. 14; its mean over the features is 1). The records themselves stay
sensitive: DP-SGD protects them, and a clipped gradient spends more of its norm on the regions that matter.

`NoisyRecords` (published): relevance as well, then Laplace noise on every record's features, once, kept in place of the records
(Algorithm 2). Labels have noise in every step (`objective=step`, the paper's), or once a record (`objective=record`), after
which all of training is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, LaplaceDpEvent, NonPrivateDpEvent

from assay._util.lazy import torch
from assay.accounting.epsilon import Adjacency
from assay.errors import AssayError, ConfigError
from assay.methods.perturb import pictures
from assay.methods.perturb.explain import PUBLISHED_IS_NOT_PRIVATE, Explainer
from assay.methods.perturb.inputs import InputNoise, check_outside, check_published, local_event
from assay.methods.perturb.objective import (
    BELOW_IS_NOT_PRIVATE,
    LabelNoise,
    label_coefficients,
    quadratic_loss,
    split_last,
)
from assay.methods.perturb.regions import Regions, check_gamma, segment
from assay.methods.stage import WHOLE, Loss, Part, PrivateTraining, Released

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from assay.data.records import Records
    from assay.randomness.streams import Randomness

OBJECTIVES = ("step", "record")
_PICTURE = "relevance.png"
_FEATURES = "the features of one record, whatever they are (local: also against whoever sees the noisy records)"
_LABEL = "the label of one record, whatever it is (local)"


@dataclass(frozen=True, kw_only=True)
class Segmentation:
    """Released relevance at ε1 = `epsilon`, and regions of it."""

    explainer: Explainer
    epsilon: float
    gamma: float

    def __post_init__(self) -> None:
        check_gamma(self.gamma)

    def event(self) -> DpEvent:
        """The network that explains and the noise on the maps."""
        cost = self.explainer.cost
        if isinstance(cost, NonPrivateDpEvent):
            return cost
        return ComposedDpEvent([cost, LaplaceDpEvent(1 / self.epsilon)])

    def check(self, records: Records, data: str | None) -> None:
        """Refuse what relevance has no features of, and a public network that is private."""
        shape = getattr(records.zeros()[0], "shape", ())
        if len(shape) < 2:
            raise ConfigError("dataset", type(records.dataset).__name__, "pairs of a tensor of features and a label")
        self.explainer.check(data)

    def part(self, claimed: float | None) -> Part:
        """The row of the statement."""
        event = self.event()
        return Part(
            name="relevance",
            unit=WHOLE,
            claimed=claimed,
            event=event,
            reason=PUBLISHED_IS_NOT_PRIVATE if isinstance(event, NonPrivateDpEvent) else "",
        )

    def release(
        self,
        model: nn.Module,
        records: Records,
        randomness: Randomness,
        device: torch.device,
        train_privately: PrivateTraining,
    ) -> Tensor:
        """The relevance of every feature, in the shape of a record."""
        from assay.methods.perturb.relevance import private_relevance, published_relevance

        network = self.explainer.network(records, _outputs(model, records), randomness, device, train_privately)
        stream = randomness.stream("relevance", 0)
        if isinstance(self.event(), NonPrivateDpEvent):
            found = published_relevance(network, records.dataset, epsilon=self.epsilon, stream=stream, device=device)
        else:
            cost = self.explainer.cost
            found = private_relevance(
                network, records.dataset, epsilon=self.epsilon, model_cost=cost, stream=stream, device=device
            )
        if found.event != self.event():
            raise AssayError(f"the relevance cost {found.event} but {self.event()} was charged; the run must not go on")
        return found.values

    def regions(self, released: Released) -> Regions:
        """Of the released relevance."""
        return segment(released["relevance"], self.gamma)

    def draw(self, released: Released, folder: Path) -> None:
        """Fig. 2 and 3."""
        pictures.draw(released["relevance"], self.regions(released), folder / _PICTURE)

    def describe(self) -> list[str]:
        """For the statement."""
        return [
            f"the average relevance of the features to a network's decisions, with Laplace noise (ε1 = {self.epsilon:.5g}); the "
            f"network: {self.explainer.describe()}",
            f"regions of similar relevance, merged below a distance of {self.gamma:g} (no further cost)",
        ]


@dataclass(frozen=True, kw_only=True)
class ScaledByRelevance:
    """The model sees each feature times its region's share of the relevance."""

    segmentation: Segmentation

    @property
    def kept(self) -> tuple[str, ...]:
        """The relevance."""
        return ("relevance",)

    @property
    def takes_views(self) -> bool:
        """No: relevance is of pixels in their places."""
        return False

    @property
    def takes_fewer(self) -> bool:
        """Not where a network is trained for it under a plan of its own."""
        return self.segmentation.explainer.steps is None

    def parts(self) -> Sequence[Part]:
        """The relevance; the paper has no word for it."""
        return (self.segmentation.part(None),)

    def check(self, model: nn.Module, records: Records, data: str | None) -> None:
        """The network that explains must not be public and private at once; records are tensors, which the model does not shift."""
        from assay.models.inputs import check_inputs

        check_inputs(model, "input_scale")
        self.segmentation.check(records, data)

    def release(
        self,
        model: nn.Module,
        records: Records,
        randomness: Randomness,
        device: torch.device,
        train_privately: PrivateTraining,
    ) -> Released:
        """The relevance."""
        return {"relevance": self.segmentation.release(model, records, randomness, device, train_privately)}

    def install(self, model: nn.Module, released: Released) -> None:
        """Inputs times α_k from now on."""
        from assay.models.inputs import scale_inputs

        regions = self.segmentation.regions(released)
        scale_inputs(model, regions.of_features(regions.alpha))

    def records(self, data: Dataset[Any], released: Released) -> Dataset[Any]:  # noqa: ARG002
        """As they are."""
        return data

    def loss(self, own: Loss) -> Loss:
        """As it is."""
        return own

    def draw(self, released: Released, folder: Path) -> None:
        """Fig. 2 and 3."""
        self.segmentation.draw(released, folder)

    def describe(self) -> list[str]:
        """For the statement."""
        return [
            *self.segmentation.describe(),
            "the model multiplies its inputs by their region's share of the relevance (α_k, no further cost)",
        ]


@dataclass(frozen=True, kw_only=True)
class NoisyRecords:
    """Records with noisy features take the place of the records; see the module.

    `units`, `hidden` and `classes` are the model's: neurons of its first layer (filters of a convolution, the reading with the
    least noise), of its last hidden layer, and outputs.
    """

    segmentation: Segmentation
    epsilon2: float
    epsilon3: float
    objective: str
    outside: str
    batch_size: float
    units: int
    hidden: int
    classes: int
    adjacency: Adjacency

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ConfigError("objective", self.objective, "one of " + ", ".join(OBJECTIVES))
        check_outside(self.outside)
        check_published(epsilon=self.epsilon2, batch_size=self.batch_size, first_units=self.units)

    @property
    def kept(self) -> tuple[str, ...]:
        """The relevance. Noisy records are large, and only a run that goes on needs them."""
        return ("relevance",)

    @property
    def takes_views(self) -> bool:
        """No: training sees noisy records, each released once."""
        return False

    @property
    def takes_fewer(self) -> bool:
        """Not where a network is trained for it under a plan of its own."""
        return self.segmentation.explainer.steps is None

    @property
    def feature_epsilon(self) -> float:
        """Σ_j 1/b_j = |L| ε2/(2|h_0|), whatever the regions are."""
        return self.batch_size * self.epsilon2 / (2 * self.units)

    def input_noise(self, regions: Regions) -> InputNoise:
        """The noise on the features, of the scales that the paper gives these regions."""
        return InputNoise.published(
            regions,
            epsilon=self.epsilon2,
            batch_size=self.batch_size,
            first_units=self.units,
            outside=self.outside,
        )

    @property
    def label_noise(self) -> LabelNoise:
        """The noise on a record's label coefficients, for `record`."""
        return LabelNoise.published(
            classes=self.classes, hidden=self.hidden, batch_size=self.batch_size, epsilon=self.epsilon3
        )

    def parts(self) -> Sequence[Part]:
        """Relevance, features, labels."""
        by_step = self.objective == "step"
        return (
            self.segmentation.part(self.segmentation.epsilon),
            Part(
                name="features",
                unit=_FEATURES,
                claimed=self.epsilon2,
                event=local_event(self.feature_epsilon, self.adjacency),
                pure=self.feature_epsilon,
            ),
            Part(
                name="labels",
                unit=_LABEL,
                claimed=self.epsilon3,
                event=NonPrivateDpEvent() if by_step else self.label_noise.event(self.adjacency),
                reason=BELOW_IS_NOT_PRIVATE if by_step else "",
                pure=math.inf if by_step else self.label_noise.epsilon,
                each_step=by_step,
            ),
        )

    def check(self, model: nn.Module, records: Records, data: str | None) -> None:
        """The expanded objective needs a last layer without bias on a hidden layer within [0, 1], the noise features within [0, 1]."""
        self.segmentation.check(records, data)
        below, _ = split_last(model)
        if not isinstance(below[-1], torch.nn.Sigmoid | torch.nn.Hardsigmoid):
            raise ConfigError(
                "model",
                type(below[-1]).__name__ + " as the last activation",
                "a sigmoid: the last hidden layer must lie in [0, 1] for the objective's sensitivity (afrrs-mnist, afrrs-cifar10)",
            )
        self.input_noise(segment(torch.zeros(1), 0.0)).within(records.all()[0])

    def release(
        self,
        model: nn.Module,
        records: Records,
        randomness: Randomness,
        device: torch.device,
        train_privately: PrivateTraining,
    ) -> Released:
        """Relevance, noisy features, the first bias (Eq. 18), and with `record` noisy labels."""
        found = {"relevance": self.segmentation.release(model, records, randomness, device, train_privately)}
        noise = self.input_noise(self.segmentation.regions(found))
        if noise.epsilon > self.feature_epsilon * (1 + 1e-9):
            raise AssayError(
                f"noisy features cost {noise.epsilon} but {self.feature_epsilon} was charged; the run must not go on"
            )
        x, y = records.all()
        found["inputs"] = noise.perturbed(x, randomness)
        if self.objective == "record":
            found["targets"] = self.label_noise.coefficients(y, self.classes, randomness.stream("label noise", 0))
        bias = _first(model).bias
        if bias is not None:
            found["bias"] = noise.perturbed_bias(bias, randomness.stream("bias noise", 0))
        return found

    def install(self, model: nn.Module, released: Released) -> None:
        """The first layer's bias, as Eq. 18 perturbs it (a finished run has it among its parameters)."""
        if "bias" in released:
            bias = _first(model).bias
            assert bias is not None
            with torch.no_grad():
                bias.copy_(released["bias"])

    def records(self, data: Dataset[Any], released: Released) -> Dataset[Any]:
        """Noisy features with noisy label coefficients, or (not private) with the labels."""
        from torch.utils.data import TensorDataset

        from assay.data.records import Records

        targets = released["targets"] if "targets" in released else Records(data).all()[1]
        return TensorDataset(released["inputs"], targets)

    def loss(self, own: Loss) -> Loss:  # noqa: ARG002
        """Eq. 20, from noisy coefficients or from labels."""
        return _expanded

    def rivals(self, releases: int, randomness: Randomness) -> tuple[Tensor, Tensor, float]:
        """Noisy records of zeros and of ones where one feature of two has all the relevance, hence all of Σ 1/b_j."""
        from assay.randomness.streams import Within

        noise = self.input_noise(segment(torch.tensor([0.0, 1.0]), 0.0))
        zeros, ones = (
            noise.perturbed(torch.full((releases, 2), value), Within(randomness, f"audit {value}"))[:, 1]
            for value in (0.0, 1.0)
        )
        return zeros, ones, 1.0  # beyond 1 the likelihood ratio is e^ε everywhere

    def draw(self, released: Released, folder: Path) -> None:
        """Fig. 2 and 3."""
        self.segmentation.draw(released, folder)

    def describe(self) -> list[str]:
        """For the statement."""
        labels = {
            "step": "Laplace noise on the coefficients of every step's loss, expanded to a quadratic (Eq. 21)",
            "record": "Laplace noise on every record's label coefficient ½ - y, drawn once and kept",
        }[self.objective]
        return [
            *self.segmentation.describe(),
            f"Laplace noise on every record's features, drawn once and kept, less of it in regions of more relevance; features outside [0, 1]: {self.outside}",
            labels,
        ]


def _expanded(scores: Tensor, target: Tensor) -> Tensor:
    """Eq. 20; `target` is a label or its noisy coefficients."""
    first = target if target.is_floating_point() else label_coefficients(target, scores.shape[1]).to(scores)
    return quadratic_loss(scores, first)


def _outputs(model: nn.Module, records: Records) -> int:
    """How many classes the model tells apart: seen on a record of zeros."""
    was = model.training
    with torch.no_grad():
        scores = model.eval()(records.zeros()[0])
    model.train(was)
    if not isinstance(scores, torch.Tensor) or scores.dim() != 2:
        raise ConfigError("model", type(model).__name__, "a model with one score a class: relevance explains decisions")
    return int(scores.shape[1])


def _first(model: nn.Module) -> nn.Linear | nn.Conv2d:
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            return layer
    raise ConfigError("model", type(model).__name__, "a model that begins with a Linear or Conv2d layer")


class Sizes(NamedTuple):
    """What the published noise depends on: neurons of the first and of the last hidden layer, outputs."""

    units: int
    hidden: int
    classes: int


def sizes(model: nn.Module) -> Sizes:
    """Of this model."""
    first, (_, last) = _first(model), split_last(model)
    units = first.out_features if isinstance(first, torch.nn.Linear) else first.out_channels
    return Sizes(units, last.in_features, last.out_features)
