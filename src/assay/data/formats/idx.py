"""The idx format of MNIST: a big-endian header (type, number of dimensions, sizes), then the values."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt

from assay.data.catalog import Contents, DatasetInfo, Read, Split, known_files
from assay.data.origins import Origin
from assay.errors import DataError

_UNSIGNED_BYTE = 0x08

# An empty background stays 0. At -1 it would take up most of a record's clipped gradient.
_NOTES = "Pixels are divided by 255, a constant: no statistic of the data is used."


def ink_data_set(
    name: str, description: str, sums: str, *, folders: tuple[str, ...], origins: tuple[Origin, ...]
) -> DatasetInfo:
    """A data set in the form of MNIST: 70,000 grey images of 28×28 in ten classes.

    Args:
        name: how it is called.
        description: one line about it.
        sums: its files, as `known_files` reads them: training images and labels, test images and labels.
        folders: where its files are in a data directory.
        origins: where its files can be fetched from.
    """
    return DatasetInfo(
        name=name,
        description=description,
        unit="one image",
        train_records=60_000,
        test_records=10_000,
        shape=(1, 28, 28),
        classes=10,
        folders=folders,
        files=known_files(sums),
        origins=origins,
        notes=_NOTES,
        read=_read,
    )


def _read(info: DatasetInfo, contents: Contents) -> Read:  # noqa: ARG001
    return _split(contents), _split(contents)


def _split(contents: Contents) -> Split:
    images = parse_idx(next(contents))[:, None].astype(np.float32)
    images /= 255
    return images, parse_idx(next(contents)).astype(np.int64)


def parse_idx(content: bytes) -> npt.NDArray[np.uint8]:
    """The array of unsigned bytes in `content`, read-only.

    Raises:
        DataError: this is not an idx file of unsigned bytes, or its header does not account for every byte.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise DataError(f"not an idx file of unsigned bytes: it begins with {content[:4].hex() or 'nothing'}")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"idx header of {dimensions} dimensions is cut short: {len(content)} bytes")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    if len(content) - start != math.prod(shape):
        raise DataError(f"idx header promises {math.prod(shape):,} values, {len(content) - start:,} are there")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
