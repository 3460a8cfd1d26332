"""CIFAR-100."""

from __future__ import annotations

import functools

from assay.data.catalog import DatasetInfo, plain_file
from assay.data.formats.cifar import PHOTO_NOTES, read_photographs
from assay.data.origins import Archive

FILES = (
    plain_file("train.bin", "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29", 153_700_000),
    plain_file("test.bin", "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a", 30_740_000),
)

DATASET = DatasetInfo(
    name="cifar100",
    description="small colour photographs in 100 classes (Krizhevsky 2009)",
    unit="one image",
    train_records=50_000,
    test_records=10_000,
    shape=(3, 32, 32),
    classes=100,
    folders=("cifar-100-binary",),
    files=FILES,
    origins=(Archive(url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", folder="cifar-100-binary/"),),
    notes=PHOTO_NOTES,
    read=functools.partial(read_photographs, label_bytes=2),
)
