"""The binary format of CIFAR: a record is its label bytes and 1,024 bytes each of red, green, blue."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from assay.data.catalog import Contents, DatasetInfo, Read, Split
from assay.errors import DataError

_PIXELS = 3 * 32 * 32

PHOTO_NOTES = (
    "Pixels are divided by 255 and mapped to [-1, 1] as (x - 0.5) / 0.5. These are constants: no statistic "
    "of the data is used."
)


def read_photographs(info: DatasetInfo, contents: Contents, *, label_bytes: int) -> Read:
    """Photographs and their labels, of the training and then of the test part."""
    return _split(contents, info.train_records, label_bytes), _split(contents, info.test_records, label_bytes)


def _split(contents: Contents, records: int, label_bytes: int) -> Split:
    """As many files as it takes to have `records` of them."""
    x, y = np.empty((records, 3, 32, 32), np.float32), np.empty(records, np.int64)
    filled = 0
    while filled < records:
        images, labels = parse_cifar(next(contents), label_bytes=label_bytes)
        part = slice(filled, filled + len(images))
        x[part], y[part] = images, labels
        filled = part.stop
    return _centred(x), y


def _centred(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """[0, 255] to [-1, 1], in place: the images of CIFAR fill 600 MB as it is."""
    pixels /= 255
    pixels -= 0.5
    pixels /= 0.5
    return pixels


def parse_cifar(content: bytes, *, label_bytes: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images (records, 3, 32, 32) and labels (records,), read-only.

    CIFAR-10 has one label byte; CIFAR-100 has two, the coarse label and then the fine one, which is taken.
    """
    record = label_bytes + _PIXELS
    if not content or len(content) % record:
        raise DataError(f"not a CIFAR batch: {len(content):,} bytes are no multiple of a record's {record:,}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


def build_cifar(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> bytes:
    """The inverse of `parse_cifar` for one label byte: a standard batch file."""
    return np.concatenate([labels[:, None], images.reshape(-1, _PIXELS)], axis=1).tobytes()
