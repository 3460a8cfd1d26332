"""Your own data: an .npz file with arrays x and y, and x_test and y_test if there is a test split."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from assay.data.ids import fault, texts_of
from assay.errors import ConfigError, DataError

_SAVE = "Save it with numpy.savez(file, x=..., y=...); Python objects are refused: reading them runs code."
_KEYS = ("x", "y", "x_test", "y_test")
_HARMLESS = 16_000_000  # bytes; a smaller array cannot fill the memory
_MOST_RATIO = 200  # of inflated to packed bytes; images of digits have 10, a malicious archive 1000
_MOST_CLASSES = 100_000  # a model has an output for each; a larger label is an identifier, not a class


class Arrays(NamedTuple):
    """The checked arrays of a file.

    Attributes:
        x: the features of the training records.
        y: their labels.
        x_test: the features of the test records, if the file has any.
        y_test: their labels.
        units: whose each training record is, if that was asked for.
        units_test: whose each test record is.
        unused: the names of other arrays in the file.
    """

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    x_test: npt.NDArray[np.float32] | None
    y_test: npt.NDArray[np.int64] | None
    units: npt.NDArray[Any] | None = None
    units_test: npt.NDArray[Any] | None = None
    unused: tuple[str, ...] = ()


def read_npz(path: Path, unit: str | None = None) -> Arrays:
    """Read the arrays of `path` without unpickling anything.

    Guarantee: x is finite and has at least one feature per record, y has one integer label >= 0 per record, and test
    records, if there are any, have the same shape.

    Args:
        path: the file.
        unit: the array that says whose each record of x is, and `<unit>_test` for x_test; ids are whole numbers or
            texts.

    Raises:
        DataError: an array is something else; the error names file and array.
        ConfigError: there is no such file.
    """
    if not path.is_file():
        raise ConfigError("data", str(path), "the path of an existing .npz file")
    found, unused = _open(path, () if unit is None else (unit, f"{unit}_test"))
    if ("x_test" in found) != ("y_test" in found):
        raise DataError(f"{path} has only one of x_test and y_test; give both, or neither to have a part split off")
    x, y = _split(path, found, "x", "y")
    if "x_test" not in found:
        if len(x) < 5:
            raise DataError(f"{path}: x has {len(x)} records, at least 5 are needed to split a test part off")
        return Arrays(x, y, None, None, _units(path, found, unit, len(x)), None, unused)
    x_test, y_test = _split(path, found, "x_test", "y_test")
    if x_test.shape[1:] != x.shape[1:]:
        raise DataError(f"{path}: records of x_test have shape {x_test.shape[1:]}, those of x {x.shape[1:]}")
    named = None if unit is None else f"{unit}_test"
    whose = _units(path, found, unit, len(x)), _units(path, found, named, len(x_test))
    if whose[0] is not None and whose[1] is not None:
        _check_ids(path, f"{unit} and {named}", [*texts_of(whose[0]), *texts_of(whose[1])])
    return Arrays(x, y, x_test, y_test, *whose, unused)


def read_inputs(path: Path) -> npt.NDArray[np.float32]:
    """The array x of `path`, records to predict, without unpickling anything; other arrays are not looked at.

    Raises:
        DataError: x is missing or is something else than finite numbers; the error names file and array.
        ConfigError: there is no such file.
    """
    if not path.is_file():
        raise ConfigError("data", str(path), "the path of an existing .npz file")
    found, _ = _open(path, (), required=("x",))
    return _features(path, found["x"], "x")


def _units(
    path: Path, found: Mapping[str, npt.NDArray[Any]], name: str | None, records: int
) -> npt.NDArray[Any] | None:
    """Whose each record is, by the array `name`."""
    if name is None:
        return None
    if name not in found:
        raise DataError(f"{path} has no array {name}, which must say whose each record is")
    ids = found[name]
    if ids.dtype.kind not in "iuUS":
        raise DataError(f"{path}: {name} is of type {ids.dtype}; ids must be whole numbers or texts")
    if ids.shape != (records,):
        raise DataError(f"{path}: {name} has shape {ids.shape}, ({records},) is required: whose each record is")
    ids = np.char.decode(ids, "utf-8") if ids.dtype.kind == "S" else ids
    _check_ids(path, name, texts_of(ids))
    return ids


def _check_ids(path: Path, name: str, ids: list[str]) -> None:
    if (wrong := fault(ids)) is not None:
        raise DataError(f"{path}: {name} has {ids[wrong[0]]!r} in row {wrong[0]}, which is not accepted: {wrong[1]}")


def _open(
    path: Path, more: tuple[str, ...], *, required: tuple[str, ...] = ("x", "y")
) -> tuple[Mapping[str, npt.NDArray[Any]], tuple[str, ...]]:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            single = file.read(6) == np.lib.format.MAGIC_PREFIX
        what = "it holds a single array without a name" if single else "it is not an archive of arrays, or was cut off"
        raise DataError(f"{path} cannot be read: {what}. {_SAVE}")
    try:
        with zipfile.ZipFile(path) as archive:
            there = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            missing = [key for key in required if key not in there]
            if missing:
                names = ", ".join(sorted(there)) or "nothing"
                needed = " and ".join(required) + (" are" if len(required) > 1 else " is")
                raise DataError(f"{path} has no array {' or '.join(missing)}; it has {names}, and {needed} required")
            read = _KEYS if "y" in required else required
            wanted = [key for key in (*read, *more) if key in there]
            for key in wanted:
                _check_member(path, archive, there[key], key)
            return {key: _array(archive, there[key]) for key in wanted}, tuple(sorted(there.keys() - set(wanted)))
    except DataError:
        raise
    except Exception as error:  # damage raises almost anything: zip, zlib, header or memory errors
        raise DataError(f"{path} cannot be read as an .npz of plain arrays: {error}. {_SAVE}") from error


def _check_member(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, key: str) -> None:
    """Refuse an array of Python objects, or one whose header does not match the archive, by its first bytes."""
    if entry.file_size > _HARMLESS and entry.file_size > _MOST_RATIO * entry.compress_size:
        raise DataError(
            f"{path}: {key} takes {entry.compress_size:,} bytes and would be inflated to {entry.file_size:,}, more "
            f"than {_MOST_RATIO} times as much: no data are like that. Save it with numpy.savez if they are"
        )
    with archive.open(entry) as member:
        version = np.lib.format.read_magic(member)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(member)
    if dtype.hasobject:
        raise DataError(f"{path}: {key} holds Python objects. {_SAVE}")
    if math.prod(shape) * dtype.itemsize > entry.file_size:
        raise DataError(f"{path}: {key} is cut off: {entry.file_size:,} bytes are too few for its shape {shape}")


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(entry) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _split(
    path: Path, found: Mapping[str, npt.NDArray[Any]], x_name: str, y_name: str
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    x, y = found[x_name], found[y_name]
    features = _features(path, x, x_name)
    if y.dtype.kind not in "iu":
        raise DataError(f"{path}: {y_name} is of type {y.dtype}, integer labels >= 0 are required")
    if y.shape != x.shape[:1]:
        raise DataError(f"{path}: {y_name} has shape {y.shape}, ({len(x)},) is required: a label for each of {x_name}")
    if y.min() < 0:
        raise DataError(f"{path}: {y_name} has a label {y.min()}, integer labels >= 0 are required")
    if y.max() >= _MOST_CLASSES:
        raise DataError(
            f"{path}: {y_name} has a label {y.max()}, labels from 0 to {_MOST_CLASSES - 1} are required: number the "
            "classes from 0 on"
        )
    return features, y.astype(np.int64)


def _features(path: Path, x: npt.NDArray[Any], name: str) -> npt.NDArray[np.float32]:
    if x.dtype.kind not in "fiub":
        raise DataError(f"{path}: {name} is of type {x.dtype}, real numbers are required")
    if x.ndim < 2 or 0 in x.shape:
        raise DataError(f"{path}: {name} has shape {x.shape}, (records, features...) without a zero is required")
    with np.errstate(over="ignore"):  # infinite numbers are reported below
        features = x.astype(np.float32)
    finite = np.isfinite(features).reshape(len(x), -1).all(axis=1)
    if not finite.all():
        raise DataError(f"{path}: {name} is not finite in float32 in {int((~finite).sum())} of {len(x)} records")
    return features
