"""Clipping rules: how much of each record's gradient enters the sum, decided from norms alone. One file a rule.

Every rule keeps the promise of `assay.mechanisms.types.ClipRule`: the scaled gradient of one record has l2 norm at most `l2`. A scaled norm can
pass the bound by a few units in the last place of the arithmetic; the factors are lowered by that much (`assay.gradients.arithmetic.at_most`).

A file that defines `RULE` is found by itself; `assay._util.registry` tells how one from outside is added.
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
    """`flat:1.0`, `per-layer:1.0`, `auto:1.0,gamma=0.01`, `adaptive:0.5,quantile=0.5`; a bare number is flat clipping."""
    head = text.partition(":")[0]
    if head not in RULES and head == text:
        try:
            float(text)
        except ValueError:
            pass
        else:
            return spec.parse("clip", f"flat:{text}", RULES)
    return spec.parse("clip", text, RULES)
