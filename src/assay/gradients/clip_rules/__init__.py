"""Clipping rules: how much of each record's gradient enters the sum, decided from norms alone. Each rule has a file.

Every rule keeps the promise of `assay.mechanisms.types.ClipRule`: the scaled gradient of one record has l2 norm at most
`l2`. Rounding could raise a scaled norm above the bound by a few units in the last place, so the factors are lowered by
that much (`assay.gradients.arithmetic.at_most`).

The registry finds every file here that defines `RULE`; `assay._util.registry` says how to add one from outside.
"""

from __future__ import annotations

from assay._util import spec
from assay._util.registry import Registry
from assay.mechanisms.types import ClipRule

RULES: Registry[type[ClipRule]] = Registry(
    "clip",
    of=ClipRule,
    classes=True,
    wanted="a class of clipping rules, derived from assay.mechanisms.types.ClipRule",
    package=__name__,
    attribute="RULE",
)


def parse(text: str) -> ClipRule:
    """The rule of a text such as `flat:1.0` or `auto:1.0,gamma=0.01`; a bare number is flat clipping.

    Raises:
        ConfigError: There is no such rule, or a setting is out of its range.
    """
    head = text.partition(":")[0]
    if head not in RULES and head == text:
        try:
            float(text)
        except ValueError:
            pass
        else:
            return spec.parse("clip", f"flat:{text}", RULES)
    return spec.parse("clip", text, RULES)
