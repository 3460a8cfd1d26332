"""Architectures by name, models of your own by import path, and the search for layers that mix records (`compat`).

Every network here treats each record of a batch by itself: GroupNorm in place of BatchNorm, no dropout. It consists
of Conv2d (plain or `standardised`), Linear and GroupNorm. Its shapes are fixed when it is built, and it accepts
batches of zero records.
"""

from assay.models import compat
from assay.models.registry import ModelInfo, available, build

__all__ = ["ModelInfo", "available", "build", "compat"]
