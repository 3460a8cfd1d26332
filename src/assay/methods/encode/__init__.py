"""Encodings of a record's gradient, applied before clipping and undone, as far as possible, after the noise.

An encoding changes what is clipped, never the bound. Every method accepts one.
The registry finds a file that defines `ENCODING`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
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

parse: Callable[[str], Encoding] = functools.partial(spec.parse, "encode", kinds=KINDS)
"""The encoding that a text such as `sign:tau=0.01` names, or a ConfigError."""
parse_all: Callable[[Sequence[str]], tuple[Encoding, ...]] = functools.partial(spec.parse_all, "encode", kinds=KINDS)
"""Several of them, in the order in which they are applied."""
describe: Callable[[Encoding], str] = functools.partial(spec.describe, kinds=KINDS)
"""The text that `parse` turns into this object."""
