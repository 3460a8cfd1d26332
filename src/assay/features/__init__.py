"""Features: what is computed from each record before training, from that record alone.

Guarantee: the features of a record are a function of that record and of constants (filters, public weights), never of
another record nor of a statistic of the data. Replacing the records by their features therefore maps neighbouring data sets
to neighbouring data sets, and training on features costs exactly what training on the records costs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from torch import Tensor

from assay import spec
from assay.data.bundle import DataBundle
from assay.features import cache
from assay.features.efficientnet import EfficientNetLite0
from assay.features.scatter import Scatter


class Features(Protocol):
    """A map of records to features, each record by itself. A frozen dataclass whose fields are its settings."""

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


KINDS: dict[str, type[Scatter] | type[EfficientNetLite0]] = {
    "scatter": Scatter,
    "efficientnet-lite0": EfficientNetLite0,
}


def parse(text: str) -> Features:
    """`scatter`, `scatter:J=2,L=8,norm=group`, `efficientnet-lite0:size=128`."""
    found: Features = spec.parse("features", text, KINDS)
    return found


def describe(features: Features) -> str:
    """The text that `parse` turns into these features."""
    return spec.describe(features, KINDS)


def of_bundle(features: Features, bundle: DataBundle) -> DataBundle:
    """The data set with features in place of its records; computed once and kept in the user's cache."""
    features.check(bundle.input_shape)
    known = describe(features)
    return replace(
        bundle,
        train_x=cache.computed(features.extract, bundle.train_x, known, features.made_with()),
        test_x=cache.computed(features.extract, bundle.test_x, known, features.made_with()),
        notes=f"{bundle.notes} Features: {features.describe()}. They cost no privacy: each record's features depend on that record "
        "and on public constants only.",
    )
