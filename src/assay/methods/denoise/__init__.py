"""Post-processing of released gradients. It costs no privacy, because it sees released values only.

The registry finds a file that defines `DENOISER`.
"""

from __future__ import annotations

from assay._util.registry import Parts
from assay.mechanisms.types import Denoiser

KINDS: Parts[Denoiser] = Parts(
    "denoise",
    of="needs_white",
    wanted="a class of denoisers (assay.mechanisms.types.Denoiser)",
    package=__name__,
    attribute="DENOISER",
)
parse, parse_all, describe = KINDS.parse, KINDS.parse_all, KINDS.describe
