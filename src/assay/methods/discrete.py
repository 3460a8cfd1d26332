"""Discretised gradients with Bayesian denoising.

Nasr, Shokri and Houmansadr: "Generalizable Deep Learning with Differential Privacy: Using Gradient Compression and
De-noising", Algorithms 1-3 (related: arXiv:2007.11524).

Each gradient (of a record or a micro-batch) becomes signs with a dead zone τ (`assay.methods.encode.sign`) and is
clipped at C. The sum gets N(0, σ²C²) and is divided by the batch size. Then each coordinate is corrected to the most
probable of -ν, 0, +ν (`assay.methods.denoise.bayes`). Clipping after discretising bounds a record by C, and the
correction is post-processing.

`scale` says what ν is compared with: the `average`, or the noisy `sum` that Algorithm 1 prints. (It never divides, and
Eq. 3-4 give the noise as σC.) Under the noise of a sum, ν = 0.01 leaves `stop` almost no probability, and every
coordinate becomes its sign times ν. Averages of clipped signs hardly reach 0.01 in a model of thousands of parameters.
`experiments/discrete-denoise` has what both readings reach.

Claimed ε: the moments accountant at σ (Theorem 1), over whole orders, since the proof expands binomials. That gives six
of the seven ε of the paper's tables to the last digit. Table 2's 16.20 (σ 0.8, batch 1,024, T 6,000) it does not give:
that is 20.99 over whole orders and 20.29 over all, and 16.20 would need T of about 3,760 or 3,990. The claim is true
for micro-batches of one record. For μ > 1 one record moves a clipped micro-batch average by up to 2C, and the verified
ε is that of σ/2. `sound` scales its noise to 2C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import GaussianDpEvent

from assay.accounting.epsilon import moments_epsilon
from assay.errors import ConfigError
from assay.gradients.clip_rules.flat import Flat
from assay.mechanisms.gaussian import Gaussian
from assay.methods import Method, check_variant
from assay.methods.chain import Chain
from assay.methods.denoise.bayes import Bayes
from assay.methods.encode.sign import Sign

if TYPE_CHECKING:
    from assay.methods.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Discrete(Method):
    """Signs that are clipped, summed with noise, and corrected."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("variant", "tau", "nu", "scale", "priors", "emit")

    name: str = "discrete"
    summary: str = "Discretise and denoise: signs of gradients, and the most probable of -ν, 0, +ν after the noise"
    soundness: str = "sound for single records; not for micro-batches of more, whose sensitivity is 2C and not C"
    tau: float = 0.001
    nu: float = 0.01
    scale: str = "average"
    priors: str = "equal"
    emit: str = "map"

    def __post_init__(self) -> None:
        check_variant(self.variant)
        if self.scale not in ("average", "sum"):
            raise ConfigError("scale", self.scale, "average or sum")
        self._correction(1.0)
        Sign(tau=self.tau)

    @property
    def clip(self) -> Flat:
        """The paper's."""
        return Flat(1.0)

    def chain(self, plan: Plan, noise_multiplier: float) -> Chain:
        """Signs, any clipping, one Gaussian draw, correction."""
        as_if_single = self.variant == "published" and plan.micro_batch > 1
        reference = plan.clip.l2 if as_if_single else None
        if plan.clip.assumed is not None:  # nothing is clipped: the noise is relative to the paper's assumption
            reference = plan.clip.assumed
        return Chain(
            clip=plan.fresh_clip(),
            noise=Gaussian(multiplier=noise_multiplier, reference=reference),
            micro=plan.micro_batch,
            each=(Sign(tau=self.tau),),
            after=(self._correction(plan.sampler.expected_size),),
        )

    def claimed(self, plan: Plan) -> float:
        """The moments accountant at the paper's σ: the noise divided by C."""
        doubled = self.variant == "sound" and plan.micro_batch > 1
        event = GaussianDpEvent(plan.noise_multiplier * (2 if doubled else 1))
        whole = plan.sampler.compose(event, plan.steps)
        return moments_epsilon(whole, plan.delta, plan.adjacency, whole_orders=True)

    def _correction(self, expected_size: float) -> Bayes:
        """The correction of averages. For a sum, ν/n is the threshold of the average, and ν is still emitted."""
        nu = self.nu / expected_size if self.scale == "sum" else self.nu
        return Bayes(nu=nu, emitted=self.nu if self.scale == "sum" else None, emit=self.emit, priors=self.priors)


METHOD = Discrete()
