"""One's own data: an .npz file with arrays x and y, and x_test and y_test if there is a test split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from assay.errors import ConfigError, DataError

_MOST_CLASSES = 100_000  # a model has an output for each; a label beyond is an identifier, not a class


class Arrays(NamedTuple):
    """The checked arrays of a file; the test split is None where the file has none."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    x_test: npt.NDArray[np.float32] | None
    y_test: npt.NDArray[np.int64] | None


def read_npz(path: Path) -> Arrays:
    """The arrays of `path`, never unpickling.

    Guaranteed: x is finite and has at least one feature a record, y has one integer label >= 0 a record, and
    the test split, if there is one, has records of the same shape. Anything else is a `DataError` that names
    file and array.
    """
    if not path.is_file():
        raise ConfigError("data", str(path), "the path of an existing .npz file")
    found = _open(path)
    missing = [key for key in ("x", "y") if key not in found]
    if missing:
        there = ", ".join(sorted(_names(path))) or "nothing"
        raise DataError(f"{path} has no array {' or '.join(missing)}; it has {there}, and x and y are required")
    if ("x_test" in found) != ("y_test" in found):
        raise DataError(f"{path} has only one of x_test and y_test; give both, or neither to have a part split off")
    x, y = _split(path, found, "x", "y")
    if "x_test" not in found:
        if len(x) < 5:
            raise DataError(f"{path}: x has {len(x)} records, at least 5 are needed to split a test part off")
        return Arrays(x, y, None, None)
    x_test, y_test = _split(path, found, "x_test", "y_test")
    if x_test.shape[1:] != x.shape[1:]:
        raise DataError(f"{path}: records of x_test have shape {x_test.shape[1:]}, those of x {x.shape[1:]}")
    return Arrays(x, y, x_test, y_test)


def _names(path: Path) -> list[str]:
    with np.load(path, allow_pickle=False) as opened:
        return list(opened.files)


def _open(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    try:
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise ValueError("it holds a single array without a name")
        with opened:
            return {key: opened[key] for key in ("x", "y", "x_test", "y_test") if key in opened.files}
    except Exception as error:  # damage shows as almost anything: zip, zlib, header or memory errors
        raise DataError(
            f"{path} cannot be read as an .npz of plain arrays: {error}. Save it with "
            "numpy.savez(file, x=..., y=...); arrays of Python objects are refused: reading them runs code."
        ) from error


def _split(
    path: Path, found: Mapping[str, npt.NDArray[Any]], x_name: str, y_name: str
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    x, y = found[x_name], found[y_name]
    if x.dtype.kind not in "fiub":
        raise DataError(f"{path}: {x_name} is of type {x.dtype}, real numbers are required")
    if x.ndim < 2 or 0 in x.shape:
        raise DataError(f"{path}: {x_name} has shape {x.shape}, (records, features...) without a zero is required")
    if y.dtype.kind not in "iu":
        raise DataError(f"{path}: {y_name} is of type {y.dtype}, integer labels >= 0 are required")
    if y.shape != x.shape[:1]:
        raise DataError(f"{path}: {y_name} has shape {y.shape}, ({len(x)},) is required: a label for each of {x_name}")
    with np.errstate(over="ignore"):  # what overflows becomes infinite and is reported below
        features = x.astype(np.float32)
    finite = np.isfinite(features).reshape(len(x), -1).all(axis=1)
    if not finite.all():
        raise DataError(f"{path}: {x_name} is not finite in float32 in {int((~finite).sum())} of {len(x)} records")
    labels = y.astype(np.int64)
    if labels.min() < 0:
        raise DataError(f"{path}: {y_name} has a label {labels.min()}, integer labels >= 0 are required")
    if labels.max() >= _MOST_CLASSES:
        raise DataError(
            f"{path}: {y_name} has a label {labels.max()}, labels from 0 to {_MOST_CLASSES - 1} are required: number the classes from 0 on"
        )
    return features, labels
