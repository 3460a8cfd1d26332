"""DP-LSSGD and DP-LSAdam: the private gradient is smoothed before the optimizer sees it.

Wang, Gu, Boedihardjo, Wang, Barekat and Osher: "DP-LSSGD: A Stochastic Optimization Method to Lift the Utility in
Privacy-Preserving ERM", MSML 2020, arXiv:1906.12056. We follow the version submitted anonymously under the title
"DP-LSSGD: An Optimization Method to Lift the Utility in Privacy-Preserving ERM".

After the noise, g ← A_σ⁻¹ g with A_σ = I - σL, where L is the periodic 1-D Laplacian (Algorithm 1,
`assay.methods.denoise.laplacian`). This is post-processing: the guarantee is that of the gradient before smoothing.

Claimed ε (`claim=theorem`, Theorem 1): noise of variance ν² = 8TαG²/(n²ε) on the averaged gradient, with
α = 2 log(1/δ)/ε + 1, gives (ε, δ) for ε² ≤ 5T log(1/δ) b²/n², if batches of b out of n are drawn without replacement
and gradients are bounded by G. Solved for ε with ν = zG/b: K = z²n²/(8Tb²), ε = (1 + √(1 + 8K log(1/δ)))/(2K). Beyond
its condition the theorem claims nothing (∞). For networks the paper uses the moments accountant (`claim=moments`).

What is true: even where gradients are bounded by G, the theorem fails within its own condition. With n = 60,000, b =
6,000, T = 1 and δ = 1e-5 it claims ε = 0.75 for noise whose exact ε is 2.03: all other gradients are -G·e, and a record
with gradient +G·e is replaced by one with -G·e. The proof rests on Lemma 1, a bound linear in the order α and without a
limit on α, cited from Wang, Balle and Kasiviswanathan 2018 (arXiv:1808.00087). As printed it cannot hold: here α is 32.
At the settings of the paper's Table 2 the claim holds and is loose.

For logistic regression the paper assumes G and enforces nothing. `published` with `--clip assumed:G` does the same and
is verified as ∞. With a rule that clips, `published` and `sound` differ only in which ε a target refers to: the
verified ε comes from the ledger, not from the theorem.

`authors` is what the authors' public code does (github.com/BaoWangMath/DP-LSSGD, folder Logistic-Regression). It clips
the mean gradient of a batch, the weight's and the bias's separately, to G = 1, adds Theorem 1's noise to that mean, and
smooths each tensor by itself. Clipping the mean does not bound a record by 2G/b: a long gradient turns the mean round,
which moves it by 2G in each tensor (`assay.methods.encode.mean`). The ledger charges that. The script also standardises
its inputs (`--features standardise`), trains on all 60,000 records in shuffled epochs, and lowers the learning rate 2/t
once an epoch (`--schedule inverse:every=469`).

How much smoothing gains is bounded: the factor γ by which it multiplies the noise's variance (Proposition 1) falls
with d only to 1/√(1+4σ), not to 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import GaussianDpEvent

from assay.accounting.epsilon import moments_epsilon
from assay.errors import ConfigError, one_of
from assay.gradients.clip_rules.assumed import Assumed
from assay.mechanisms.gaussian import Gaussian
from assay.methods import Method, check_variant
from assay.methods.chain import Chain
from assay.methods.denoise.laplacian import Laplacian
from assay.methods.encode.mean import ClippedMean

if TYPE_CHECKING:
    from torch import nn

    from assay.gradients.clip_rules import ClipRule
    from assay.methods.plan import Plan

_CLAIMS = ("theorem", "moments")


@dataclass(frozen=True, kw_only=True)
class Smoothed(Method):
    """DP-SGD with Laplacian smoothing."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("variant", "sigma", "over", "claim", "groups")
    VARIANTS: ClassVar[tuple[str, ...]] = ("sound", "published", "authors")

    claim: str
    soundness: str = (
        "sound where gradients are clipped; not where a bound is assumed and none enforced (logistic regression), ε = ∞"
    )
    sigma: float = 1.0
    over: str | None = None
    """What is smoothed as one: "vector" (the paper), or "tensor" (the default of `authors`)."""
    groups: int | None = None
    """How many tensors the model has; only `authors` clips them separately."""

    def __post_init__(self) -> None:
        check_variant(self.variant, self.VARIANTS)
        if self.groups is not None and not (self.by_tensor and self.groups >= 1):
            raise ConfigError("groups", self.groups, "the number of clipped tensors, with variant authors alone")
        if self.claim not in _CLAIMS:
            raise ConfigError("claim", self.claim, one_of(self.claim, _CLAIMS))
        self._smoothing()

    @property
    def clip(self) -> ClipRule:
        """The authors' code clips no record."""
        return Assumed(1.0) if self.by_tensor else super().clip

    @property
    def by_tensor(self) -> bool:
        """Whether tensors are clipped separately, and not records."""
        return self.variant == "authors"

    @property
    def layers(self) -> int | None:
        """The number of tensors that are clipped separately, once it is known."""
        return self.groups

    @property
    def needs_layers(self) -> bool:
        """Yes with variant authors, until the number of tensors is known."""
        return self.by_tensor and self.groups is None

    def for_layers(self, layers: list[str]) -> Smoothed:
        """The method for these layers, each with a weight and a bias if the number of tensors is not known."""
        return replace(self, groups=2 * len(layers)) if self.needs_layers else self

    def for_model(self, model: nn.Module) -> Smoothed:
        """The method with the number of the model's trainable tensors."""
        if not self.by_tensor:
            return self
        return replace(self, groups=sum(p.requires_grad for p in model.parameters()))

    def chain(self, plan: Plan, noise_multiplier: float) -> Chain:
        """Any clipping (that of the mean with variant authors), one Gaussian draw, smoothing."""
        return Chain(
            clip=plan.fresh_clip(),
            before=(self._clipped_mean(plan),) if self.by_tensor else (),
            noise=Gaussian(multiplier=noise_multiplier, reference=plan.clip.assumed),
            micro=plan.micro_batch,
            after=(self._smoothing(),),
        )

    def _smoothing(self) -> Laplacian:
        return Laplacian(sigma=self.sigma, over=self.over or ("tensor" if self.by_tensor else "vector"))

    def _clipped_mean(self, plan: Plan) -> ClippedMean:
        if plan.clip.assumed is None:
            raise ConfigError(
                "clip", str(plan.clip), "assumed:G with variant authors, which clips the mean of a batch and no record"
            )
        if self.groups is None:
            raise ConfigError("groups", None, "the number of clipped tensors (a run takes it from its model)")
        return ClippedMean(
            bound=plan.clip.assumed,
            size=plan.batch_size,
            tensors=self.groups,
            substituted=plan.sampling.replaces,
        )

    def claimed(self, plan: Plan) -> float:
        """Theorem 1, or the moments accountant."""
        if self.claim == "moments":
            event = GaussianDpEvent(plan.noise_multiplier)
            return moments_epsilon(plan.sampler.compose(event, plan.steps), plan.delta, plan.adjacency)
        rate, log = plan.sampler.rate, math.log(1 / plan.delta)
        scaled = plan.noise_multiplier**2 / (8 * plan.steps * rate**2)
        if scaled == 0:
            return math.inf
        epsilon = (1 + math.sqrt(1 + 8 * scaled * log)) / (2 * scaled)
        return epsilon if epsilon**2 <= 5 * plan.steps * log * rate**2 else math.inf


METHOD = Smoothed(
    name="lssgd",
    summary="DP-LSSGD: DP-SGD with Laplacian smoothing of the noisy gradient",
    soundness="sound where gradients are clipped, but for Theorem 1, which claims too little for some settings within "
    "its own condition; where a bound is assumed and none enforced (logistic regression), ε = ∞",
    optimizer="sgd",
    claim="theorem",
)
