"""The result of a run, central or federated: its progress, its model and its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from assay._util.figures import at_most
from assay._util.files import replacing
from assay.errors import AssayError
from assay.runs.directory import RunDirectory
from assay.runs.metrics import cross_entropy, evaluate, shown
from assay.runs.statement import statement

__all__ = ["InterruptedRunError", "Progress", "Result", "cross_entropy", "evaluate", "save_model", "write_result"]


class InterruptedRunError(AssayError):
    """The run was asked to stop; a checkpoint is written and it can be resumed."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is. Every number in it may be shown: the loss is released with noise.

    >>> now = Progress(step=50, steps=100, epoch=1.0, loss=0.7, epsilon=0.4, accuracy=None, epoch_end=True)
    >>> now.step / now.steps
    0.5
    """

    step: int
    steps: int
    epoch: float
    loss: float | None
    epsilon: float | None
    accuracy: float | None
    epoch_end: bool


@dataclass(frozen=True, kw_only=True)
class Result:
    """A trained model and its record.

    Attributes:
        model: The trained model.
        record: What `record.json` holds.
        statement: The privacy statement, in Markdown.
        directory: Where they were written, if anywhere.
        nonfinite: How many gradients held NaN or Inf and were left out. Only for the operator: it is not private, and
            not in the record.
    """

    model: nn.Module
    record: dict[str, Any]
    statement: str
    directory: RunDirectory | None
    nonfinite: int

    def __repr__(self) -> str:
        """The result in one line, for whoever looks at it in a notebook; the rest is in its attributes."""
        spent = f"ε = {at_most(self.epsilon)} at δ = {self.record['epsilon']['delta']:g}"
        figures = "".join(f", {name} {value}" for name, value in shown(self.record["result"]).items())
        right = "" if self.accuracy is None else f", accuracy {self.accuracy:.2%}"
        where = "" if self.directory is None else f", in {self.directory.path}"
        return f"<Result: {spent} for {self.record['unit']}, claimed {at_most(self.claimed)}{right}{figures}{where}>"

    @property
    def epsilon(self) -> float:
        """The verified ε."""
        return float(self.record["epsilon"]["verified"])

    @property
    def claimed(self) -> float:
        """The ε that the method's paper would report for this run."""
        return float(self.record["epsilon"]["claimed"])

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the test records, if there were any."""
        value: float | None = self.record["result"]["test_accuracy"]
        return value

    @property
    def test_loss(self) -> float | None:
        """The mean loss on the test records, if there were any."""
        value = self.record["result"]["test_loss"]
        return None if value is None else float(value)

    @property
    def metrics(self) -> dict[str, float | None]:
        """Every figure of the task on the test records, and the loss; empty without test records.

        For classes `accuracy`, `balanced_accuracy`, `auc`, `f1`, `calibration_error` and `commonest`, the accuracy of
        always saying the commonest class; for labels `exact` in place of those two about classes; for a number `mae`,
        `rmse` and `r2`. None stands for a figure that is not defined for these records, such as the AUC of a class that
        is not among them.
        """
        found = self.record["result"]
        if found["test_loss"] is None and found["test_accuracy"] is None:
            return {}
        return {
            name.removeprefix("test_"): None if value is None else float(value)
            for name, value in found.items()
            if name.startswith("test_")
        }

    @property
    def budget_spent(self) -> bool:
        """Whether the budget ended the run before its plan did."""
        return bool(self.record["status"] == "budget-spent")


def write_result(
    model: nn.Module,
    record: dict[str, Any],
    directory: RunDirectory | None,
    nonfinite: int,
    tensors: Mapping[str, Tensor] | None = None,
) -> Result:
    """Write a finished run's files and return its result.

    The record is written last: where it is, the run is complete.

    Args:
        model: The trained model.
        record: What `assay.runs.record.build_record` made.
        directory: Where to write; None writes nothing.
        nonfinite: How many gradients or answers were left out.
        tensors: The model's tensors, where the model itself does not hold them whole.

    Returns:
        The model with its record and its statement.
    """
    model.eval()
    if directory is not None:
        save_model(directory.model, model.state_dict() if tensors is None else tensors)
        if directory.digest() is not None:  # not a run that an earlier version began
            record = {**record, "files": directory.digests()}  # the statement names some of them
    text = statement(record)
    if directory is not None:
        record = directory.write_record(record, text)
        directory.finish()
    return Result(model=model, record=record, statement=text, directory=directory, nonfinite=nonfinite)


def save_model(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Parameters and buffers as safetensors, written whole."""
    whole = {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as temporary:
        save_file(whole, temporary)
