"""New records as the model of a run takes them: rows by the run's schema, pictures by its size, arrays as they are.

Every record is prepared by itself, by what the run declared. Nothing is learned from the new records.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.data import folders
from assay.data.formats.npz import read_inputs
from assay.data.tables.names import SUFFIXES as TABLES
from assay.data.tables.names import is_table
from assay.data.tables.preparing import features
from assay.data.tables.reading import Table, in_memory, read_table
from assay.data.tables.schema import Schema
from assay.errors import ConfigError, DataError

_LOG = logging.getLogger("assay")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Records that are ready for the model, and what people know each of them by: a row's number, a file's name."""

    x: Tensor
    labels: tuple[str, ...]
    called: str = "row"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How a run prepared its records.

    Args:
        shape: The shape of one prepared record; None where the run did not note it.
        table: How rows of a table become features, if the run was trained on a table.
        pictures: How picture files become tensors, if it was trained on a folder of pictures.
        unit: The column of the table that says whose a row is; it is not a feature.
    """

    shape: tuple[int, ...] | None
    table: Schema | None = None
    pictures: folders.PictureSchema | None = None
    unit: str | None = None

    def prepare(self, records: object) -> Prepared:
        """New records as one float32 tensor.

        Args:
            records: For a run on a table: the path of a .csv, .tsv or .parquet file, a DataFrame, a pyarrow table, a
                list of dicts or a dict of columns. For a run on pictures: the path of a picture or of a folder, or a
                list of paths or of `PIL.Image`. For every run: the path of an .npz file with an array `x`, an array or
                a tensor of records that are already prepared.

        Returns:
            The records, with what people know them by.

        Raises:
            DataError: They cannot be read, a column is missing, or a value is not what the schema declares.
            ConfigError: They are of a kind, or have a shape, that this run cannot take.
        """
        if isinstance(records, str | Path):
            return self._of_path(Path(records).expanduser())
        if isinstance(records, Tensor | np.ndarray):
            return self._of_array(records, "the array")
        if self.table is not None:
            return self._of_table(in_memory(records, "records"))
        if self.pictures is not None and isinstance(records, Sequence) and records:
            return self._of_pictures(records)
        try:
            return self._of_array(np.asarray(records, dtype=np.float32), "the records")
        except (TypeError, ValueError):
            raise ConfigError("records", type(records).__name__, self.accepted) from None

    @property
    def accepted(self) -> str:
        """What `prepare` takes, in words."""
        arrays = f"an .npz file with an array x, or an array, of shape {self._shape_words}"
        if self.table is not None:
            return f"a table ({', '.join(TABLES)}), a DataFrame, a list of dicts, or prepared features: {arrays}"
        if self.pictures is not None:
            return f"a picture, a folder of pictures, a list of them, or {arrays}"
        return f"{arrays}: records as the run was trained on"

    @property
    def _shape_words(self) -> str:
        inner = "..." if self.shape is None else ", ".join(map(str, self.shape))
        return f"(records, {inner})"

    def _of_path(self, path: Path) -> Prepared:
        if not path.exists():
            raise ConfigError("records", str(path), f"the path of an existing file or folder: {self.accepted}")
        if path.suffix.lower() == ".npz":
            return self._of_array(read_inputs(path), f"{path}, array x,")
        if self.table is not None and is_table(path):
            return self._of_table(read_table(path, delimiter=self.table.delimiter))
        if self.pictures is not None and path.is_dir():
            found = sorted(one for one in path.rglob("*") if one.is_file() and one.suffix.lower() in folders.SUFFIXES)
            if not found:
                raise DataError(f"{path} has no pictures ({', '.join(folders.SUFFIXES)})")
            return self._of_pictures(found, path)
        if self.pictures is not None and path.suffix.lower() in folders.SUFFIXES:
            return self._of_pictures([path], path.parent)
        raise ConfigError("records", str(path), self.accepted)

    def _of_table(self, table: Table) -> Prepared:
        assert self.table is not None
        x = torch.from_numpy(features(table, self.table, self.unit))
        numbers = range(table.first_row, table.first_row + len(table))
        return Prepared(x=x, labels=tuple(map(str, numbers)))

    def _of_pictures(self, found: Sequence[Any], root: Path | None = None) -> Prepared:
        assert self.pictures is not None
        how = self.pictures
        pixels, labels = [], []
        for at, one in enumerate(found):
            if isinstance(one, str | Path):
                pixels.append(folders.read_picture(Path(one), how.size, how.channels))
                labels.append(str(one) if root is None else Path(one).relative_to(root).as_posix())
            elif hasattr(one, "convert") and hasattr(one, "draft"):
                pixels.append(folders.picture(one, how.size, how.channels))
                labels.append(str(at + 1))
            else:
                raise ConfigError(f"records[{at}]", type(one).__name__, "the path of a picture, or a PIL.Image")
        return Prepared(x=torch.stack(pixels), labels=tuple(labels), called="file")

    def _of_array(self, array: Any, what: str) -> Prepared:
        x = array.detach().cpu() if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
        if x.is_complex() or x.dim() < 1 or len(x) == 0:
            raise ConfigError("records", f"{x.dtype} of shape {tuple(x.shape)}", self.accepted)
        if self.shape is not None:
            self._check_shape(x, what)
            x = x.float()
            if not bool(x.isfinite().all()):
                raise DataError(f"{what} holds NaN or infinity; finite numbers are required")
        if self.pictures is not None:
            _check_pixels(x, what)
        return Prepared(x=x, labels=tuple(str(i + 1) for i in range(len(x))))

    def _check_shape(self, x: Tensor, what: str) -> None:
        shape = self.shape
        assert shape is not None
        found = tuple(x.shape[1:])
        if found == shape:
            return
        hint = ""
        if len(shape) == 3 and len(found) == 3 and (found[2], *found[:2]) == shape:
            hint = ". Its last dimension looks like channels: transpose it, x.transpose(0, 3, 1, 2) in NumPy"
        elif tuple(x.shape) == shape:
            hint = ". A single record needs a first dimension of its own: x[None]"
        raise ConfigError("records", f"{what} of shape {tuple(x.shape)}", f"{self.accepted}{hint}")


def _check_pixels(x: Tensor, what: str) -> None:
    """Name pixels that were scaled in another way: a model answers nonsense to them without an error."""
    low, high = float(x.min()), float(x.max())
    if high > 1.5 or low < -1.5:
        said = f"{what} has pixels from {low:g} to {high:g}; the run's pixels are from -1 to 1"
        raise DataError(f"{said}: divide pixels of 0 to 255 by 127.5 and subtract 1")
    if low >= 0 and high > 0.5:
        _LOG.warning(
            "%s has pixels from %.3g to %.3g, and the run's are from -1 to 1. If yours are from 0 to 1, use 2 * x - 1",
            what,
            low,
            high,
        )
