"""The handwritten digits of scikit-learn."""

from __future__ import annotations

import numpy as np

from assay.data.catalog import Contents, DatasetInfo, Read

NOTES = (
    "Pixels are divided by 16, a constant: no statistic of the data is used. One of every five positions is set "
    "aside for testing by a fixed draw, whatever the records are."
)


def read(info: DatasetInfo, contents: Contents) -> Read:  # noqa: ARG001
    """All digits. The test records are set aside by position."""
    from sklearn.datasets import load_digits  # a slow import that only this data set needs

    digits = load_digits()
    return (digits.images[:, None].astype(np.float32) / 16, digits.target.astype(np.int64)), None


DATASET = DatasetInfo(
    name="digits",
    description="handwritten digits of scikit-learn; always there, for a first try",
    unit="one image",
    train_records=1_437,
    test_records=360,
    shape=(1, 8, 8),
    classes=10,
    notes=NOTES,
    read=read,
    source="scikit-learn",
    package="sklearn.datasets.data",
)
