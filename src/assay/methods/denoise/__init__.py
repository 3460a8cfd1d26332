"""Post-processing of released gradients. It costs no privacy, because it sees released values only.

The registry finds a file that defines `DENOISER`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

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

parse: Callable[[str], Denoiser] = functools.partial(spec.parse, "denoise", kinds=KINDS)
"""The denoiser that a text such as `laplacian:sigma=2` names, or a ConfigError."""
parse_all: Callable[[Sequence[str]], tuple[Denoiser, ...]] = functools.partial(spec.parse_all, "denoise", kinds=KINDS)
"""Several of them, in the order in which they are applied."""
describe: Callable[[Denoiser], str] = functools.partial(spec.describe, kinds=KINDS)
"""The text that `parse` turns into this object."""
