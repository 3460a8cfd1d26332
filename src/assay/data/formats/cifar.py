"""The binary format of CIFAR: a record is its label bytes and 1,024 bytes each of red, green and blue."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from assay.data.catalog import Contents, DatasetInfo, Read, Split, known_files
from assay.data.origins import Origin
from assay.errors import DataError

_PIXELS = 3 * 32 * 32

_NOTES = (
    "Pixels are divided by 255 and mapped to [-1, 1] as (x - 0.5) / 0.5. These are constants: no statistic "
    "of the data is used."
)


def photo_data_set(
    name: str, sums: str, *, classes: int, label_bytes: int, folder: str, origins: tuple[Origin, ...]
) -> DatasetInfo:
    """CIFAR-10 or CIFAR-100: 60,000 colour photographs of 32×32.

    Args:
        name: how it is called.
        sums: its files, as `known_files` reads them: training batches, then the test batch.
        classes: the number of classes.
        label_bytes: the number of label bytes per record.
        folder: where its files are in a data directory.
        origins: where its files can be fetched from.
    """
    return DatasetInfo(
        name=name,
        description=f"small colour photographs in {classes} classes (Krizhevsky 2009)",
        unit="one image",
        train_records=50_000,
        test_records=10_000,
        shape=(3, 32, 32),
        classes=classes,
        folders=(folder,),
        files=known_files(sums),
        origins=origins,
        notes=_NOTES,
        read=functools.partial(_read, label_bytes=label_bytes),
    )


def _read(info: DatasetInfo, contents: Contents, *, label_bytes: int) -> Read:
    return _split(contents, info.train_records, label_bytes), _split(contents, info.test_records, label_bytes)


def _split(contents: Contents, records: int, label_bytes: int) -> Split:
    """The first `records` records, from as many files as they take."""
    x, y = np.empty((records, 3, 32, 32), np.float32), np.empty(records, np.int64)
    filled = 0
    while filled < records:
        images, labels = parse_cifar(next(contents), label_bytes=label_bytes)
        rows = slice(filled, filled + len(images))
        x[rows], y[rows] = images, labels
        filled = rows.stop
    return _centred(x), y


def _centred(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Map [0, 255] to [-1, 1] in place: the images of CIFAR fill 600 MB already."""
    pixels /= 255
    pixels -= 0.5
    pixels /= 0.5
    return pixels


def parse_cifar(content: bytes, *, label_bytes: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images (records, 3, 32, 32) and labels (records,), read-only.

    CIFAR-10 has one label byte. CIFAR-100 has two, the coarse and the fine label; the fine one counts.

    Raises:
        DataError: this is not a whole number of records.
    """
    record = label_bytes + _PIXELS
    if not content or len(content) % record:
        raise DataError(f"not a CIFAR batch: {len(content):,} bytes are not a multiple of a record's {record:,}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


def build_cifar(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> bytes:
    """The inverse of `parse_cifar` for one label byte: a standard batch file."""
    return np.concatenate([labels[:, None], images.reshape(-1, _PIXELS)], axis=1).tobytes()
