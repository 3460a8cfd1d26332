"""Features: what is computed from each record before training, from that record alone.

Guarantee: the features of a record are a function of that record and of constants (filters, public weights), never of
another record nor of a statistic of the data. Replacing the records by their features therefore maps neighbouring data sets
to neighbouring data sets, and training on features costs exactly what training on the records costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from assay._util import spec
from assay.data.bundle import DataBundle
from assay.features import cache
from assay.features.deskew import Deskew
from assay.features.efficientnet import EfficientNetLite0
from assay.features.mirror import Mirror
from assay.features.opponent import Opponent
from assay.features.progress import Tell, silent
from assay.features.scatter import Scatter


class Features(Protocol):
    """A map of records to features, each record by itself. A frozen dataclass whose fields are its settings."""

    @property
    def name(self) -> str:
        """What it is known by, without settings and preparations."""
        ...

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse records of a shape that it cannot take, and packages that are missing."""
        ...

    def made_with(self) -> str:
        """The packages and constants that decide the values, to the version: part of the cache's key."""
        ...

    def extract(self, x: Tensor) -> Tensor:
        """The features of records [B, *shape], float32, record by record."""
        ...

    def describe(self) -> str:
        """A phrase for the statement: what is computed, and with which public constants."""
        ...


class Preparation(Protocol):
    """What is done with each picture before features are computed. A frozen dataclass whose fields are its settings."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse records of a shape that it cannot take."""
        ...

    def around(self, extract: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """`extract` of the prepared records [B, *shape], record by record."""
        ...

    def describe(self) -> str:
        """A phrase for the statement."""
        ...


KINDS: dict[str, type[Scatter] | type[EfficientNetLite0]] = {
    "scatter": Scatter,
    "efficientnet-lite0": EfficientNetLite0,
}
PREPARATIONS: dict[str, type[Deskew] | type[Mirror] | type[Opponent]] = {
    "deskew": Deskew,
    "mirror": Mirror,
    "opponent": Opponent,
}


@dataclass(frozen=True)
class Prepared:
    """Features of pictures to which something is done first."""

    first: Preparation
    then: Features

    @property
    def name(self) -> str:
        return self.then.name

    def check(self, shape: tuple[int, ...]) -> None:
        self.first.check(shape)
        self.then.check(shape)

    def made_with(self) -> str:
        return self.then.made_with()

    def extract(self, x: Tensor) -> Tensor:
        return self.first.around(self.then.extract, x)

    def describe(self) -> str:
        return f"{self.first.describe()}; {self.then.describe()}"


def parse(text: str) -> Features:
    """`scatter`, `scatter:J=2,L=8,norm=group`, `efficientnet-lite0:size=128`; with preparations, `deskew+scatter`, `mirror+opponent+scatter`."""
    *before, last = text.split("+")
    found: Features = spec.parse("features", last, KINDS)
    for name in reversed(before):
        found = Prepared(spec.parse("features before +", name, PREPARATIONS), found)
    return found


def describe(features: Features) -> str:
    """The text that `parse` turns into these features."""
    if isinstance(features, Prepared):
        return f"{spec.describe(features.first, PREPARATIONS)}+{describe(features.then)}"
    return spec.describe(features, KINDS)


def of_bundle(features: Features, bundle: DataBundle, tell: Tell = silent) -> DataBundle:
    """The data set with features in place of its records; computed once and kept in the user's cache. `tell` is told how far a long
    computation is.
    """
    features.check(bundle.input_shape)
    known = describe(features)

    def of(x: Tensor, which: str) -> Tensor:
        what = f"features {known}, {which} records"
        return cache.computed(features.extract, x, known, features.made_with(), what=what, tell=tell)

    return replace(
        bundle,
        train_x=of(bundle.train_x, "training"),
        test_x=of(bundle.test_x, "test"),
        notes=f"{bundle.notes} Features: {features.describe()}. They cost no privacy: each record's features depend on that record "
        "and on public constants only.",
    )
