"""The classes of the clipping rules, and `parse` for their text. Each has a file in `assay.gradients.clip_rules`."""

from typing import TYPE_CHECKING

from assay._util import lazy
from assay.gradients.clip_rules import RULES, ClipRule, parse

if TYPE_CHECKING:
    from assay.gradients.clip_rules.adaptive import AdaptiveQuantile
    from assay.gradients.clip_rules.assumed import Assumed
    from assay.gradients.clip_rules.automatic import Automatic
    from assay.gradients.clip_rules.flat import Flat
    from assay.gradients.clip_rules.per_layer import PerLayer

__all__ = ["RULES", "AdaptiveQuantile", "Assumed", "Automatic", "ClipRule", "Flat", "PerLayer", "parse"]

__getattr__ = lazy.exports(
    "assay.gradients.clip_rules",
    {
        "AdaptiveQuantile": "adaptive",
        "Assumed": "assumed",
        "Automatic": "automatic",
        "Flat": "flat",
        "PerLayer": "per_layer",
    },
)
