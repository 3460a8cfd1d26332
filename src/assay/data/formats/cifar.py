"""The binary format of CIFAR: a record is its label bytes and 1,024 bytes each of red, green, blue."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from assay.errors import DataError

_PIXELS = 3 * 32 * 32


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
