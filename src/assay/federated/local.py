"""Training at a client: some epochs or steps of SGD from the global model, on the client's records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.errors import ConfigError, check_above_zero
from assay.federated.plan import check_whole
from assay.randomness.streams import Randomness, Stream, check_source, source

_LOSS_BATCH = 1000


@dataclass(frozen=True, kw_only=True)
class Training:
    """How clients and server train. Nothing here decides ε.

    Attributes:
        epochs: Passes over a client's records in one turn.
        steps: Steps in one turn; replaces `epochs`.
        batch_size: Records in a client's batch.
        lr: The clients' learning rate.
        server_lr: Multiplies the average update.
        weight_records: A public bound b: a client with n records counts min(n, b)/b. None: all clients count 1.
        seed: Fixes all random numbers. The run is then reproducible and not private.
        secure_rng: Draw random numbers from the operating system.
        keep_models: How many intermediate models, which are released anyway, stay in the run's directory.
    """

    epochs: int = 1
    steps: int | None = None
    batch_size: int = 128
    lr: float = 0.1
    server_lr: float = 1.0
    weight_records: int | None = None
    seed: int | None = None
    secure_rng: bool = False
    keep_models: int = 0

    def __post_init__(self) -> None:
        check_whole("local_epochs", self.epochs, 1)
        check_whole("batch_size", self.batch_size, 1)
        check_whole("keep_models", self.keep_models, 0)
        check_above_zero("lr", self.lr)
        check_above_zero("server_lr", self.server_lr)
        if self.steps is not None:
            check_whole("local_steps", self.steps, 1)
        if self.weight_records is not None:
            check_whole("weight_records", self.weight_records, 1)
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ConfigError("seed", self.seed, "a whole number from 0 to 2⁶⁴ - 1")
        check_source(self.seed, self.secure_rng)

    def randomness(self) -> Randomness:
        """Where the random numbers of one process come from."""
        return source(self.seed, self.secure_rng)

    def weight(self, records: int) -> float:
        """How much a client counts, from 0 to 1."""
        return 1.0 if self.weight_records is None else min(records, self.weight_records) / self.weight_records


def train(model: nn.Module, x: Tensor, y: Tensor, training: Training, stream: Stream) -> float:
    """Train in place by SGD without momentum: a client keeps no state.

    Args:
        model: Trained in place.
        x: The client's inputs.
        y: Their labels.
        training: How to train.
        stream: Decides the order of the records.

    Returns:
        The sum over the epochs of the mean training loss.
    """
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = 0.0
    for index in _batches(len(x), training, stream):
        loss = F.cross_entropy(model(x[index]), y[index])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=training.lr)
        total += float(loss.detach()) * len(index)
    return total / max(1, len(x))


@torch.no_grad()
def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The mean loss of the model on these records; 0 if there are none."""
    model.eval()
    total = 0.0
    for start in range(0, len(x), _LOSS_BATCH):
        batch = slice(start, start + _LOSS_BATCH)
        total += float(F.cross_entropy(model(x[batch]), y[batch], reduction="sum"))
    return total / max(1, len(x))


def _batches(records: int, training: Training, stream: Stream) -> Iterator[Tensor]:
    """Batches in a new random order each epoch; exactly `steps` of them if that is set."""
    if records == 0:
        return
    each = math.ceil(records / training.batch_size)
    steps = training.epochs * each if training.steps is None else training.steps
    order = torch.empty(0, dtype=torch.int64)
    for step in range(steps):
        if step % each == 0:
            order = stream.uniform(records).argsort()
        start = step % each * training.batch_size
        yield order[start : start + training.batch_size]
