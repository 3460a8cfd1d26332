"""DP-Adam: Adam on the private gradient of DP-SGD. The optimizer is post-processing, so ε is that of DP-SGD."""

from __future__ import annotations

from assay.methods.dpsgd import DPSGD

METHOD = DPSGD(
    name="dpadam",
    summary="DP-Adam: DP-SGD's private gradient given to Adam",
    optimizer="adam",
)
