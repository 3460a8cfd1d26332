"""Features of texts: from the text itself and public vectors, and nothing else."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

import assay
from assay import features
from assay._util.registry import register
from assay.data.catalog import VECTORS, FileSet, Fingerprint, KnownFile
from assay.data.formats.text import encode
from assay.errors import ConfigError, DataError

LIST = ["the", "film", "good", "bad", "rarely"]
TABLE = np.array([[1, 0], [0, 1], [3, 4], [-3, -4], [0, 2]], "<f2")
CONTENTS = {"words.txt": "".join(f"{word}\n" for word in LIST).encode(), "vectors.f16": TABLE.tobytes()}


@pytest.fixture
def vectors(tmp_path, monkeypatch):
    """Word vectors of five words, as `assay data get` would have put them."""
    if "five" not in VECTORS:
        known = [
            KnownFile(name=name, content=Fingerprint(hashlib.sha256(data).hexdigest(), len(data)))
            for name, data in CONTENTS.items()
        ]
        register("vectors", FileSet(name="five", description="for tests", folders=("five",), files=tuple(known)))
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    (tmp_path / "five").mkdir()
    for name, data in CONTENTS.items():
        (tmp_path / "five" / name).write_bytes(data)


def records(*texts):
    return torch.from_numpy(encode(texts, length=8))


@pytest.mark.parametrize("text", ["words:vectors=five", "words:buckets=64,vectors=five"])
def test_one_text_never_touches_the_features_of_another(text, vectors):
    kind = features.parse(text)
    assert features.parse(features.describe(kind)) == kind
    x = records("the film was good", "bad bad film", "", "rarely good")
    together = kind.extract(x)
    assert together.shape == (4, 2 + kind.buckets)
    assert torch.equal(together, torch.cat([kind.extract(one) for one in x.split(1)]))
    lengths = together[:, :2].norm(dim=1)
    assert lengths.tolist() == pytest.approx([1, 1, 0, 1], abs=1e-6)
    assert float(together.norm(dim=1).max()) <= 2**0.5 + 1e-6


def test_the_mean_counts_common_words_less_and_unknown_ones_not_at_all(vectors):
    kind = features.parse("words:vectors=five")
    assert kind.extract(records("good")).tolist()[0] == pytest.approx([0.6, 0.8], abs=1e-6)
    assert torch.equal(kind.extract(records("good")), kind.extract(records("good zyx")))
    x, y = kind.extract(records("the film"))[0].tolist()  # [1, 0] of the first word, [0, 1] of the second
    assert 0 < x < y


def test_a_word_counts_once_among_the_hashed(vectors):
    kind = features.parse("words:buckets=64,vectors=five")
    hashed = kind.extract(records("zyx film", "film zyx zyx zyx", "zyx film good"))[:, 2:]
    assert torch.equal(hashed[0], hashed[1])
    assert not torch.equal(hashed[0], hashed[2])


def test_what_is_no_text_or_no_vectors_is_refused(vectors, tmp_path):
    with pytest.raises(ConfigError, match="a data set of texts"):
        features.parse("words:vectors=five").check((1, 8, 8))
    with pytest.raises(ConfigError, match="numbers of words"):
        features.parse("words:vectors=five").extract(torch.tensor([[0.5, 1.0]]))
    with pytest.raises(ConfigError, match="from 0 to 65536"):
        features.parse("words:buckets=100000")
    with pytest.raises(ConfigError, match="glove-100d"):
        features.parse("words:vectors=nothing")
    (tmp_path / "five" / "words.txt").unlink()
    with pytest.raises(DataError, match="assay data get five"):
        features.parse("words:vectors=five").check((8,))


def test_texts_are_learned_and_new_ones_are_predicted(vectors, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    texts = [f"the film {'good' if i % 2 else 'bad'} number {draw.integers(10**6)}" for i in range(800)]
    np.savez(tmp_path / "texts.npz", x=encode(texts, length=8), y=np.arange(800) % 2)
    asked = assay.Settings(
        data=str(tmp_path / "texts.npz"),
        features="words:buckets=32,vectors=five",
        model="linear-head",
        epsilon=3.0,
        epochs=10,
        lr=4.0,
        seed=0,
    )
    result = assay.train(asked, out=tmp_path / "run")
    assert result.accuracy > 0.95
    assert "different words hashed into 32 sums" in result.statement
    new = encode(["good good film", "the bad film"], length=8)
    assert assay.load(tmp_path / "run").predict(new).values == ["1", "0"]
    path = tmp_path / "program.pt2"
    assay.export(tmp_path / "run", path)
    program = torch.export.load(path).module()
    assert program(torch.from_numpy(new)).argmax(1).tolist() == [1, 0]
