"""Post-processing of released gradients. Whatever is done here costs no privacy: it sees released values only.

A file that defines `DENOISER` is found by itself.
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
    """The denoiser that `text` names, e.g. `laplacian:sigma=1`."""
    return spec.parse("denoise", text, KINDS)


def parse_all(texts: Sequence[str]) -> tuple[Denoiser, ...]:
    """Several, in the order in which they are applied."""
    return tuple(parse(text) for text in texts)


def describe(denoiser: Denoiser) -> str:
    """The text that `parse` turns into this denoiser."""
    return spec.describe(denoiser, KINDS)
