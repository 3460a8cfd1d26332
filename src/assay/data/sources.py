"""From a name or a file to a `DataBundle`.

Every transformation is fixed beforehand: it uses constants of the format or of the published schema, never a
mean, a spread or a list of values taken from the records. So the features of one record depend on that record
alone, and preprocessing costs no privacy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from assay.data.bundle import DataBundle
from assay.data.catalog import Split, describe
from assay.data.formats.npz import read_npz
from assay.data.locate import require

_NPZ_NOTES = (
    "Features are used as they are in the file (float32); whether they were made with statistics of the data "
    "is not known here. The number of classes, the largest label in the file plus one, is taken to be public."
)
_SPLIT_NOTES = (
    " The file has no test part: one of every five positions is set aside for testing by a fixed draw, "
    "whatever the records are."
)


def load(name_or_path: str | Path, data_dir: str | Path | None = None) -> DataBundle:
    """A data set by name (`available()`), or one's own from an .npz file with arrays x and y.

    Files are looked up in `data_dir`, `$ASSAY_DATA`, the user's cache and system folders, in this order, and
    verified against known SHA-256 sums. Nothing is fetched: what is not there is a `DataError` that says how
    to supply it.
    """
    if Path(name_or_path).suffix == ".npz":
        return _own(Path(name_or_path).expanduser())
    info = describe(name_or_path)
    found = require(info, data_dir) if info.files else None
    train, test = info.read(info, iter(()) if found is None else found.contents())
    if test is None:
        train, test = _fixed_split(*train)
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


def _own(path: Path) -> DataBundle:
    arrays = read_npz(path)
    train: Split = (arrays.x, arrays.y)
    if arrays.x_test is None or arrays.y_test is None:
        train, test = _fixed_split(arrays.x, arrays.y)
        notes = _NPZ_NOTES + _SPLIT_NOTES
    else:
        test, notes = (arrays.x_test, arrays.y_test), _NPZ_NOTES
    classes = 1 + int(max(train[1].max(), test[1].max()))
    unit = "one record of the file"
    return _bundle(train, test, name=path.name, classes=classes, unit=unit, notes=notes, source="own file")


def _fixed_split(x: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> tuple[Split, Split]:
    """Training and test part: of every five positions in a row, one drawn once and for all is for testing.

    A record's part follows from its position alone, not from the records nor from how many there are:
    replacing a record, or one more at the end, leaves the part of every other record as it was. A permutation
    of all the positions would not.
    """
    positions = np.arange(len(x))
    # RandomState is frozen by numpy's compatibility policy, so the split is the same with every version.
    drawn = np.random.RandomState(2).randint(5, size=len(x) // 5 + 1)
    testing = positions % 5 == drawn[positions // 5]
    return (x[~testing], y[~testing]), (x[testing], y[testing])
