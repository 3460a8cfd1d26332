"""The two stages of AFRRS: what is done with the records before training.

`ScaledByRelevance` (sound) releases relevance with bounded maps and forms regions. The model multiplies its inputs by
α_k, the share of the relevance in a feature's region (Eq. 14; its mean over the features is 1). The records themselves
stay sensitive and DP-SGD protects them. A clipped gradient spends more of its norm on the regions that matter.

`NoisyRecords` (published) releases relevance too. Then every record's features get Laplace noise, once, and the noisy
records replace the records (Algorithm 2). Labels get noise in every step (`objective=step`, the paper's), or once per
record (`objective=record`). In the second case all of training is post-processing. `assay.methods.perturb.readings` has
the readings of what the paper leaves open, and what each is worth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dp_accounting.dp_event import NonPrivateDpEvent

from assay._util.lazy import torch
from assay.accounting.epsilon import Adjacency
from assay.errors import AssayError, ConfigError, one_of
from assay.methods.perturb.inputs import InputNoise, check_outside, check_published, local_event
from assay.methods.perturb.objective import (
    BELOW_IS_NOT_PRIVATE,
    LabelNoise,
    label_coefficients,
    quadratic_loss,
    split_last,
)
from assay.methods.perturb.readings import Reading
from assay.methods.perturb.regions import Regions, segment
from assay.methods.perturb.segmentation import Segmentation
from assay.methods.stage import Loss, Part, PrivateTraining, Released, Stage

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from assay.data.records import Records
    from assay.randomness.streams import Randomness

OBJECTIVES = ("step", "once", "record")
_FEATURES = "the features of one record, whatever they are (local: also against whoever sees the noisy records)"
_LABEL = "the label of one record, whatever it is (local)"


@dataclass(frozen=True, kw_only=True)
class _WithRelevance(Stage):
    """A stage that releases relevance. Views are refused: relevance belongs to pixels in their places."""

    kept: ClassVar[tuple[str, ...]] = ("relevance",)  # noisy records are large, and only resuming needs them

    segmentation: Segmentation

    @property
    def takes_fewer(self) -> bool:
        """Not where a network is trained for it under a plan of its own."""
        return self.segmentation.explainer.steps is None

    def draw(self, released: Released, folder: Path) -> None:
        """Fig. 2 and 3."""
        self.segmentation.draw(released, folder)


@dataclass(frozen=True, kw_only=True)
class ScaledByRelevance(_WithRelevance):
    """The model sees each feature times its region's share of the relevance."""

    def parts(self) -> Sequence[Part]:
        """The relevance. The paper claims no ε for this variant."""
        return (self.segmentation.part(None),)

    def check(self, model: nn.Module, records: Records, data: str | None) -> None:
        """Refuse models that shift their inputs, records without features, and public data that is the private data."""
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
        """Release the relevance."""
        return {"relevance": self.segmentation.release(model, records, randomness, device, train_privately)}

    def install(self, model: nn.Module, released: Released) -> None:
        """Let the model multiply its inputs by α_k."""
        from assay.models.inputs import scale_inputs

        regions = self.segmentation.regions(released)
        scale_inputs(model, regions.of_features(regions.alpha))

    def describe(self) -> list[str]:
        """For the statement."""
        return [
            *self.segmentation.describe(),
            "the model multiplies its inputs by their region's share of the relevance (α_k, no further cost)",
        ]


@dataclass(frozen=True, kw_only=True)
class NoisyRecords(_WithRelevance):
    """Records with noisy features replace the records.

    Attributes:
        segmentation: the relevance and its regions.
        epsilon2: ε2.
        epsilon3: ε3.
        objective: "step", "once" or "record": noise on the coefficients of every step's loss, the same noise in every
            step, or noise on every record's label.
        outside: "refuse" or "clamp" features outside [0, 1].
        batch_size: the expected batch.
        count: the number of records.
        units: the neurons of the model's first layer, or the filters of a convolution, the reading with least noise.
        hidden: the neurons of its last hidden layer.
        classes: its outputs.
        adjacency: what neighbouring data sets are.
        reading: how the text is read where it leaves room.

    Raises:
        ConfigError: a setting is out of range.
    """

    epsilon2: float
    epsilon3: float
    objective: str
    outside: str
    batch_size: float
    count: int
    units: int
    hidden: int
    classes: int
    adjacency: Adjacency
    reading: Reading = field(default_factory=Reading)

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ConfigError("objective", self.objective, one_of(self.objective, OBJECTIVES))
        check_outside(self.outside)
        check_published(epsilon=self.epsilon2, batch_size=self.size, first_units=self.units)

    @property
    def size(self) -> float:
        """|L|."""
        return self.reading.size_of(self.batch_size, self.count)

    @property
    def feature_epsilon(self) -> float:
        """Σ_j 1/b_j = |L| ε2/(2|h_0|), whatever the regions; ∞ if records share their noise."""
        return math.inf if self.reading.features_reason else self.size * self.epsilon2 / (2 * self.units)

    def input_noise(self, regions: Regions) -> InputNoise:
        """The noise on the features, at the paper's scales for these regions."""
        return InputNoise.published(
            regions,
            epsilon=self.epsilon2,
            batch_size=self.size,
            first_units=self.units,
            outside=self.outside,
        )

    @property
    def label_noise(self) -> LabelNoise:
        """The noise on a record's label coefficients, for `record`."""
        return LabelNoise.published(
            classes=self.classes, hidden=self.hidden, batch_size=self.size, epsilon=self.epsilon3
        )

    def parts(self) -> Sequence[Part]:
        """Relevance, features, labels."""
        by_step = self.objective != "record"
        return (
            self.segmentation.part(self.segmentation.epsilon),
            Part(
                name="features",
                unit=_FEATURES,
                claimed=self.epsilon2,
                event=local_event(self.feature_epsilon, self.adjacency),
                reason=self.reading.features_reason,
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
        """Refuse models whose last hidden layer may leave [0, 1] or whose last layer has a bias, and such features."""
        self.segmentation.check(records, data)
        below, _ = split_last(model)
        if not isinstance(below[-1], torch.nn.Sigmoid | torch.nn.Hardsigmoid):
            raise ConfigError(
                "model",
                type(below[-1]).__name__ + " as the last activation",
                "a sigmoid, as in afrrs-mnist and afrrs-cifar10: the last hidden layer must lie in [0, 1]",
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
        """Release relevance, noisy features, the first bias (Eq. 18), and with `record` noisy labels."""
        answers = {"relevance": self.segmentation.release(model, records, randomness, device, train_privately)}
        noise = self.input_noise(self.segmentation.regions(answers))
        if noise.epsilon > self.feature_epsilon * (1 + 1e-9):
            raise AssayError(
                f"noisy features cost {noise.epsilon} but {self.feature_epsilon} was charged; the run must stop"
            )
        x, y = records.all()
        if self.reading.shared == "data":
            answers["shift"] = noise.draws(1, randomness)[0]
        answers["inputs"] = self._noisy(noise, x, randomness, answers.get("shift"))
        if self.objective == "record":
            answers["targets"] = self.label_noise.coefficients(y, self.classes, randomness.stream("label noise", 0))
        bias = _first(model).bias
        if bias is not None and self.reading.bias == "noisy":
            answers["bias"] = noise.perturbed_bias(bias, randomness.stream("bias noise", 0))
        return answers

    def _noisy(self, noise: InputNoise, x: Tensor, randomness: Randomness, shift: Tensor | None) -> Tensor:
        """Records with the noise of this reading; `shift` is the draw that all records share, if they do."""
        if shift is not None:
            found = noise.shifted(x, shift)
        elif self.reading.shared == "batch":
            group = max(1, round(self.batch_size))
            draws = noise.draws(math.ceil(len(x) / group), randomness)
            found = noise.shifted(x, draws.repeat_interleave(group, 0)[: len(x)])
        else:
            found = noise.perturbed(x, randomness)
        return found.clamp(0.0, 1.0) if self.reading.noisy == "clamp" else found

    def install(self, model: nn.Module, released: Released) -> None:
        """Set the first layer's bias as Eq. 18 perturbs it. (A finished run has it among its parameters.)"""
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

    def tested(self, data: Dataset[Any], released: Released) -> Dataset[Any]:
        """The test records as they are, or with noise as this reading has it."""
        if self.reading.test == "plain":
            return data
        from torch.utils.data import TensorDataset

        from assay.data.records import Records
        from assay.randomness.streams import Seeded, Within

        x, y = Records(data).all()
        noise = self.input_noise(self.segmentation.regions(released))
        source = Within(Seeded(0), "test")  # this noise protects nothing: any seed does
        return TensorDataset(self._noisy(noise, x, source, released.get("shift")), y)

    def loss(self, own: Loss) -> Loss:  # noqa: ARG002
        """Eq. 20, from noisy coefficients or from labels."""
        return expanded_loss

    def rivals(self, releases: int, randomness: Randomness) -> tuple[Tensor, Tensor, float]:
        """For an audit: noisy records of zeros and of ones, and a threshold that tells them apart.

        One feature of two has all the relevance, hence all of Σ 1/b_j.
        """
        from assay.randomness.streams import Within

        noise = self.input_noise(segment(torch.tensor([0.0, 1.0]), 0.0))
        zeros, ones = (
            noise.perturbed(torch.full((releases, 2), value), Within(randomness, f"audit {value}"))[:, 1]
            for value in (0.0, 1.0)
        )
        return zeros, ones, 1.0  # beyond 1 the likelihood ratio is e^ε everywhere

    def describe(self) -> list[str]:
        """For the statement."""
        labels = {
            "step": "Laplace noise on the coefficients of every step's loss, expanded to a quadratic (Eq. 21)",
            "once": "Laplace noise on the coefficients of the loss, expanded to a quadratic (Eq. 21), drawn once and "
            "used in every step",
            "record": "Laplace noise on every record's label coefficient ½ - y, drawn once and kept",
        }[self.objective]
        return [
            *self.segmentation.describe(),
            "Laplace noise on every record's features, drawn once and kept, less of it in regions of more relevance; "
            f"features outside [0, 1]: {self.outside}",
            labels,
            *self.reading.describe(),
        ]


def expanded_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Eq. 20 for each record; `target` holds labels or their noisy coefficients."""
    first = target if target.is_floating_point() else label_coefficients(target, scores.shape[1]).to(scores)
    return quadratic_loss(scores, first)


def _first(model: nn.Module) -> nn.Linear | nn.Conv2d:
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            return layer
    raise ConfigError("model", type(model).__name__, "a model that begins with a Linear or Conv2d layer")


class Sizes(NamedTuple):
    """The sizes on which the published noise depends: neurons of the first and the last hidden layer, outputs."""

    units: int
    hidden: int
    classes: int


def sizes(model: nn.Module) -> Sizes:
    """The sizes of this model.

    Raises:
        ConfigError: it does not begin with a Linear or Conv2d layer.
        UnsupportedModelError: it does not end with a Linear layer without bias.
    """
    first, (_, last) = _first(model), split_last(model)
    units = first.out_features if isinstance(first, torch.nn.Linear) else first.out_channels
    return Sizes(units, last.in_features, last.out_features)
