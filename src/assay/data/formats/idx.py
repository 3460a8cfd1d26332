"""The idx format of MNIST: a big-endian header (type, number of dimensions, sizes), then the values."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt

from assay.data.catalog import Contents, DatasetInfo, Read, Split
from assay.errors import DataError

_UNSIGNED_BYTE = 0x08

# An empty background stays zero: at -1 it would take up most of a record's clipped gradient.
INK_NOTES = "Pixels are divided by 255, a constant: no statistic of the data is used."


def read_pictures(info: DatasetInfo, contents: Contents) -> Read:  # noqa: ARG001
    """Pictures in ink and their labels, of the training and then of the test part."""
    return _split(contents), _split(contents)


def _split(contents: Contents) -> Split:
    images = parse_idx(next(contents))[:, None].astype(np.float32)
    images /= 255
    return images, parse_idx(next(contents)).astype(np.int64)


def parse_idx(content: bytes) -> npt.NDArray[np.uint8]:
    """The array of unsigned bytes in `content`, read-only. The header must account for every byte."""
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
