"""Which split of a data set a record belongs to: training, testing, validation, or none.

A record's split follows from its content: a keyed hash of its features and its label is compared with a threshold. So
removing or adding a record moves no other record, and two files that differ by one record give training splits that
differ by at most one. The ε of a run relies on that (add-or-remove-one). Equal records are always in the same split.
The key is public and constant: the split hides nothing, it only has to be stable.

The sizes of the splits are not exact. Thresholds are public settings: a fixed share, or for `--records N` the wanted
number divided by the number of records, which is taken as public like the number of training records itself.

Earlier versions went by a record's position, where one record less moves all that follow it. The `run.json` of such a
run has no split; `SplitRule(by="position")` gives it the records that it had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.errors import ConfigError

Mask = npt.NDArray[np.bool_]

CONTENT, POSITION = "content", "position"
TEST_SHARE = 1 / 5
"""The share of test records, for a file without any."""
VALIDATION_SHARE = 1 / 10
"""The share of the training records that are set aside, if settings are chosen by them."""

_KEY = b"assay: split by content, 1"
_UNIT_KEY = b"assay: a unit's id, 1"


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """How a run's records were chosen. `run.json` stores it, so that the same records can be chosen again.

    Attributes:
        by: "content", or "position" for runs of earlier versions.
        share: the share of the training records that are used; None for all. Only for "content".

    Raises:
        ConfigError: one of them is something else.
    """

    by: str = CONTENT
    share: float | None = None

    def __post_init__(self) -> None:
        if self.by not in (CONTENT, POSITION):
            raise ConfigError("split", self.by, f"{CONTENT} or {POSITION}")
        if self.share is not None and not (self.by == CONTENT and 0 < self.share <= 1):
            raise ConfigError("split", self.share, "a share above 0 and at most 1, with a split by content")

    def to_json(self) -> dict[str, Any]:
        """The rule as `run.json` and `record.json` store it."""
        return {"by": self.by, "share": self.share}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> SplitRule:
        """The rule of a run. Earlier versions stored none, and went by position."""
        return cls(by=POSITION) if data is None else cls(by=data["by"], share=data["share"])


BY_CONTENT = SplitRule()
"""All records, split by their content."""


def drawn(x: npt.NDArray[np.float32], y: npt.NDArray[Any], purpose: str, share: float) -> Mask:
    """Draw about `share` of the records by a hash, for a purpose.

    Whether a record is drawn depends on its content, the purpose and the share alone: not on its position or on other
    records. Draws for different purposes are unrelated. Of two shares for one purpose the larger one includes the
    smaller.
    """

    def content(row: npt.NDArray[np.float32], label: Any) -> bytes:
        # A class counts as the eight bytes of its number, as in older runs; a number or a row of labels as its bytes.
        return row.tobytes() + (int(label).to_bytes(8, "little") if y.dtype.kind == "i" else label.tobytes())

    return _drawn((content(row, label) for row, label in zip(x, y, strict=True)), len(x), purpose, share)


def unit_keys(ids: Sequence[str]) -> npt.NDArray[np.int64]:
    """A stable key for each id of a unit (a patient, a client): a keyed hash of the id's text alone.

    Two ids with the same key count as one person, which protects both. That happens in fewer than one of 10^7 tables of
    a million persons.
    """
    digests = (hashlib.blake2b(one.encode(), digest_size=8, key=_UNIT_KEY).digest() for one in ids)
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def drawn_units(keys: npt.NDArray[np.int64], purpose: str, share: float) -> Mask:
    """Draw about `share` of the units by a hash, for a purpose; `keys` are those of `unit_keys`.

    Whether a unit is drawn depends on its id, the purpose and the share alone. So all of its rows are in one split,
    whatever they hold, and one person more or less moves nobody.
    """
    return _drawn((int(key).to_bytes(8, "little", signed=True) for key in keys), len(keys), purpose, share)


def _drawn(contents: Iterable[bytes], count: int, purpose: str, share: float) -> Mask:
    person = hashlib.blake2b(purpose.encode(), digest_size=hashlib.blake2b.PERSON_SIZE).digest()
    places = np.empty(count, np.uint64)
    for i, content in enumerate(contents):
        digest = hashlib.blake2b(content, digest_size=8, key=_KEY, person=person).digest()
        places[i] = int.from_bytes(digest, "little") >> 11
    return places.astype(np.float64) * 2.0**-53 < share


def one_of_five(count: int) -> Mask:
    """Which positions are for testing: one of every five in a row, by a draw that never changes.

    This is for scikit-learn's digits, whose order is public, and for files in runs of earlier versions.
    """
    positions = np.arange(count)
    # RandomState is frozen by numpy's compatibility policy, so the split is the same with every version.
    testing: Mask = positions % 5 == np.random.RandomState(2).randint(5, size=count // 5 + 1)[positions // 5]
    return testing
