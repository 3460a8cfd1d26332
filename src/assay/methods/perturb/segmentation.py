"""The first part of both stages of AFRRS: relevance released with noise, and the regions that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, LaplaceDpEvent, NonPrivateDpEvent

from assay._util.figures import at_most
from assay._util.lazy import torch
from assay.errors import AssayError, ConfigError
from assay.methods.perturb import pictures
from assay.methods.perturb.explain import PUBLISHED_IS_NOT_PRIVATE, Explainer
from assay.methods.perturb.regions import Regions, check_gamma, segment
from assay.methods.stage import WHOLE, Part, PrivateTraining, Released

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.data.records import Records
    from assay.randomness.streams import Randomness

_PICTURE = "relevance.png"


@dataclass(frozen=True, kw_only=True)
class Segmentation:
    """Relevance released at ε1, and its regions.

    Attributes:
        explainer: the network whose decisions are explained.
        epsilon: ε1.
        gamma: the distance below which regions merge.
    """

    explainer: Explainer
    epsilon: float
    gamma: float

    def __post_init__(self) -> None:
        check_gamma(self.gamma)

    def event(self) -> DpEvent:
        """The cost of the explaining network and of the noisy maps."""
        cost = self.explainer.cost
        if isinstance(cost, NonPrivateDpEvent):
            return cost
        return ComposedDpEvent([cost, LaplaceDpEvent(1 / self.epsilon)])

    def check(self, records: Records, data: str | None) -> None:
        """Refuse records without tensors of features, and "public" data that is the private data."""
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
        """Release the relevance of every feature, in the shape of a record."""
        from assay.methods.perturb.relevance import private_relevance, published_relevance

        network = self.explainer.network(records, _outputs(model, records), randomness, device, train_privately)
        stream = randomness.stream("relevance", 0)
        if isinstance(self.event(), NonPrivateDpEvent):
            relevance = published_relevance(
                network, records.dataset, epsilon=self.epsilon, stream=stream, device=device
            )
        else:
            cost = self.explainer.cost
            relevance = private_relevance(
                network, records.dataset, epsilon=self.epsilon, model_cost=cost, stream=stream, device=device
            )
        if relevance.event != self.event():
            raise AssayError(f"the relevance cost {relevance.event} but {self.event()} was charged; the run must stop")
        return relevance.values

    def regions(self, released: Released) -> Regions:
        """The regions of the released relevance."""
        return segment(released["relevance"], self.gamma)

    def draw(self, released: Released, folder: Path) -> None:
        """Fig. 2 and 3."""
        pictures.draw(released["relevance"], self.regions(released), folder / _PICTURE)

    def describe(self) -> list[str]:
        """For the statement."""
        return [
            "the average relevance of the features to a network's decisions, with Laplace noise "
            f"(ε1 = {at_most(self.epsilon)}); the network: {self.explainer.describe()}",
            f"regions of similar relevance, merged below a distance of {self.gamma:g} (no further cost)",
        ]


def _outputs(model: nn.Module, records: Records) -> int:
    """The number of the model's classes, seen on a record of zeros."""
    was = model.training
    with torch.no_grad():
        scores = model.eval()(records.zeros()[0])
    model.train(was)
    if not isinstance(scores, torch.Tensor) or scores.dim() != 2:
        raise ConfigError(
            "model", type(model).__name__, "a model with one score per class: relevance explains decisions"
        )
    return int(scores.shape[1])
