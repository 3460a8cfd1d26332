"""Discretised gradients with Bayesian denoising (discrete-denoise.txt, Algorithms 1-3).

Each (micro-batch's) gradient becomes signs with a dead zone τ (`assay.methods.encode.sign`), is clipped at C, summed, given
N(0, σ²C²) and divided by the batch size; then each coordinate is corrected to the most probable of -ν, 0, +ν
(`assay.methods.denoise.bayes`). Clipping after discretising bounds a record by C, and the correction is post-processing.

`scale` says of what ν is a threshold: of the `average`, or of the noisy `sum` that Algorithm 1 prints (it never divides, and Eq. 3-4 give the noise as
σC). Under the noise of a sum a ν of 0.01 leaves `stop` next to nothing, and every coordinate becomes its sign times ν; that is what Table 1 can
be reproduced with. Averages of clipped signs hardly reach 0.01 in a model of thousands of parameters.

Claimed ε: the moments accountant at σ (Theorem 1). True for micro-batches of one record. For μ > 1 one record moves a
clipped micro-batch average by up to 2C, and the verified ε is that of σ/2; `sound` scales its noise to 2C instead.
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
    """Signs, clipped, noised, corrected."""

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
        """That of the paper."""
        return Flat(1.0)

    def chain(self, plan: Plan, noise_multiplier: float) -> Chain:
        """Signs, any clipping, one Gaussian draw, correction."""
        as_if_single = self.variant == "published" and plan.micro_batch > 1
        reference = plan.clip.l2 if as_if_single else None
        if plan.clip.assumed is not None:  # nothing is clipped: noise relative to what the paper takes for granted
            reference = plan.clip.assumed
        return Chain(
            clip=plan.fresh_clip(),
            noise=Gaussian(multiplier=noise_multiplier, reference=reference),
            micro=plan.micro_batch,
            each=(Sign(tau=self.tau),),
            after=(self._correction(plan.sampler.expected_size),),
        )

    def claimed(self, plan: Plan) -> float:
        """The moments accountant at the paper's σ: the noise over C."""
        doubled = self.variant == "sound" and plan.micro_batch > 1
        event = GaussianDpEvent(plan.noise_multiplier * (2 if doubled else 1))
        return moments_epsilon(plan.sampler.compose(event, plan.steps), plan.delta, plan.adjacency)

    def _correction(self, expected_size: float) -> Bayes:
        """Of averages: a threshold ν of the sum is one of ν/n, and what is emitted is ν still."""
        nu = self.nu / expected_size if self.scale == "sum" else self.nu
        return Bayes(nu=nu, emitted=self.nu if self.scale == "sum" else None, emit=self.emit, priors=self.priors)


METHOD = Discrete()
