"""Gradients reduced to signs.

Algorithm 2 of Nasr, Shokri and Houmansadr: "Generalizable Deep Learning with Differential Privacy: Using Gradient
Compression and De-noising" (related: arXiv:2007.11524).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from assay._util.lazy import torch
from assay.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from assay.methods.chain import Chain


@dataclass(frozen=True, kw_only=True)
class Sign:
    """Replaces every coordinate of a record's (or micro-batch's) gradient: +1 above τ, -1 below -τ, 0 between.

    Clipping comes afterwards and bounds the signs by C. So the guarantee is that of the method it is used with.

    Attributes:
        tau: τ.

    Raises:
        ConfigError: τ is negative or not finite.

    >>> Sign(tau=0.5)({"weight": torch.tensor([-2.0, 0.1, 0.7])})
    {'weight': tensor([-1.,  0.,  1.])}
    """

    name: ClassVar[str] = "sign"

    tau: float = 0.001

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tau) and self.tau >= 0):
            raise ConfigError("sign tau", self.tau, "a finite number, 0 or above")

    def __call__(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """The signs."""
        return {name: torch.hardshrink(value, self.tau).sign_() for name, value in gradients.items()}

    def applied(self, chain: Chain) -> Chain:
        """The chain with signs in place of gradients."""
        if chain.each:
            raise ConfigError("encode", "sign", "once: the gradients of this method are signs already")
        return replace(chain, each=(self,))


ENCODING = Sign
