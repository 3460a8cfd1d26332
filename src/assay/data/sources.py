"""Load a data set, by name or from a file, as a `DataBundle`.

Every transformation is fixed beforehand. It uses constants of the format or the published schema, never a mean, a
spread or a list of values from the records. So the features of a record depend on that record alone, and preprocessing
costs no privacy.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from assay.data import folders, hub, tables
from assay.data.apart import check_parts
from assay.data.bundle import DataBundle
from assay.data.catalog import DATASETS, DatasetInfo, Split, describe
from assay.data.factories import from_factory, is_factory
from assay.data.formats.npz import Arrays, read_npz
from assay.data.locate import require
from assay.data.split import CONTENT, POSITION, TEST_SHARE, SplitRule, drawn, drawn_units, one_of_five, unit_keys
from assay.data.tables.loading import Numbered, numbered
from assay.data.tables.names import is_table
from assay.errors import ConfigError, DataError

_LOG = logging.getLogger("assay")

_NPZ_NOTES = (
    "Features are used as they are in the file (float32); whether they were made with statistics of the data "
    "is not known here. The number of classes, the largest label in the file plus one, is taken to be public."
)
_SPLIT_NOTES = {
    CONTENT: " The file has no test part: about one of every five records is set aside for testing, by a hash of its "
    "own content. One record more or less in the file moves no other record from one part to the other.",
    POSITION: " The file has no test part: one of every five positions is set aside for testing by a fixed draw, "
    "whatever the records are. One record less in the file moves those that follow it.",
}
_UNIT_NOTES = (
    " The file has no test part: about one of every five persons ({}) is set aside for testing with all of their "
    "records, by a hash of the id. One person more or less in the file moves nobody else from one part to the other."
)


def load(
    name_or_path: str | Path,
    data_dir: str | Path | None = None,
    *,
    split: str = CONTENT,
    target: str | None = None,
    schema: tables.Schema | Mapping[str, Any] | Path | str | None = None,
    unit: str | None = None,
) -> DataBundle:
    """Load a data set by name (`available()`), or your own: a table, a folder of pictures, or an .npz file.

    Files of a named data set are looked up in `data_dir`, `$ASSAY_DATA`, the user's cache and system folders, in this
    order, and verified against known SHA-256 sums. Nothing is fetched.

    Args:
        name_or_path: a name of the catalogue; the path of a .csv, .tsv, .parquet or .npz file (with arrays x and y),
            or of a folder of pictures with a folder for each class; `hf:` and the name of a data set of Hugging Face;
            or `package.module:factory`.
        data_dir: where to look first.
        split: how an .npz file without test records is split (`assay.data.split`): by each record's `content`, or by
            its `position`, as in earlier versions.
        target: the column of a table to predict; several with commas between them.
        schema: what is publicly known about a table's columns (`assay.data.table`).
        unit: the column of a table, or the array of an .npz file, that says whose each record is. Records are then
            split by a keyed hash of the id: nobody has records in two splits.

    Returns:
        The data set. It is split in the same way each time.

    Raises:
        DataError: files are missing or damaged, or a split of a file is empty; the error says what to do.
        ConfigError: there is no such data set, file or split, or the test part of a file holds training records.

    >>> load("digits").train_x.shape
    torch.Size([1437, 1, 8, 8])
    """
    rule = SplitRule(by=split)
    if not isinstance(name_or_path, str | Path):
        accepted = "a name or a path; rows in memory go through assay.data.table and assay.fit"
        raise ConfigError("data", type(name_or_path).__name__, accepted)
    if name_or_path in DATASETS:
        for field, value in (("target", target), ("schema", schema), ("unit", unit)):
            if value is not None:
                raise ConfigError(field, value, f"nothing beside {name_or_path}, which has no columns")
        return _named(DATASETS[str(name_or_path)], data_dir)
    asked: dict[str, Any] = {"target": target, "schema": schema, "unit": unit}
    if is_table(name_or_path):
        return tables.table(name_or_path, target=target, schema=schema, unit=unit)
    if str(name_or_path).startswith(hub.PREFIX):
        how = folders.how_prepared(schema)
        asked = asked if how is None else {**how, "target": target, "unit": unit}
        return hub.from_hub(str(name_or_path).removeprefix(hub.PREFIX), **asked)
    if Path(name_or_path).expanduser().is_dir():
        return _folder(Path(name_or_path), **asked)
    if Path(name_or_path).suffix != ".npz" and not is_factory(str(name_or_path)):
        describe(name_or_path)  # refuses what is nothing, and says what is accepted
    for field, value in (("target", target), ("schema", schema)):
        if value is not None:
            raise ConfigError(field, value, f"nothing beside {name_or_path}: it is for tables and pictures")
    if Path(name_or_path).suffix == ".npz":
        return _own(Path(name_or_path).expanduser(), rule, unit)
    return check_parts(from_factory(str(name_or_path)))


def _named(info: DatasetInfo, data_dir: str | Path | None) -> DataBundle:
    """A data set of the catalogue."""
    found = require(info, data_dir) if info.files else None
    train, test = info.read(info, iter(()) if found is None else found.contents())
    if test is None:
        testing = one_of_five(len(train[0]))
        (x, y) = train
        train, test = (x[~testing], y[~testing]), (x[testing], y[testing])
    source = (info.source or "own") if found is None else found.place.label
    return _bundle(train, test, name=info.name, classes=info.classes, unit=info.unit, notes=info.notes, source=source)


def _folder(
    path: Path, target: str | None, schema: tables.Schema | Mapping[str, Any] | Path | str | None, unit: str | None
) -> DataBundle:
    for field, value in (("target", target), ("unit", unit)):
        if value is not None:
            raise ConfigError(field, value, "nothing beside a folder of pictures, whose folders are the classes")
    how = {} if schema is None else folders.how_prepared(schema)
    if how is None:
        raise ConfigError("schema", str(schema), "for a folder of pictures a section [pictures] with size and channels")
    return folders.folder(path, **how)


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


def _own(path: Path, rule: SplitRule, unit: str | None) -> DataBundle:
    arrays = read_npz(path, unit)
    train: Split = (arrays.x, arrays.y)
    what, notes = "one record of the file", _NPZ_NOTES + _unused_words(path, arrays)
    keys, test_keys = _keys(arrays.units), _keys(arrays.units_test)
    if arrays.x_test is None or arrays.y_test is None:
        testing = _testing(path, arrays, rule, keys)
        train, test = (arrays.x[~testing], arrays.y[~testing]), (arrays.x[testing], arrays.y[testing])
        if keys is not None:
            keys, test_keys = keys[~testing], keys[testing]
        what = "one training record of the file"
        notes += _SPLIT_NOTES[rule.by] if unit is None else _UNIT_NOTES.format(unit)
    else:
        test = (arrays.x_test, arrays.y_test)
        if keys is not None and test_keys is not None and (common := len(np.intersect1d(keys, test_keys))):
            raise DataError(f"{path}: {common} persons are in both {unit} and {unit}_test; nobody may be in both parts")
    classes = 1 + int(max(train[1].max(), test[1].max()))
    if classes < 2:
        raise DataError(f"{path}: every label is 0; labels of at least two classes are required")
    bundle = _bundle(train, test, name=path.name, classes=classes, unit=what, notes=notes, source="own file")
    if arrays.x_test is not None:
        check_parts(bundle)
    if keys is None or test_keys is None:
        return replace(bundle, split=rule)
    whose, test_whose = numbered(keys), numbered(test_keys)
    return replace(
        bundle, split=rule, unit=f"one {unit} with all of their records", unit_column=unit, **_fields(whose, test_whose)
    )


def _fields(whose: Numbered, test_whose: Numbered) -> dict[str, Any]:
    return {
        "train_units": torch.from_numpy(whose.numbers),
        "test_units": torch.from_numpy(test_whose.numbers),
        "train_keys": torch.from_numpy(whose.keys),
    }


def _keys(ids: npt.NDArray[Any] | None) -> npt.NDArray[np.int64] | None:
    return None if ids is None else unit_keys([str(one) for one in ids.tolist()])


def _unused_words(path: Path, arrays: Arrays) -> str:
    """A note, and a warning, about arrays that nobody asked for: one of them may say whose each record is."""
    if not arrays.unused:
        return ""
    names = ", ".join(arrays.unused)
    _LOG.warning(
        "%s: not used: %s. If one of them says whose each record is, name it as the unit (--unit)", path.name, names
    )
    return f" The file also has {names}, which is not used."


def _testing(path: Path, arrays: Arrays, rule: SplitRule, keys: npt.NDArray[np.int64] | None) -> npt.NDArray[np.bool_]:
    """Which records of a file without test records are for testing."""
    x, y = arrays.x, arrays.y
    if keys is not None:
        testing = drawn_units(keys, "test", TEST_SHARE)
    else:
        testing = one_of_five(len(x)) if rule.by == POSITION else drawn(x, y, "test", TEST_SHARE)
    if testing.all() or not testing.any():
        by = "their content" if keys is None else "whose they are"
        raise DataError(
            f"{path} has no test part, and a fifth of its {len(x)} records, drawn by {by}, leaves one part empty: "
            "put records for testing into arrays x_test and y_test"
        )
    return testing
