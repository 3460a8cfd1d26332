"""Texts as features: the mean of public word vectors, and which words there are.

S. Arora, Y. Liang, T. Ma: *A Simple but Tough-to-Beat Baseline for Sentence Embeddings*. ICLR 2017 (the weights of
words; their second step, which subtracts a component of all texts, would be a statistic of the records and is left
out). K. Weinberger, A. Dasgupta, J. Langford, A. Smola, J. Attenberg: *Feature Hashing for Large Scale Multitask
Learning*. ICML 2009, arXiv:0902.2206.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.data.catalog import VECTORS
from assay.data.formats.text import NUMBERS, number
from assay.data.locate import require
from assay.errors import ConfigError

_MOST = 2**16
_RARE = 1e-3  # a word of this frequency has half the weight of a rare one: the middle of the paper's range


@dataclass(frozen=True, kw_only=True)
class Words:
    """For texts as numbers of words (`assay.data.formats.text`): two blocks of features, each of length 1.

    The first is the mean of the vectors of a text's words, common words counting less. The second, if `buckets` is
    above 0, adds ±1 times a weight to one of that many sums for each different word. Weights follow from the place of a
    word in the public list, which is ordered by frequency.

    Attributes:
        buckets: how many sums the different words are hashed into; 0 for none.
        vectors: the name of public word vectors; `assay data get` fetches them.

    Raises:
        ConfigError: a setting is out of range, or there are no such vectors.
    """

    name: ClassVar[str] = "words"

    buckets: int = 0
    vectors: str = "glove-100d"

    def __post_init__(self) -> None:
        if not 0 <= self.buckets <= _MOST:
            raise ConfigError("features words buckets", self.buckets, f"a whole number from 0 to {_MOST}")
        VECTORS.choose("features words vectors", self.vectors)

    def check(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 1:
            raise ConfigError(
                "features", "words", f"a data set of texts as numbers of words; this one has shape {shape}"
            )
        require(VECTORS[self.vectors], None)

    def made_with(self) -> str:
        return " ".join(known.content.sha256 for known in VECTORS[self.vectors].files)

    def extract(self, x: Tensor) -> Tensor:
        lexicon = _lexicon(self.vectors)
        numbers = x.long()
        if not torch.compiler.is_exporting() and not _are_numbers(numbers, x):
            raise ConfigError(
                "records",
                "other values",
                f"numbers of words from 0 to {NUMBERS - 1}, as assay.data.formats.text.encode gives",
            )
        places = lexicon.place[numbers].long()
        weights = lexicon.mean_weight[places]
        mean = F.embedding_bag(places, lexicon.vectors, per_sample_weights=weights, mode="sum")
        blocks = [F.normalize(mean)]
        if self.buckets:
            blocks.append(F.normalize(self._hashed(numbers, lexicon)))
        return torch.cat(blocks, 1)

    def sample(self, drawn: Tensor) -> Tensor:
        return ((drawn + 1) / 2 * (NUMBERS - 1)).floor()

    def _hashed(self, numbers: Tensor, lexicon: _Lexicon) -> Tensor:
        ordered = numbers.sort(1).values
        first = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True) & (ordered > 0)
        weights = lexicon.hash_weight[lexicon.place[ordered].long()] * first
        sign = 1.0 - 2.0 * (ordered % 2)
        sums = weights.new_zeros(ordered.shape[0], self.buckets)
        return sums.scatter_add_(1, ordered // 2 % self.buckets, weights * sign)

    def describe(self) -> str:
        hashed = f", and its different words hashed into {self.buckets} sums" if self.buckets else ""
        return f"the weighted mean of the word vectors {self.vectors} of each text, which are taken as public{hashed}"


def _are_numbers(numbers: Tensor, x: Tensor) -> bool:
    return torch.equal(numbers.to(x.dtype), x) and bool(((numbers >= 0) & (numbers < NUMBERS)).all())


@dataclass(frozen=True)
class _Lexicon:
    """Public words by their place: from 0 to the number of words, which is the place of all others and of no word."""

    place: Tensor
    """The place of each number of a word."""
    vectors: Tensor
    mean_weight: Tensor
    """What a word counts in the mean: a/(a + its frequency); other words count nothing."""
    hash_weight: Tensor
    """What a different word counts among the hashed: minus the logarithm of its frequency; others as the rarest."""


@lru_cache(maxsize=1)
def _lexicon(name: str) -> _Lexicon:
    words_file, vectors_file = require(VECTORS[name], None).contents()
    words = words_file.decode().splitlines()
    vectors = np.frombuffer(vectors_file, "<f2").reshape(len(words), -1).astype(np.float32)
    place = np.full(NUMBERS, len(words), np.int32)
    for at in range(len(words) - 1, -1, -1):  # of two words with one number the more frequent stays
        place[number(words[at])] = at
    ranks = torch.arange(1, len(words) + 2, dtype=torch.float64)
    frequency = 1 / ((ranks + 1.7) * (ranks + 1.7).reciprocal().sum())  # Zipf's law with Mandelbrot's shift
    mean_weight = (_RARE / (_RARE + frequency)).float()
    mean_weight[-1] = 0.0
    return _Lexicon(
        place=torch.from_numpy(place),
        vectors=F.pad(torch.from_numpy(vectors), (0, 0, 0, 1)),
        mean_weight=mean_weight,
        hash_weight=(-frequency.log()).float(),
    )
