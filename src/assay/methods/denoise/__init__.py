"""Post-processing of released gradients. It costs no privacy, because it sees released values only.

The registry finds a file that defines `DENOISER`.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay._util import spec
from assay._util.registry import Registry
from assay.mechanisms.types import Denoiser

KINDS: Registry[type[Denoiser]] = Registry(
    "denoise",
    of="needs_white",
    classes=True,
    wanted="a class of denoisers (assay.mechanisms.types.Denoiser)",
    package=__name__,
    attribute="DENOISER",
)


def parse(text: str) -> Denoiser:
    """The denoiser that `text` names.

    Raises:
        ConfigError: there is no such denoiser, or it does not take these settings.

    >>> parse("laplacian:sigma=2")
    Laplacian(sigma=2.0, over='vector')
    """
    return spec.parse("denoise", text, KINDS)


def parse_all(texts: Sequence[str]) -> tuple[Denoiser, ...]:
    """Several denoisers, in the order in which they are applied."""
    return tuple(parse(text) for text in texts)


def describe(denoiser: Denoiser) -> str:
    """The text that `parse` turns into this denoiser."""
    return spec.describe(denoiser, KINDS)
