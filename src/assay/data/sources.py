"""From a name or a file to a `DataBundle`.

Every transformation is fixed beforehand: it uses constants of the format or of the published schema, never a
mean, a spread or a list of values taken from the records. So the features of one record depend on that record
alone, and preprocessing costs no privacy.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from assay.data.bundle import DataBundle
from assay.data.catalog import Split, describe
from assay.data.formats.npz import read_npz
from assay.data.locate import require
from assay.data.split import CONTENT, POSITION, TEST_SHARE, SplitRule, drawn, one_of_five
from assay.errors import DataError

_NPZ_NOTES = (
    "Features are used as they are in the file (float32); whether they were made with statistics of the data "
    "is not known here. The number of classes, the largest label in the file plus one, is taken to be public."
)
_SPLIT_NOTES = {
    CONTENT: " The file has no test part: about one of every five records is set aside for testing, by a hash of its own content. "
    "One record more or less in the file moves no other record from one part to the other.",
    POSITION: " The file has no test part: one of every five positions is set aside for testing by a fixed draw, "
    "whatever the records are. One record less in the file moves those that follow it.",
}


def load(name_or_path: str | Path, data_dir: str | Path | None = None, *, split: str = CONTENT) -> DataBundle:
    """A data set by name (`available()`), or one's own from an .npz file with arrays x and y.

    Files are looked up in `data_dir`, `$ASSAY_DATA`, the user's cache and system folders, in this order, and
    verified against known SHA-256 sums. Nothing is fetched: what is not there is a `DataError` that says how
    to supply it.

    Args:
        name_or_path: A name of the catalogue, or the path of an .npz file.
        data_dir: Where to look first.
        split: How an .npz file without a test part is split (`assay.data.split`): by each record's `content`, or by
            its `position`, as earlier versions did.

    Returns:
        The data set; its parts do not change from one call to the next.

    Raises:
        DataError: Files are missing or damaged, or a file leaves one of its parts empty.
        ConfigError: There is no such data set, file or split.
    """
    rule = SplitRule(by=split)
    if Path(name_or_path).suffix == ".npz":
        return _own(Path(name_or_path).expanduser(), rule)
    info = describe(name_or_path)
    found = require(info, data_dir) if info.files else None
    train, test = info.read(info, iter(()) if found is None else found.contents())
    if test is None:
        testing = one_of_five(len(train[0]))
        (x, y) = train
        train, test = (x[~testing], y[~testing]), (x[testing], y[testing])
    source = (info.source or "own") if found is None else found.place.label
    return _bundle(train, test, name=info.name, classes=info.classes, unit=info.unit, notes=info.notes, source=source)


def _bundle(train: Split, test: Split, *, name: str, classes: int, unit: str, notes: str, source: str) -> DataBundle:
    return DataBundle(
        name=name,
        train_x=torch.from_numpy(train[0]),
        train_y=torch.from_numpy(train[1]),
        test_x=torch.from_numpy(test[0]),
        test_y=torch.from_numpy(test[1]),
        classes=classes,
        unit=unit,
        notes=notes,
        source=source,
    )


def _own(path: Path, rule: SplitRule) -> DataBundle:
    arrays = read_npz(path)
    train: Split = (arrays.x, arrays.y)
    unit, notes = "one record of the file", _NPZ_NOTES
    if arrays.x_test is None or arrays.y_test is None:
        train, test = _divided(path, arrays.x, arrays.y, rule)
        unit, notes = "one training record of the file", _NPZ_NOTES + _SPLIT_NOTES[rule.by]
    else:
        test = (arrays.x_test, arrays.y_test)
    classes = 1 + int(max(train[1].max(), test[1].max()))
    if classes < 2:
        raise DataError(f"{path}: every label is 0; labels of at least two classes are required")
    bundle = _bundle(train, test, name=path.name, classes=classes, unit=unit, notes=notes, source="own file")
    return replace(bundle, split=rule)


def _divided(path: Path, x: npt.NDArray[np.float32], y: npt.NDArray[np.int64], rule: SplitRule) -> tuple[Split, Split]:
    """Training and test part of a file that has no test part of its own."""
    testing = one_of_five(len(x)) if rule.by == POSITION else drawn(x, y, "test", TEST_SHARE)
    if testing.all() or not testing.any():
        raise DataError(
            f"{path} has no test part, and a fifth of its {len(x)} records, drawn by their content, leaves one part empty: "
            "put records for testing into arrays x_test and y_test"
        )
    return (x[~testing], y[~testing]), (x[testing], y[testing])
