"""From a name or a file to a `DataBundle`.

Every transformation is fixed beforehand: it uses constants of the format or of the published schema, never a
mean, a spread or a list of values taken from the records. So the features of one record depend on that record
alone, and preprocessing costs no privacy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from assay.data.bundle import DataBundle
from assay.data.catalog import DatasetInfo, describe
from assay.data.formats.adult import parse_adult
from assay.data.formats.cifar import parse_cifar
from assay.data.formats.idx import parse_idx
from assay.data.formats.npz import read_npz
from assay.data.locate import require
from assay.errors import DataError

_Split = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

_PHOTO_NOTES = (
    "Pixels are divided by 255 and mapped to [-1, 1] as (x - 0.5) / 0.5. These are constants: no statistic "
    "of the data is used."
)
# An empty background stays zero: at -1 it would take up most of a record's clipped gradient.
_INK_NOTES = "Pixels are divided by 255, a constant: no statistic of the data is used."
_DIGITS_NOTES = (
    "Pixels are divided by 16, a constant: no statistic of the data is used. One of every five positions is set "
    "aside for testing by a fixed draw, whatever the records are."
)
_ADULT_NOTES = (
    "Categories are one-hot by the lists of the published schema (a missing value is all zeros); numbers are "
    "scaled to [0, 1] by fixed ranges and clamped. No statistic of the data is used."
)
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
    if not info.files:
        return _digits(info)
    found = require(info, data_dir)
    contents = found.contents()
    if info.name in ("mnist", "fashion-mnist"):
        train, test, notes = _idx_split(contents), _idx_split(contents), _INK_NOTES
    elif info.name in ("cifar10", "cifar100"):
        label_bytes = 1 if info.name == "cifar10" else 2
        train = _cifar_split(contents, info.train_records, label_bytes)
        test, notes = _cifar_split(contents, info.test_records, label_bytes), _PHOTO_NOTES
    else:
        train, test, notes = parse_adult(next(contents)), parse_adult(next(contents)), _ADULT_NOTES
    return _known(info, train, test, notes, source=found.place.label)


def _known(info: DatasetInfo, train: _Split, test: _Split, notes: str, *, source: str) -> DataBundle:
    return _bundle(train, test, name=info.name, classes=info.classes, unit=info.unit, notes=notes, source=source)


def _bundle(train: _Split, test: _Split, *, name: str, classes: int, unit: str, notes: str, source: str) -> DataBundle:
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


def _centred(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """[0, 255] to [-1, 1], in place: the images of CIFAR fill 600 MB as it is."""
    pixels /= 255
    pixels -= 0.5
    pixels /= 0.5
    return pixels


def _idx_split(contents: Iterator[bytes]) -> _Split:
    images = parse_idx(next(contents))[:, None].astype(np.float32)
    images /= 255
    return images, parse_idx(next(contents)).astype(np.int64)


def _cifar_split(contents: Iterator[bytes], records: int, label_bytes: int) -> _Split:
    """As many files as it takes to have `records` of them."""
    x, y = np.empty((records, 3, 32, 32), np.float32), np.empty(records, np.int64)
    filled = 0
    while filled < records:
        images, labels = parse_cifar(next(contents), label_bytes=label_bytes)
        part = slice(filled, filled + len(images))
        x[part], y[part] = images, labels
        filled = part.stop
    return _centred(x), y


def _digits(info: DatasetInfo) -> DataBundle:
    from sklearn.datasets import load_digits  # a slow import that only this data set needs

    digits = load_digits()
    x = digits.images[:, None].astype(np.float32) / 16
    train, test = _fixed_split(x, digits.target.astype(np.int64))
    return _known(info, train, test, _DIGITS_NOTES, source="scikit-learn")


def _own(path: Path) -> DataBundle:
    arrays = read_npz(path)
    train: _Split = (arrays.x, arrays.y)
    if arrays.x_test is None or arrays.y_test is None:
        train, test = _fixed_split(arrays.x, arrays.y)
        notes = _NPZ_NOTES + _SPLIT_NOTES
    else:
        test, notes = (arrays.x_test, arrays.y_test), _NPZ_NOTES
    classes = 1 + int(max(train[1].max(), test[1].max()))
    if classes < 2:
        raise DataError(f"{path}: every label is 0; labels of at least two classes are required")
    unit = "one record of the file"
    return _bundle(train, test, name=path.name, classes=classes, unit=unit, notes=notes, source="own file")


def _fixed_split(x: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> tuple[_Split, _Split]:
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
