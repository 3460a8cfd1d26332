"""The network whose decisions AFRRS explains (`assay.methods.perturb.relevance`): its source and its cost.

| source | the network | cost |
|---|---|---|
| `private` | trained on the private records by DP-SGD | its steps, composed with all else |
| `data:NAME` | trained on a public data set, resized to the records' shape | none; NAME must not be the private data |
| `file:PATH` | a checkpoint (safetensors) that the user declares public | none |
| `records` | trained on the private records without noise, as we read the paper | no ε at all |

A run started from Python without `names` has no name to compare with. Then the caller vouches for what is public.

The network is LeNet-5 for images (the paper names it for MNIST), and a perceptron for flat records.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dp_accounting.dp_event import DpEvent, NonPrivateDpEvent, NoOpDpEvent

from assay._util.lazy import torch
from assay.data.catalog import DATASETS
from assay.errors import ConfigError
from assay.methods.stage import PrivateTraining

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.data.records import Records
    from assay.methods.plan import Plan
    from assay.randomness.streams import Randomness

PUBLIC_MODEL: DpEvent = NoOpDpEvent()
"""The cost of a network that never saw the private records."""

PUBLISHED_IS_NOT_PRIVATE = (
    "the model that explains was trained on the private records without noise, a record's relevance map is not "
    "bounded, and the averages are standardised by the data's own extremes before the noise: no finite ε holds for the "
    "relevance as published"
)

FORMS = "private, data:NAME (a public data set), file:PATH (a public checkpoint), or with variant published records"

_STEPS, _BATCH, _LR = 400, 128, 1e-3  # without noise: Adam, whatever the number of records
_PRIVATE_LR, _MOMENTUM = 0.5, 0.9  # DP-SGD: the defaults of the command line are made for longer runs


@dataclass(frozen=True, kw_only=True)
class Explainer:
    """A network from one of the sources.

    Attributes:
        source: "private", "data:NAME", "file:PATH" or "records".
        steps: the plan of its DP-SGD, for "private".

    Raises:
        ConfigError: the source is none of these.

    >>> Explainer(source="data:fashion-mnist").describe()
    'trained on the data set fashion-mnist, taken as public'
    """

    source: str
    steps: Plan | None = None

    def __post_init__(self) -> None:
        kind, _, name = self.source.partition(":")
        if self.source not in ("private", "records") and not (kind in ("data", "file") and name):
            raise ConfigError("explain", self.source, FORMS)

    @property
    def cost(self) -> DpEvent:
        """What training the network cost the private records."""
        if self.source == "records":
            return NonPrivateDpEvent()
        if self.steps is None:
            return PUBLIC_MODEL
        return self.steps.event()

    def describe(self) -> str:
        """A phrase for the statement."""
        kind, _, name = self.source.partition(":")
        return {
            "records": "trained on the private records without noise",
            "private": "trained on the private records by DP-SGD"
            + ("" if self.steps is None else f", {self.steps.steps} steps"),
            "data": f"trained on the data set {name}, taken as public",
            "file": "a checkpoint that was given, taken as public",
        }[kind]

    def check(self, private_data: str | None) -> None:
        """Refuse public data that is the private data, and files that do not exist.

        Raises:
            ConfigError: says what is wrong with the source.
        """
        kind, _, name = self.source.partition(":")
        if kind == "data" and name == private_data:
            raise ConfigError("explain", self.source, f"another data set: {name} is the private one ({FORMS})")
        if kind == "data" and name not in DATASETS:
            raise ConfigError("explain", self.source, "data:NAME with a name that `assay data` lists")
        if kind == "file" and not Path(name).is_file():
            raise ConfigError("explain", self.source, "file:PATH of a safetensors file that exists")

    def network(
        self,
        records: Records,
        classes: int,
        randomness: Randomness,
        device: torch.device,
        train_privately: PrivateTraining,
    ) -> nn.Module:
        """Train or load the network. Except for `records` it may be released, because it is private or public.

        Raises:
            ConfigError: the public data or the checkpoint does not fit the records.
        """
        shape = tuple(records.zeros()[0].shape[1:])
        kind, _, name = self.source.partition(":")
        if kind == "data":
            from assay.data.sources import load

            bundle = load(name)
            x = _of_shape(bundle.train_x, shape, self.source)
            network = _new(shape, bundle.classes, randomness, device)
            return _trained(network, _tensor_batches(x, bundle.train_y, randomness, device))
        network = _new(shape, classes, randomness, device)
        if kind == "file":
            from safetensors import SafetensorError
            from safetensors.torch import load_file

            try:
                network.load_state_dict(load_file(name))
            except (SafetensorError, RuntimeError) as error:
                raise ConfigError(
                    "explain", self.source, f"parameters of {_name(shape)} for this data: {error}"
                ) from error
            return network
        if kind == "records":
            return _trained(network, _record_batches(records, randomness))
        assert self.steps is not None
        optimizer = torch.optim.SGD(network.parameters(), lr=_PRIVATE_LR, momentum=_MOMENTUM)
        train_privately(network, records, self.steps, optimizer, randomness)
        return network


def _name(shape: tuple[int, ...]) -> str:
    return "lenet5" if len(shape) == 3 and min(shape[1:]) >= 4 else "mlp"


def _new(shape: tuple[int, ...], classes: int, randomness: Randomness, device: torch.device) -> nn.Module:
    """A new network. torch's generator stays as it was."""
    from assay import models

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(randomness.stream("explain init", 0).integers(2**62, 1)))
        return models.build(_name(shape), input_shape=shape, classes=classes).to(device)


def _of_shape(x: Tensor, shape: tuple[int, ...], source: str) -> Tensor:
    """Public images at the private records' size and number of channels."""
    if tuple(x.shape[1:]) == shape:
        return x
    if x.dim() != 4 or len(shape) != 3:
        raise ConfigError("explain", source, f"public data of shape {shape}, or images for images")
    x = torch.nn.functional.interpolate(
        x.mean(1, keepdim=True) if x.shape[1] != shape[0] else x, size=shape[1:], mode="bilinear"
    )
    return x.expand(-1, shape[0], -1, -1) if x.shape[1] != shape[0] else x


def _orders(n: int, randomness: Randomness) -> Iterator[Tensor]:
    epochs = (randomness.stream("explain order", e).uniform(n).argsort().split(_BATCH) for e in itertools.count())
    yield from itertools.islice(itertools.chain.from_iterable(epochs), _STEPS)


def _record_batches(records: Records, randomness: Randomness) -> Iterator[tuple[Tensor, Tensor]]:
    for index in _orders(len(records), randomness):
        x, y = records.gather(index)
        yield x, y


def _tensor_batches(
    x: Tensor, y: Tensor, randomness: Randomness, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    for index in _orders(len(x), randomness):
        yield x[index].to(device), y[index].to(device)


def _trained(network: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> nn.Module:
    """The network after training by Adam, without noise."""
    optimizer = torch.optim.Adam(network.parameters(), lr=_LR)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network
