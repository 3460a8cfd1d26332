"""Post-processing of released gradients. Whatever is done here costs no privacy: it sees released values only."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from assay._util import spec
from assay.mechanisms.types import Denoiser
from assay.methods.denoise.bayes import Bayes
from assay.methods.denoise.laplacian import Laplacian
from assay.methods.denoise.lowpass import LowPass

KINDS: dict[str, type[Denoiser]] = {"laplacian": Laplacian, "bayes": Bayes, "lowpass": LowPass}


def parse(text: str) -> Denoiser:
    """The denoiser that `text` names, e.g. `laplacian:sigma=1`."""
    return spec.parse("denoise", text, KINDS)


def parse_all(texts: Sequence[str]) -> tuple[Denoiser, ...]:
    """Several, in the order in which they are applied."""
    return tuple(parse(text) for text in texts)


def fresh(denoisers: Sequence[Denoiser]) -> tuple[Denoiser, ...]:
    """The same denoisers in their initial state (some learn as they run)."""
    return tuple(copy.copy(denoiser) for denoiser in denoisers)


def describe(denoiser: Denoiser) -> str:
    """The text that `parse` turns into this denoiser."""
    return spec.describe(denoiser, KINDS)
