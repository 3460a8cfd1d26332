"""AFRRS: noise by the relevance of input regions.

Wang, Xie, Tan, Li and Wang: "Preserving Differential Privacy in Deep Learning Based on Feature Relevance Region
Segmentation", IEEE Transactions on Emerging Topics in Computing 12(1), 2024, doi:10.1109/TETC.2023.3244174.

Published (Algorithms 1 and 2), in four steps. The relevance of the input features, by layer-wise propagation, gets
Laplace noise (ε1). Features of similar relevance form regions. Every record's features get Laplace noise, less where
relevance is high (ε2). The cross-entropy is expanded to a quadratic whose coefficients get Laplace noise (ε3). Claimed:
ε1 + ε2 + ε3, whatever the number of steps (Theorem 4).

What is true (`assay.methods.perturb` has the arguments):
- Relevance: the explaining network is trained on the private records without noise (`explain=records`), maps are not
  bounded, and standardisation uses the data's extremes. No ε holds. With another source (`private`, `data:NAME`,
  `file:PATH`) maps are clipped, and ε1 holds in addition to the cost of the network.
- Features: a local ε of Σ_j 1/b_j = |L| ε2/(2|h_0|), paid once.
  Where records share a draw (`shared`), no ε holds.
- Labels with `objective=step` (the paper's) or `once`: the noise does not reach the gradients of the layers below the
  last. No ε holds. With `objective=record` the label coefficient gets noise of the same scale, once per record. That
  gives a local ε of 2|L| ε3/Δ_F, and training is post-processing.

The noise multiplier z of a published run scales all three: ε_i = w_i/(z Σw) with `split` = w1/w2/w3, so that 1/z is
claimed. The paper names neither batch size nor split, and leaves more open: `shared`, `noisy`, `size`, `test` and
`bias` (`assay.methods.perturb.readings`). `experiments/afrrs` has the accuracy and the verified ε of every reading.

Sound: the relevance has bounded maps and comes from a public network, or a private one whose cost is charged too. The
model scales its inputs by their region's share of the relevance. DP-SGD does the rest. `share` of the target ε goes to
the maps (of ε = 1, if noise is given and no target). With `explain=private` the network also takes that share of the
steps, at the run's noise. Claimed: Rényi composition of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from assay.accounting.epsilon import rdp_epsilon
from assay.errors import ConfigError, one_of
from assay.gradients.clip_rules import ClipRule
from assay.gradients.clip_rules.assumed import Assumed
from assay.gradients.clip_rules.flat import Flat
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.objective import AlreadyReleased, NoisyCoefficients
from assay.mechanisms.types import Mechanism
from assay.methods import Method, check_variant
from assay.methods.chain import Chain
from assay.methods.dpsgd import DPSGD
from assay.methods.perturb.explain import FORMS, Explainer
from assay.methods.perturb.inputs import OUTSIDE
from assay.methods.perturb.objective import objective_sensitivity
from assay.methods.perturb.readings import CHOICES, Reading
from assay.methods.perturb.segmentation import Segmentation
from assay.methods.perturb.stages import OBJECTIVES, NoisyRecords, ScaledByRelevance, sizes

if TYPE_CHECKING:
    from torch import nn

    from assay.methods.plan import Plan
    from assay.methods.stage import Stage


@dataclass(frozen=True, kw_only=True)
class AFRRS(Method):
    """Relevance regions; then noise on records and objective (published), or scaled inputs and DP-SGD (sound)."""

    OPTIONS: ClassVar[tuple[str, ...]] = (
        *("variant", "explain", "gamma", "share"),
        *("split", "objective", "outside", "units", "hidden", "classes"),
        *CHOICES,
    )

    name: str = "afrrs"
    summary: str = (
        "AFRRS: input regions by private relevance; published: noise on inputs and objective; "
        "sound: scaled inputs, DP-SGD"
    )
    soundness: str = (
        "not sound as we read it: relevance comes from a network trained without noise, and gradients below the last "
        "layer show the labels bare (ε = ∞); feature noise is local, with ε = |L| ε2/(2|h0|)"
    )
    explain: str | None = None
    gamma: float = 0.05
    share: float = 0.1
    split: str = "1/1/1"
    objective: str = "step"
    outside: str = "refuse"
    units: int = 16
    hidden: int = 32
    classes: int = 10
    shared: str = "record"
    noisy: str = "plain"
    size: str = "batch"
    test: str = "plain"
    bias: str = "noisy"

    def __post_init__(self) -> None:
        check_variant(self.variant)
        Segmentation(explainer=Explainer(source=self._source), epsilon=1.0, gamma=self.gamma)
        if self._source == "records" and self.variant == "sound":
            raise ConfigError("explain", self.explain, FORMS)
        if not 0 < self.share < 1:
            raise ConfigError("share", self.share, "a number between 0 and 1, both excluded")
        if self.objective not in OBJECTIVES:
            raise ConfigError("objective", self.objective, one_of(self.objective, OBJECTIVES))
        if self.outside not in OUTSIDE:
            raise ConfigError("outside", self.outside, one_of(self.outside, OUTSIDE))
        if self.reading != Reading() and self.variant == "sound":
            raise ConfigError("variant", self.variant, f"published with {', '.join(CHOICES)}: they are readings of it")
        for name in ("units", "hidden", "classes"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a whole number, 1 or above")
        self._weights()

    @property
    def reading(self) -> Reading:
        """How the published algorithm is read where the paper leaves room."""
        return Reading(**{name: getattr(self, name) for name in CHOICES})

    @property
    def clip(self) -> ClipRule:
        """The published variant clips nothing."""
        return Assumed(1.0) if self.variant == "published" else Flat(0.5)

    def model_for(self, input_shape: tuple[int, ...]) -> str | None:
        """The paper's networks (Tables 1 and 2): the published objective needs a last hidden layer in [0, 1]."""
        if self.variant == "sound" or len(input_shape) != 3:
            return None
        return "afrrs-mnist" if input_shape[0] == 1 else "afrrs-cifar10"

    def for_model(self, model: nn.Module) -> AFRRS:
        """The method with the sizes of this model, on which the published noise depends."""
        if self.variant == "sound":
            return self
        units, hidden, classes = sizes(model)
        return replace(self, units=units, hidden=hidden, classes=classes)

    def stage(self, plan: Plan) -> Stage:
        """What is released before training."""
        if self.variant == "sound":
            target = 1.0 if plan.epsilon_limit is None else plan.epsilon_limit
            return ScaledByRelevance(segmentation=self._segmentation(plan, self.share * target))
        epsilon1, epsilon2, epsilon3 = self._epsilons(plan)
        return NoisyRecords(
            segmentation=self._segmentation(plan, epsilon1),
            epsilon2=epsilon2,
            epsilon3=epsilon3,
            objective=self.objective,
            outside=self.outside,
            batch_size=plan.batch_size,
            count=plan.records,
            units=self.units,
            hidden=self.hidden,
            classes=self.classes,
            adjacency=plan.adjacency,
            reading=self.reading,
        )

    def chain(self, plan: Plan, noise_multiplier: float) -> Chain:
        """Sound: as DP-SGD. Published: plain sums, of released records or with noise on the loss's coefficients."""
        noise: Mechanism = Gaussian(multiplier=noise_multiplier)
        if self.variant == "published":
            if plan.clip.assumed is None:
                raise ConfigError("clip", str(plan.clip), "assumed:1.0 with variant published: the paper clips nothing")
            noise = AlreadyReleased()
            if self.objective != "record":
                # (1/|L|) Lap for each record of a batch, read as one draw for the batch
                share = plan.batch_size / self.reading.size_of(plan.batch_size, plan.records)
                scale = share * objective_sensitivity(self.classes, self.hidden) / self._epsilons(plan)[2]
                noise = NoisyCoefficients(scale=scale, once=self.objective == "once")
        return Chain(clip=plan.fresh_clip(), micro=plan.micro_batch, noise=noise)

    def claimed(self, plan: Plan) -> float:
        """Theorem 4, or for the sound variant Rényi composition."""
        if self.variant == "published":
            return sum(self._epsilons(plan))
        return rdp_epsilon(plan.event(), plan.delta, plan.adjacency)

    @property
    def _source(self) -> str:
        return self.explain or ("records" if self.variant == "published" else "private")

    def _segmentation(self, plan: Plan, epsilon: float) -> Segmentation:
        steps = None
        if self._source == "private":
            steps = replace(
                plan,
                steps=max(1, round(self.share * plan.steps)),
                method=DPSGD(),
                clip=Flat(0.5),
                micro_batch=1,
                encode=(),
                denoise=(),
                epsilon_limit=None,
                epsilon_claimed=None,
            )
        return Segmentation(explainer=Explainer(source=self._source, steps=steps), epsilon=epsilon, gamma=self.gamma)

    def _weights(self) -> tuple[float, float, float]:
        try:
            first, second, third = (float(weight) for weight in self.split.split("/"))
        except ValueError:
            first = second = third = -1.0
        if not all(0 < weight < float("inf") for weight in (first, second, third)):
            raise ConfigError("split", self.split, "three numbers above 0 such as 1/1/1: the shares of ε1, ε2 and ε3")
        return first, second, third

    def _epsilons(self, plan: Plan) -> tuple[float, float, float]:
        if plan.noise_multiplier == 0:
            raise ConfigError("noise_multiplier", 0.0, "a number above 0 with variant published: 1/ε is claimed")
        first, second, third = self._weights()
        unit = 1 / (plan.noise_multiplier * (first + second + third))
        return first * unit, second * unit, third * unit


METHOD = AFRRS()
