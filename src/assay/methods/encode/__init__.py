"""Encodings of a record's gradient, applied before clipping and undone, as far as possible, after the noise.

An encoding changes what is clipped, never the bound. Every method accepts one.
The registry finds a file that defines `ENCODING`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from assay._util.registry import Parts

if TYPE_CHECKING:
    from assay.methods.chain import Chain


class Encoding(Protocol):
    """Changes a chain so that gradients are encoded. A frozen dataclass whose fields are its settings."""

    name: ClassVar[str]
    """Its name in `--encode` and in records."""

    def applied(self, chain: Chain) -> Chain:
        """The chain with this encoding."""
        ...


KINDS: Parts[Encoding] = Parts(
    "encode",
    of="applied",
    wanted="a class of encodings (assay.methods.encode.Encoding)",
    package=__name__,
    attribute="ENCODING",
)
parse, parse_all, describe = KINDS.parse, KINDS.parse_all, KINDS.describe
