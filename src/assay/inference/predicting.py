"""What a model answers: classes with probabilities, labels with probabilities, or numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from assay._util.files import replace_text
from assay.data.task import MULTILABEL, REGRESSION, Task
from assay.errors import ConfigError


def answers(scores: Tensor, task: Task) -> Tensor:
    """Scores of a model as probabilities [records, classes], or as numbers in the target's units [records, 1]."""
    if task.kind == REGRESSION:
        return task.unscaled(scores.reshape(-1, 1))
    return torch.sigmoid(scores) if task.kind == MULTILABEL else torch.softmax(scores, dim=1)


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """The answers of a model for a number of records.

    Attributes:
        task: What is predicted.
        array: A line for each record: the probability of each class or label in the order of `task.names`, or for a
            regression one number in the units of the target.
        labels: What people know each record by: the number of its row, or the name of its file.
        called: What such a label is, "row" or "file".
    """

    task: Task
    array: npt.NDArray[np.float32] = field(repr=False)
    labels: tuple[str, ...] = field(repr=False)
    called: str = "row"

    def __len__(self) -> int:
        return len(self.array)

    @property
    def probabilities(self) -> npt.NDArray[np.float32]:
        """The probability of each class or label, a line for each record.

        Raises:
            ConfigError: The model predicts a number.
        """
        if self.task.kind == REGRESSION:
            raise ConfigError("task", self.task.kind, "a task with classes; a regression has `values`")
        return self.array

    @property
    def values(self) -> list[str] | list[tuple[str, ...]] | list[float]:
        """For each record its most probable class, the labels of probability 0.5 or more, or the number."""
        if self.task.kind == REGRESSION:
            return [float(value) for value in self.array[:, 0]]
        names = self.task.names
        if self.task.kind == MULTILABEL:
            return [tuple(name for name, p in zip(names, row, strict=True) if p >= 0.5) for row in self.array]
        return [names[int(at)] for at in self.array.argmax(axis=1)]

    def rows(self) -> Iterator[list[str]]:
        """The lines of a CSV file: a header, then one for each record."""
        numbers = self.task.kind == REGRESSION
        yield [self.called, "prediction", *([] if numbers else (f"p({name})" for name in self.task.names))]
        for label, value, line in zip(self.labels, self.values, self.array, strict=True):
            said = ";".join(value) if isinstance(value, tuple) else value if isinstance(value, str) else f"{value:.7g}"
            yield [label, said, *([] if numbers else (f"{p:.6f}" for p in line))]

    def to_csv(self) -> str:
        """All of it as CSV."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self.rows())
        return text.getvalue()

    def write(self, path: Path | str, *, force: bool = False) -> Path:
        """Write them as CSV.

        Args:
            path: A new file.
            force: Replace a file that is there.

        Returns:
            The file.

        Raises:
            ConfigError: The file is there already, or its name does not end with .csv.
        """
        target = free(Path(path), force=force)
        if target.suffix.lower() != ".csv":
            raise ConfigError("out", str(path), "a name that ends with .csv")
        replace_text(target, self.to_csv())
        return target


def free(path: Path, *, force: bool) -> Path:
    """A file that may be written.

    Raises:
        ConfigError: It is there already and `force` is not given, or it is a folder, or its folder does not exist.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError("out", str(path), "the name of a file in a folder that exists")
    if path.exists() and not force:
        raise ConfigError(
            "out", str(path), "the name of a new file; --force (force=True) replaces the one that is there"
        )
    return path
