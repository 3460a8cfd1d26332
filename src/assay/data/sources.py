"""From a name or a file to a `DataBundle`.

Every transformation is fixed beforehand: it uses constants of the format or of the published schema, never a
mean, a spread or a list of values taken from the records. So the features of one record depend on that record
alone, and preprocessing costs no privacy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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
from assay.data.split import CONTENT, POSITION, TEST_SHARE, SplitRule, drawn, one_of_five
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
    y, testing = digits.target.astype(np.int64), one_of_five(len(x))
    train, test = (x[~testing], y[~testing]), (x[testing], y[testing])
    return _known(info, train, test, _DIGITS_NOTES, source="scikit-learn")


def _own(path: Path, rule: SplitRule) -> DataBundle:
    arrays = read_npz(path)
    train: _Split = (arrays.x, arrays.y)
    unit, notes = "one record of the file", _NPZ_NOTES
    if arrays.x_test is None or arrays.y_test is None:
        train, test = _divided(path, arrays.x, arrays.y, rule)
        unit, notes = "one training record of the file", _NPZ_NOTES + _SPLIT_NOTES[rule.by]
    else:
        test = (arrays.x_test, arrays.y_test)
    classes = 1 + int(max(train[1].max(), test[1].max()))
    bundle = _bundle(train, test, name=path.name, classes=classes, unit=unit, notes=notes, source="own file")
    return replace(bundle, split=rule)


def _divided(
    path: Path, x: npt.NDArray[np.float32], y: npt.NDArray[np.int64], rule: SplitRule
) -> tuple[_Split, _Split]:
    """Training and test part of a file that has no test part of its own."""
    testing = one_of_five(len(x)) if rule.by == POSITION else drawn(x, y, "test", TEST_SHARE)
    if testing.all() or not testing.any():
        raise DataError(
            f"{path} has no test part, and a fifth of its {len(x)} records, drawn by their content, leaves one part empty: "
            "put records for testing into arrays x_test and y_test"
        )
    return (x[~testing], y[~testing]), (x[testing], y[testing])
