"""Features: computed from each record before training, from that record alone.

Guarantee: the features of a record are a function of that record and of constants (filters, public weights), never of
another record or of a statistic of the data. So replacing the records by their features maps neighbouring data sets to
neighbouring data sets, and training on features costs exactly what training on the records costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, runtime_checkable

from torch import Tensor

from assay._util import spec
from assay.data.bundle import DataBundle
from assay.errors import ConfigError
from assay.features import cache
from assay.features.deskew import Deskew
from assay.features.efficientnet import EfficientNetLite, EfficientNetLite0, EfficientNetLite1, EfficientNetLite2
from assay.features.length import Length
from assay.features.mirror import Mirror
from assay.features.opponent import Opponent
from assay.features.patches import Patches
from assay.features.precondition import Precondition
from assay.features.progress import Tell, silent
from assay.features.ramps import Ramps
from assay.features.scatter import Scatter
from assay.features.standardise import Standardise
from assay.features.words import Words


class Features(Protocol):
    """A map of records to features, each record by itself. A frozen dataclass whose fields are its settings."""

    @property
    def name(self) -> str:
        """Its name, without settings and preparations."""
        ...

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse records of an unsuitable shape, and missing packages.

        Raises:
            ConfigError: says what is needed.
        """
        ...

    def made_with(self) -> str:
        """The packages that decide the values, with their versions. The cache's key contains this text."""
        ...

    def extract(self, x: Tensor) -> Tensor:
        """The features of records [B, *shape] in float32, each record by itself."""
        ...

    def describe(self) -> str:
        """A phrase for the statement: what is computed, and with which public constants."""
        ...


@runtime_checkable
class OwnRecords(Protocol):
    """Features that do not take any numbers, such as those of texts."""

    def sample(self, drawn: Tensor) -> Tensor:
        """Records that these features take, made from numbers between -1 and 1."""
        ...


class Preparation(Protocol):
    """A change of each picture before its features are computed. A frozen dataclass whose fields are its settings."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse records of an unsuitable shape."""
        ...

    def around(self, extract: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """`extract` of the prepared records [B, *shape], each record by itself."""
        ...

    def describe(self) -> str:
        """A phrase for the statement."""
        ...


class Finish(Protocol):
    """A map of the features that follow, cheap enough to be computed each time. A frozen dataclass of its settings."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse records of an unsuitable shape."""
        ...

    def map_for(self, extract: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """The map of features [B, ...] to features, each record by itself.

        Args:
            extract: computes the features. It must be called on constants only, never on records.
            shape: the shape of one record.
        """
        ...

    def describe(self) -> str:
        """A phrase for the statement."""
        ...


Kind = type[Patches] | type[Ramps] | type[Scatter] | type[EfficientNetLite] | type[Standardise] | type[Words]
KINDS: dict[str, Kind] = {
    "scatter": Scatter,
    "efficientnet-lite0": EfficientNetLite0,
    "efficientnet-lite1": EfficientNetLite1,
    "efficientnet-lite2": EfficientNetLite2,
    "patches": Patches,
    "ramps": Ramps,
    "standardise": Standardise,
    "words": Words,
}
PREPARATIONS: dict[str, type[Deskew] | type[Mirror] | type[Opponent]] = {
    "deskew": Deskew,
    "mirror": Mirror,
    "opponent": Opponent,
}
BEFORE: dict[str, type[Deskew] | type[Mirror] | type[Opponent] | type[Length] | type[Precondition]] = {
    **PREPARATIONS,
    "length": Length,
    "precondition": Precondition,
}


@dataclass(frozen=True)
class Prepared:
    """Features of prepared pictures."""

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


@dataclass(frozen=True)
class Finished:
    """Features that are changed after they were computed. Those before the change are kept in the cache."""

    last: Finish
    then: Features

    @property
    def name(self) -> str:
        return self.then.name

    @property
    def signed_pixels(self) -> bool:
        return bool(getattr(self.then, "signed_pixels", False))

    def check(self, shape: tuple[int, ...]) -> None:
        self.last.check(shape)
        self.then.check(shape)

    def made_with(self) -> str:
        return self.then.made_with()

    def extract(self, x: Tensor) -> Tensor:
        return _map_of(self, tuple(x.shape[1:]))(self.then.extract(x))

    def kept(self, x: Tensor, what: str, tell: Tell) -> Tensor:
        """`extract(x)`, with the features before the change from the cache."""
        return cache.in_pieces(_map_of(self, tuple(x.shape[1:])), _kept(self.then, x, what, tell))

    def describe(self) -> str:
        return f"{self.then.describe()}; {self.last.describe()}"


@lru_cache(maxsize=4)
def _map_of(finished: Finished, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    def probed(x: Tensor) -> Tensor:
        return _kept(finished.then, x, "features of generated pictures", silent)

    return finished.last.map_for(probed, shape)


def _kept(features: Features, x: Tensor, what: str, tell: Tell) -> Tensor:
    """The features of records, from the cache if they are there."""
    if isinstance(features, Finished):
        return features.kept(x, what, tell)
    return cache.cached(features.extract, x, describe(features), features.made_with(), what=what, tell=tell)


def parse(text: str) -> Features:
    """The features that `text` names, after any number of preparations, and changed by what is named before those.

    Raises:
        ConfigError: there are no such features or preparations, or they do not take these settings.

    >>> parse("scatter:J=3")
    Scatter(J=3, L=8, norm='group')
    >>> parse("mirror+opponent+scatter").name
    'scatter'
    """
    *before, last = text.split("+")
    features: Features = spec.parse("features", last, KINDS)
    for name in reversed(before):
        part = spec.parse("features before +", name, BEFORE)
        if isinstance(part, Length | Precondition):
            features = Finished(part, features)
        elif isinstance(features, Finished):
            raise ConfigError("features", text, f"{name} right before what it prepares: {last} is computed last")
        else:
            features = Prepared(part, features)
    return features


def describe(features: Features) -> str:
    """The text that `parse` turns into these features.

    >>> describe(parse("deskew+scatter:J=2"))
    'deskew+scatter'
    """
    if isinstance(features, Finished):
        return f"{spec.describe(features.last, BEFORE)}+{describe(features.then)}"
    if isinstance(features, Prepared):
        return f"{spec.describe(features.first, PREPARATIONS)}+{describe(features.then)}"
    return spec.describe(features, KINDS)


def sample(features: Features | None, drawn: Tensor) -> Tensor:
    """Public records that the features take, for trying out a model: `drawn` itself where any numbers will do.

    Args:
        features: which features; None for a model on the records themselves.
        drawn: numbers between -1 and 1, in the shape of the records.
    """
    return features.sample(drawn) if isinstance(features, OwnRecords) else drawn


def of_bundle(features: Features, bundle: DataBundle, tell: Tell = silent) -> DataBundle:
    """The data set with features in place of its records. They are computed once and kept in the user's cache.

    Args:
        features: which features.
        bundle: the data set.
        tell: is called with lines about the progress of a long computation.

    Raises:
        ConfigError: these features cannot be computed for this data set.
        DataError: the cache cannot be written.
    """
    features.check(bundle.input_shape)
    settings = describe(features)
    if getattr(features, "signed_pixels", False) and (note := bundle.note_on_pixels(features.name)):
        tell(note)

    def of(x: Tensor, which: str) -> Tensor:
        return _kept(features, x, f"features {settings}, {which} records", tell)

    return replace(
        bundle,
        train_x=of(bundle.train_x, "training"),
        test_x=of(bundle.test_x, "test"),
        record_shape=bundle.input_shape,
        notes=f"{bundle.notes} Features: {features.describe()}. They cost no privacy: each record's features depend on "
        "that record and on public constants only.",
    )
