"""DP-Adam: the private gradient of DP-SGD given to Adam. The optimizer is post-processing: same guarantee, same ε as
DP-SGD.
"""

from __future__ import annotations

from assay.methods.dpsgd import DPSGD

METHOD = DPSGD(
    name="dpadam",
    summary="DP-Adam: DP-SGD's private gradient given to Adam",
    optimizer="adam",
)
