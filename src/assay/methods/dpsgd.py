"""DP-SGD.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar and Zhang: "Deep Learning with Differential Privacy", ACM CCS 2016,
arXiv:1607.00133.

Guarantee: each record's gradient is clipped to norm C, the clipped gradients of a Poisson batch are summed, N(0, σ²C²)
is added once, and the sum is divided by a constant. One step is a Poisson-subsampled Gaussian mechanism of multiplier
σ; a run is their composition. With micro-batches of μ > 1 records one record moves the sum by 2C, so the noise has
standard deviation σ·2C.

Claimed ε: the moments accountant, which is Rényi composition of the subsampled Gaussian (Mironov, Talwar and Zhang:
"Rényi Differential Privacy of the Sampled Gaussian Mechanism", 2019, arXiv:1908.10530). It is sound. The verified ε is
smaller, because numerical composition is tighter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from assay.accounting.epsilon import rdp_epsilon
from assay.mechanisms.gaussian import Gaussian
from assay.methods import Method
from assay.methods.chain import Chain

if TYPE_CHECKING:
    from assay.methods.plan import Plan


@dataclass(frozen=True, kw_only=True)
class DPSGD(Method):
    """Clip, sum, add Gaussian noise once, divide by a constant."""

    varying_noise: ClassVar[bool] = True

    name: str = "dpsgd"
    summary: str = "DP-SGD: clip each record's gradient, add Gaussian noise to the sum (Abadi et al. 2016)"
    soundness: str = "sound"

    def chain(self, plan: Plan, noise_multiplier: float) -> Chain:
        """Any clipping, and one Gaussian draw."""
        return Chain(clip=plan.fresh_clip(), micro=plan.micro_batch, noise=Gaussian(multiplier=noise_multiplier))

    def claimed(self, plan: Plan) -> float:
        """The moments accountant."""
        return rdp_epsilon(plan.event(), plan.delta, plan.adjacency)


METHOD = DPSGD()
