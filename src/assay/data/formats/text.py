"""Texts as records: the number of each of their first words.

A word's number is a hash of its letters below 2^24, which a float32 holds exactly. So a record depends on its own text
and on nothing else: no list of words is made from the texts. `assay.features.words` turns numbers into features.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from assay.errors import ConfigError

LENGTH = 512
"""The words of a record that count; the rest of a longer text is left out."""
NUMBERS = 2**24
"""Words have numbers from 1 to 2^24 - 1; 0 stands after the end of a text."""

_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
_MARKUP = re.compile(r"<[a-z/][^<>]{0,80}>")


def words(text: str) -> list[str]:
    """The words, numbers and signs of a text in small letters, without the marks of HTML.

    >>> words("It DOESN'T work!<br />2 stars")
    ['it', 'does', 'not', 'work', '!', '2', 'stars']
    """
    plain = _MARKUP.sub(" ", text.lower()).replace("n't", " not")
    return _WORD.findall(plain)


def number(word: str) -> int:
    """The number of a word, from 1 to 2^24 - 1: the same on every machine.

    >>> number("film")
    5855525
    """
    digest = hashlib.blake2b(word.encode(), digest_size=8, person=b"assay: word, 1").digest()
    return 1 + int.from_bytes(digest, "little") % (NUMBERS - 1)


def encode(texts: Iterable[str], length: int = LENGTH) -> npt.NDArray[np.float32]:
    """Texts as records, each by itself.

    Args:
        texts: one text for each record.
        length: how many words of a text count.

    Returns:
        The numbers of the first words, float32 of shape (records, length), with 0 after the end of a text.

    Raises:
        ConfigError: a text is something else, or the length is not above 0.

    >>> encode(["a film"], length=3).tolist()
    [[14066949.0, 5855525.0, 0.0]]
    """
    if length < 1:
        raise ConfigError("length", length, "a whole number above 0")
    known: dict[str, int] = {}
    rows = []
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(f"texts[{at}]", type(text).__name__, "a text")
        row = np.zeros(length, np.float32)
        found = words(text)[:length]
        for word in found:
            if word not in known:
                known[word] = number(word)
        row[: len(found)] = [known[word] for word in found]
        rows.append(row)
    return np.stack(rows) if rows else np.empty((0, length), np.float32)
