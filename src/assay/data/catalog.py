"""The data sets known by name: their public facts, and the exact bytes that count as each of them.

Sums are SHA-256 of the files as their authors publish them. Of an idx file the sum of the uncompressed
content is what counts: distributors repack the gzip wrapper (Debian's Fashion-MNIST drops the file name and
time from its header) around content that is the same to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from assay.errors import ConfigError

DEFAULT = "mnist"  # what commands train on where no data set is named


class Fingerprint(NamedTuple):
    """What identifies a run of bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """One file of a data set: `content` is what must match; `gz` is the published wrapper, if it has one."""

    name: str
    content: Fingerprint
    gz: Fingerprint | None = None

    @property
    def forms(self) -> tuple[str, ...]:
        """The file names under which it may be stored, the first preferred."""
        return (self.name,) if self.gz is None else (self.name, f"{self.name}.gz")


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What can be said about a data set without opening it.

    `folders` are the places of its files inside a data directory, the first being the one that is written to.
    A data set without files ships with a Python package.
    """

    name: str
    description: str
    unit: str
    train_records: int
    test_records: int
    shape: tuple[int, ...]
    classes: int
    folders: tuple[str, ...] = ()
    files: tuple[KnownFile, ...] = ()


def _idx(name: str, content: Fingerprint, gz: Fingerprint) -> KnownFile:
    return KnownFile(name=name, content=content, gz=gz)


def _plain(name: str, sha256: str, size: int) -> KnownFile:
    return KnownFile(name=name, content=Fingerprint(sha256, size))


# Files are listed in the order in which `sources` reads them: images, then labels, of the training and then
# of the test part for idx; training batches, then the test batch, for CIFAR; training, then test, for Adult.
_MNIST = (
    _idx(
        "train-images-idx3-ubyte",
        Fingerprint("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47_040_016),
        Fingerprint("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
    ),
    _idx(
        "train-labels-idx1-ubyte",
        Fingerprint("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60_008),
        Fingerprint("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
    ),
    _idx(
        "t10k-images-idx3-ubyte",
        Fingerprint("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7_840_016),
        Fingerprint("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
    ),
    _idx(
        "t10k-labels-idx1-ubyte",
        Fingerprint("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10_008),
        Fingerprint("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
    ),
)

_FASHION_MNIST = (
    _idx(
        "train-images-idx3-ubyte",
        Fingerprint("c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", 47_040_016),
        Fingerprint("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
    ),
    _idx(
        "train-labels-idx1-ubyte",
        Fingerprint("bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", 60_008),
        Fingerprint("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
    ),
    _idx(
        "t10k-images-idx3-ubyte",
        Fingerprint("5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", 7_840_016),
        Fingerprint("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
    ),
    _idx(
        "t10k-labels-idx1-ubyte",
        Fingerprint("0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", 10_008),
        Fingerprint("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
    ),
)

_CIFAR10 = (
    _plain("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5", 30_730_000),
    _plain("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed", 30_730_000),
    _plain("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67", 30_730_000),
    _plain("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48", 30_730_000),
    _plain("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add", 30_730_000),
    _plain("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b", 30_730_000),
)

_CIFAR100 = (
    _plain("train.bin", "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29", 153_700_000),
    _plain("test.bin", "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a", 30_740_000),
)

_ADULT = (
    _plain("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", 3_974_305),
    _plain("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", 2_003_153),
)

_CATALOG = (
    DatasetInfo(
        name="digits",
        description="handwritten digits of scikit-learn; always there, for a first try",
        unit="one image",
        train_records=1_437,
        test_records=360,
        shape=(1, 8, 8),
        classes=10,
    ),
    DatasetInfo(
        name="mnist",
        description="handwritten digits in grey (LeCun, Cortes, Burges)",
        unit="one image",
        train_records=60_000,
        test_records=10_000,
        shape=(1, 28, 28),
        classes=10,
        folders=("mnist", "mnist/raw", "MNIST/raw"),
        files=_MNIST,
    ),
    DatasetInfo(
        name="fashion-mnist",
        description="articles of clothing in grey (Xiao, Rasul, Vollgraf 2017)",
        unit="one image",
        train_records=60_000,
        test_records=10_000,
        shape=(1, 28, 28),
        classes=10,
        folders=("fashion-mnist", "fashion-mnist/raw", "FashionMNIST/raw"),
        files=_FASHION_MNIST,
    ),
    DatasetInfo(
        name="cifar10",
        description="small colour photographs in 10 classes (Krizhevsky 2009)",
        unit="one image",
        train_records=50_000,
        test_records=10_000,
        shape=(3, 32, 32),
        classes=10,
        folders=("cifar-10-batches-bin",),
        files=_CIFAR10,
    ),
    DatasetInfo(
        name="cifar100",
        description="small colour photographs in 100 classes (Krizhevsky 2009)",
        unit="one image",
        train_records=50_000,
        test_records=10_000,
        shape=(3, 32, 32),
        classes=100,
        folders=("cifar-100-binary",),
        files=_CIFAR100,
    ),
    DatasetInfo(
        name="adult",
        description="does a person earn over $50K, from the 1994 US census (Kohavi, Becker 1996)",
        unit="one person",
        train_records=32_561,
        test_records=16_281,
        shape=(105,),
        classes=2,
        folders=("adult",),
        files=_ADULT,
    ),
)


def available() -> list[DatasetInfo]:
    """Every data set that has a name, whether or not its files are on this machine."""
    return list(_CATALOG)


def describe(name: object) -> DatasetInfo:
    """The entry called `name`, or a `ConfigError` that lists the names there are."""
    for info in _CATALOG:
        if info.name == name:
            return info
    names = ", ".join(info.name for info in _CATALOG)
    accepted = f"one of {names}; or, to train on, the path of an .npz file with arrays x and y"
    raise ConfigError("data", str(name), accepted)
