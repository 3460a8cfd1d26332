"""Data sets of Hugging Face's `datasets`, from a folder that `save_to_disk` wrote or by name: `hf:path-or-name`.

Tables are prepared by a schema, as files are; a column of pictures with a column of class labels is prepared as a
folder is. Names of classes are those that the data set declares (`ClassLabel`): they are a fact about the data set,
not about its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from assay._util import extras
from assay.data import folders, tables
from assay.data.apart import check_parts
from assay.data.bundle import DataBundle
from assay.data.split import TEST_SHARE, drawn_units, unit_keys
from assay.errors import ConfigError, DataError

PREFIX = "hf:"
_TESTS = ("test", "validation")


def from_hub(
    name: str,
    *,
    target: str | None = None,
    schema: tables.Schema | Mapping[str, Any] | Path | str | None = None,
    unit: str | None = None,
    size: int = 32,
    channels: int = 3,
) -> DataBundle:
    """A data set of `datasets` by name or from disk.

    Args:
        name: The path of a folder that `save_to_disk` wrote, or a name that `datasets.load_dataset` takes; after `@`
            the name of a configuration.
        target: The column to predict. None takes the only column of class labels.
        schema: What is publicly known of the columns of a table.
        unit: The column that says whose a row is; for tables.
        size: The side of a picture in pixels.
        channels: 1 for grey pictures, 3 for colour.

    Returns:
        The data set, with its own test split where it has one.

    Raises:
        ConfigError: `datasets` is not installed, the target cannot be found, or the test split holds training records.
        DataError: It cannot be loaded.
    """
    return of_dataset(_loaded(name), name=name, target=target, schema=schema, unit=unit, size=size, channels=channels)


def of_dataset(
    found: Any,
    *,
    name: str = "dataset",
    target: str | None = None,
    schema: tables.Schema | Mapping[str, Any] | Path | str | None = None,
    unit: str | None = None,
    size: int = 32,
    channels: int = 3,
) -> DataBundle:
    """A `datasets.Dataset`, or a `DatasetDict` with a training and perhaps a test split; see `from_hub`."""
    train, test = _splits(found, name)
    column = next((key for key, kind in train.features.items() if type(kind).__name__ == "Image"), None)
    if column is None:
        bundle = tables.table(train, target=target, schema=schema, unit=unit, test=test)
        return replace(bundle, name=name, source="Hugging Face datasets")
    for field, value in (("schema", schema), ("unit", unit)):
        if value is not None:
            raise ConfigError(field, value, "nothing with pictures: it is for tables")
    return _pictures(train, test, column, _labels(train, target), name, size, channels)


def _loaded(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise ConfigError("data", f"hf:{name}", f"the package datasets: {extras.command('datasets')}") from None
    try:
        if Path(name).expanduser().is_dir():
            return datasets.load_from_disk(str(Path(name).expanduser()))
        called, _, configuration = name.partition("@")
        return datasets.load_dataset(called, configuration or None)
    except Exception as error:  # the hub, the network and the files can fail in any way
        raise DataError(f"hf:{name} cannot be loaded: {type(error).__name__}: {error}") from error


def _splits(found: Any, name: str) -> tuple[Any, Any]:
    if hasattr(found, "features"):
        return found, None
    if "train" not in found:
        raise DataError(f"hf:{name} has no split train; it has {', '.join(found) or 'none'}")
    return found["train"], next((found[split] for split in _TESTS if split in found), None)


def _labels(train: Any, target: str | None) -> str:
    classes = [key for key, kind in train.features.items() if type(kind).__name__ == "ClassLabel"]
    if target is not None and target not in classes:
        raise ConfigError("target", target, f"a column of class labels: {', '.join(classes) or 'there is none'}")
    if target is None and len(classes) != 1:
        raise ConfigError(
            "target", target, f"one of the columns of class labels: {', '.join(classes) or 'there is none'}"
        )
    return target or classes[0]


def _pictures(train: Any, test: Any | None, column: str, label: str, name: str, size: int, channels: int) -> DataBundle:
    schema = folders.PictureSchema(classes=tuple(train.features[label].names), size=size, channels=channels)
    x, y = folders.as_array(train[column], schema), torch.tensor(train[label], dtype=torch.int64)
    if test is None:
        keys = unit_keys([row.tobytes().hex() for row in x])
        testing = torch.from_numpy(drawn_units(keys, "test", TEST_SHARE))
        first, second = (torch.from_numpy(x)[~testing], y[~testing]), (torch.from_numpy(x)[testing], y[testing])
    else:
        first = torch.from_numpy(x), y
        second = torch.from_numpy(folders.as_array(test[column], schema)), torch.tensor(test[label], dtype=torch.int64)
    for part, labels in (("train", first[1]), ("test", second[1])):
        if len(labels) == 0 or int(labels.min()) < 0:
            raise DataError(f"hf:{name}: column {label!r} of the {part} split has rows without a label, or no rows")
    bundle = DataBundle(
        name=name,
        train_x=first[0],
        train_y=first[1],
        test_x=second[0],
        test_y=second[1],
        classes=len(schema.classes),
        unit="one picture",
        notes="Pictures were prepared one by one; the names of the classes are those that the data set declares.",
        source="Hugging Face datasets",
        task=schema.task,
        schema=schema.to_json(),
    )
    return bundle if test is None else check_parts(bundle)
