"""Data of the user's own from Python, named on the command line as package.module:factory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from assay._util.imports import current_directory_importable, import_module
from assay.data.bundle import DataBundle
from assay.data.persons import row_hash
from assay.data.records import Records, seeded
from assay.data.split import TEST_SHARE, drawn
from assay.data.task import REGRESSION, Task
from assay.errors import ConfigError, DataError

FORM = (
    "package.module:factory, where factory() returns an assay.data.DataBundle, a map-style Dataset of (input, "
    "target), or two "
    "of them, for training and testing"
)
_LOOKED_AT = 8  # records that are fetched again, to tell whether they change
_NOTES = (
    "Records are those that {name} made; whether statistics of the data were used for it is not known here. The "
    "number of classes, the "
    "largest label plus one, is taken to be public."
)


def is_factory(name: str) -> bool:
    """Whether it has the form of a factory."""
    module, _, attribute = name.partition(":")
    return bool(module and attribute) and all(one.isidentifier() for one in (*module.split("."), attribute))


def from_factory(name: str) -> DataBundle:
    """Import and call `package.module:factory`; the current directory is importable meanwhile.

    Args:
        name: The factory.

    Returns:
        Its data set; a Dataset is read as a whole into memory.

    Raises:
        ConfigError: There is no such factory, or it returns something else.
        DataError: Its records cannot be used.
    """
    module_name, _, attribute = name.partition(":")
    with current_directory_importable():
        factory = getattr(import_module("data", name, module_name, FORM), attribute, None)
        if factory is None:
            raise ConfigError("data", name, f"{FORM}; {module_name!r} has no {attribute!r}")
        made = factory()
    if isinstance(made, DataBundle):
        return made
    return of_datasets(*made, name=name) if isinstance(made, tuple) and len(made) == 2 else of_datasets(made, name=name)


def of_datasets(train: Any, test: Any | None = None, *, name: str = "dataset", task: Task | None = None) -> DataBundle:
    """Map-style Datasets of (input, target) as a data set in memory.

    Args:
        train: The training records.
        test: The test records; without any, about a fifth is set aside by a hash of each record's content.
        name: What to call it.
        task: What is predicted; None takes classes for granted.

    Returns:
        The data set.

    Raises:
        ConfigError: A part is not a map-style Dataset of pairs, or its records change at every look.
        DataError: Records are not tensors of one shape, or a part is empty.
    """
    x, y = _stacked(train, "train", name, task)
    if test is None:
        aside = torch.from_numpy(drawn(x.numpy(), y.numpy(), "test", TEST_SHARE))
        if not 0 < int(aside.sum()) < len(aside):
            raise DataError(f"{name} has {len(x)} records: too few to set a fifth aside for testing")
        (x, y), (test_x, test_y) = (x[~aside], y[~aside]), (x[aside], y[aside])
    else:
        test_x, test_y = _stacked(test, "test", name, task)
    classes = 1 + int(max(y.max(), test_y.max())) if task is None else task.outputs
    bundle = DataBundle(
        name=name,
        train_x=x,
        train_y=y,
        test_x=test_x,
        test_y=test_y,
        classes=classes,
        unit="one record of the data set",
        notes=_NOTES.format(name=name),
        source="own code",
    )
    return bundle if task is None else replace(bundle, task=task)


def _look(part: Any, i: int, seed: int) -> int:
    with seeded(seed):
        return row_hash(part[i])


def _stacked(part: Any, field: str, name: str, task: Task | None) -> tuple[Tensor, Tensor]:
    records = Records(part)
    records.check_pairs(field)
    if len(records) == 0:
        raise DataError(f"{name}: the {field} part has no records")
    try:
        x, y = records.all()
    except Exception as error:  # the user's own data set may fail in any way
        raise DataError(
            f"{name}: the {field} records cannot be put together: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise DataError(f"{name}: the {field} records are not tensors; train on them from Python, with assay.fit")
    if records.draws and any(_look(part, i, 0) != _look(part, i, 1) for i in range(min(len(records), _LOOKED_AT))):
        raise ConfigError(
            field,
            f"{name}, whose records change at every look",
            "records that stay what they are: they are read once, and one record less would change what all others "
            "draw. Random views of records: --augment, or assay.fit from Python",
        )
    regression = task is not None and task.kind == REGRESSION
    return x.float(), y.float() if y.is_floating_point() or regression else y.long()
