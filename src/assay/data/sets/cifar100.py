"""CIFAR-100."""

from assay.data.formats.cifar import photo_data_set
from assay.data.origins import Archive

SUMS = """
f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29  153_700_000  train.bin
d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a   30_740_000  test.bin
"""

DATASET = photo_data_set(
    "cifar100",
    SUMS,
    classes=100,
    label_bytes=2,
    folder="cifar-100-binary",
    origins=(Archive(url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", folder="cifar-100-binary/"),),
)
