"""What is predicted: one of two classes, one of several, any of several labels, or a number between declared bounds.

The number of classes, their names and the bounds of a number are public: they are declared, never read off the records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from assay.errors import ConfigError, check_fields, one_of

BINARY, MULTICLASS, MULTILABEL, REGRESSION = "binary", "multiclass", "multilabel", "regression"
KINDS = (BINARY, MULTICLASS, MULTILABEL, REGRESSION)
LOSSES = ("squared", "huber")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a model of these records predicts.

        Task(kind="regression", low=0, high=120)
        Task(kind="binary", names=("<=50K", ">50K"))

    Targets are int64 class numbers for `binary` and `multiclass`, float32 rows of 0 and 1 for `multilabel`, and for
    `regression` float32 numbers in [-1, 1]: the declared range, moved and scaled. `scaled` and `unscaled` convert.

    Args:
        kind: One of `KINDS`.
        names: The classes or labels, in the order of the model's outputs.
        low: The smallest target of a regression; smaller ones are raised to it.
        high: The largest target of a regression; larger ones are lowered to it.
        loss: For a regression `squared`, or `huber`, which grows only linearly far from the target.

    Raises:
        ConfigError: The parts do not fit together.
    """

    kind: str
    names: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    loss: str = "squared"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError("task", self.kind, one_of(self.kind, KINDS))
        if self.loss not in LOSSES:
            raise ConfigError("loss", self.loss, one_of(self.loss, LOSSES))
        if self.kind == REGRESSION:
            low, high = self.low, self.high
            if low is None or high is None or not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ConfigError("bounds", [low, high], "two finite numbers, the smaller one first")
            if self.names:
                raise ConfigError("names", list(self.names), "no names: a regression has no classes")
            return
        if self.low is not None or self.high is not None:
            raise ConfigError("bounds", [self.low, self.high], f"no bounds with task {self.kind}")
        if self.loss != "squared":
            raise ConfigError("loss", self.loss, f"no loss with task {self.kind}; it is for a regression")
        if len(set(self.names)) != len(self.names):
            raise ConfigError("names", list(self.names), "names that differ from each other")
        least, most = {BINARY: (2, 2), MULTICLASS: (2, math.inf)}.get(self.kind, (1, math.inf))
        if not least <= len(self.names) <= most:
            wanted = "two classes" if self.kind == BINARY else f"at least {least}"
            raise ConfigError("names", list(self.names), f"{wanted} with task {self.kind}")

    @classmethod
    def of_classes(cls, count: int) -> Task:
        """The classification into classes that have no names but their numbers."""
        kind = BINARY if count == 2 else MULTICLASS
        return cls(kind=kind, names=tuple(str(i) for i in range(count)))

    @property
    def outputs(self) -> int:
        """How many outputs a model of this task has."""
        return 1 if self.kind == REGRESSION else len(self.names)

    @property
    def is_classification(self) -> bool:
        """Whether a record has exactly one class."""
        return self.kind in (BINARY, MULTICLASS)

    def scaled(self, target: Tensor) -> Tensor:
        """Targets of a regression as training sees them: moved into [-1, 1], and clamped to it."""
        low, high = self._bounds()
        return (2 * (target - low) / (high - low) - 1).clamp(-1, 1)

    def unscaled(self, output: Tensor) -> Tensor:
        """What a model of a regression says, in the units of the target."""
        low, high = self._bounds()
        return low + (output + 1) * (high - low) / 2

    def _bounds(self) -> tuple[float, float]:
        if self.low is None or self.high is None:
            raise ConfigError("task", self.kind, "regression: other tasks have no range")
        return self.low, self.high

    def to_json(self) -> dict[str, Any]:
        """As `run.json` and `record.json` hold it."""
        if self.kind == REGRESSION:
            return {"kind": self.kind, "low": self.low, "high": self.high, "loss": self.loss}
        return {"kind": self.kind, "names": list(self.names)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """A task from what `to_json` wrote."""
        check_fields("task", data, ("kind", "names", "low", "high", "loss"))
        return cls(**{**data, "names": tuple(data.get("names", ()))})
