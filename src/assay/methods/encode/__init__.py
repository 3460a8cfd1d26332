"""Encodings of a record's gradient, applied before clipping and undone, as far as possible, after the noise.

An encoding changes what is clipped, never the bound. Every method accepts one.
The registry finds a file that defines `ENCODING`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from assay._util import spec
from assay._util.registry import Registry

if TYPE_CHECKING:
    from assay.methods.chain import Chain


class Encoding(Protocol):
    """Changes a chain so that gradients are encoded. A frozen dataclass whose fields are its settings."""

    name: ClassVar[str]
    """Its name in `--encode` and in records."""

    def applied(self, chain: Chain) -> Chain:
        """The chain with this encoding."""
        ...


KINDS: Registry[type[Encoding]] = Registry(
    "encode",
    of="applied",
    classes=True,
    wanted="a class of encodings (assay.methods.encode.Encoding)",
    package=__name__,
    attribute="ENCODING",
)


def parse(text: str) -> Encoding:
    """The encoding that `text` names.

    Raises:
        ConfigError: there is no such encoding, or it does not take these settings.

    >>> parse("sign:tau=0.01")
    Sign(tau=0.01)
    """
    return spec.parse("encode", text, KINDS)


def parse_all(texts: Sequence[str]) -> tuple[Encoding, ...]:
    """Several encodings, in the order in which they are applied."""
    return tuple(parse(text) for text in texts)


def describe(encoding: Encoding) -> str:
    """The text that `parse` turns into this encoding."""
    return spec.describe(encoding, KINDS)
