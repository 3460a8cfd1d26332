"""Which part of a data set a record belongs to: training, testing, validation, or not used at all.

A record's part follows from its own content: a keyed hash of its features and its label is compared with a threshold. Removing
a record, or adding one, therefore moves no other record from one part to another, so that two files that differ by one record
give training parts that differ by at most one. That is what the ε of a run is about (add-or-remove-one). Equal records are always
in the same part. The key is a constant and public: the split hides nothing, it only has to be stable.

The sizes of the parts are not exact. Thresholds are public settings: a fixed share, or for `--records N` the number asked for
divided by the number of records there are, which is taken as public like the number of training records itself.

Earlier versions went by a record's position, where one record less moves all that follow it. Runs that were started so say nothing
of a split in their `run.json`; `SplitRule(by="position")` gives them the records that they had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.errors import ConfigError

Mask = npt.NDArray[np.bool_]

CONTENT, POSITION = "content", "position"
TEST_SHARE = 1 / 5
"""Of an own file without a test part."""
VALIDATION_SHARE = 1 / 10
"""Of the training records, where some are set aside to choose settings by."""

_KEY = b"assay: split by content, 1"
_UNIT_KEY = b"assay: a unit's id, 1"


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """How a run's records were told apart; it stands in `run.json`, and whoever reads the run uses it again.

    Args:
        by: `content`, or `position` for runs of earlier versions.
        share: The share of the training records that are used, None for all. Only for `content`.
    """

    by: str = CONTENT
    share: float | None = None

    def __post_init__(self) -> None:
        if self.by not in (CONTENT, POSITION):
            raise ConfigError("split", self.by, f"{CONTENT} or {POSITION}")
        if self.share is not None and not (self.by == CONTENT and 0 < self.share <= 1):
            raise ConfigError("split", self.share, "a share above 0 and at most 1, with a split by content")

    def to_json(self) -> dict[str, Any]:
        """As `run.json` and `record.json` hold it."""
        return {"by": self.by, "share": self.share}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> SplitRule:
        """The rule of a run; one that says nothing of it was started when records went by position."""
        return cls(by=POSITION) if data is None else cls(by=data["by"], share=data["share"])


BY_CONTENT = SplitRule()
"""All records, told apart by their content."""


def drawn(x: npt.NDArray[np.float32], y: npt.NDArray[Any], purpose: str, share: float) -> Mask:
    """Which records the hash draws for a purpose: about `share` of them.

    Whether a record is drawn depends on its content, the purpose and the share alone: not on its position, nor on other records.
    Draws for different purposes have nothing to do with each other; of two shares for one purpose the larger one holds the smaller.
    """
    person = hashlib.blake2b(purpose.encode(), digest_size=hashlib.blake2b.PERSON_SIZE).digest()
    places = np.empty(len(x), np.uint64)
    for i, (row, label) in enumerate(zip(x, y, strict=True)):
        content = hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8, key=_KEY, person=person)
        # a class as the eight bytes of its number, which older runs have; a number or a row of labels as its own bytes
        content.update(int(label).to_bytes(8, "little") if y.dtype.kind == "i" else label.tobytes())
        places[i] = int.from_bytes(content.digest(), "little") >> 11
    return places.astype(np.float64) * 2.0**-53 < share


def unit_keys(ids: Sequence[str]) -> npt.NDArray[np.int64]:
    """A stable key for each id of a unit (a patient, a client): a keyed hash of the id's text alone.

    Two ids with one key (less than one in 10^7 tables of a million persons) are treated as one person, which protects both.
    """
    digests = (hashlib.blake2b(one.encode(), digest_size=8, key=_UNIT_KEY).digest() for one in ids)
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def drawn_units(keys: npt.NDArray[np.int64], purpose: str, share: float) -> Mask:
    """Which units the hash draws for a purpose: about `share` of them; keys are those of `unit_keys`.

    Whether a unit is drawn depends on its id, the purpose and the share alone. So all of its rows are in one part, whatever
    they hold, and another person more or less moves nobody.
    """
    person = hashlib.blake2b(purpose.encode(), digest_size=hashlib.blake2b.PERSON_SIZE).digest()
    places = np.empty(len(keys), np.uint64)
    for i, key in enumerate(keys):
        digest = hashlib.blake2b(int(key).to_bytes(8, "little", signed=True), digest_size=8, key=_KEY, person=person)
        places[i] = int.from_bytes(digest.digest(), "little") >> 11
    return places.astype(np.float64) * 2.0**-53 < share


def one_of_five(count: int) -> Mask:
    """Which positions are for testing: of every five in a row, one that was drawn once and for all.

    For scikit-learn's digits, whose order is published and whose test part is this list, and for files in runs of earlier versions.
    """
    positions = np.arange(count)
    # RandomState is frozen by numpy's compatibility policy, so the split is the same with every version.
    testing: Mask = positions % 5 == np.random.RandomState(2).randint(5, size=count // 5 + 1)[positions // 5]
    return testing
