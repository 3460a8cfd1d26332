"""GReDP and Spectral-DP: noise in the frequency domain.

Wang, Jiang, Guo, Cai, Wang and Jia: "Training with Differential Privacy: A Gradient-Preserving Noise Reduction Approach
with Provable Security", 2024, arXiv:2409.11663. `assay.methods.spectral` says what we follow for Spectral-DP.

Both clip the gradient of each of L layers at c in the unitary Fourier domain and add noise to the coefficients, once
per step. GReDP keeps the real part of the inverse transform; Spectral-DP keeps a share ρ of the frequencies.
Convolutions are transformed over the kernel (`domain=kernel`) or over the whole correlation map (`full`, Eq. 14-16).
Fully connected layers are meant to be block-circulant (Eq. 17-20, `assay.models.circulant`).

How we read GReDP. Algorithm 2 clips each layer at c, draws noise of scale σc inside the loop over records, and does not
say how the L layers are charged. We draw once per step, as Eq. 7 does. Claimed ε: the Rényi accountant at noise
multiplier σ, as if the L layers were one layer clipped at c, and (Theorem 1) as if half the noise protected as well as
all of it. `readings` gives what other readings would be worth.

What is true: L layers together move by c√L. With noise of scale σc the released vector has noise of standard deviation
σc·a in its even part and σc·b in its odd part (`assay.mechanisms.spectral`):

| noise form | a, b | verified multiplier |
|---|---|---|
| `complex` (Theorem 1: ½σ²c² in each part) | √½, √½ | σ/√(2L) |
| `real` (Corollary 1: real-valued σ²c²) | 1, 0 | 0: differences of mirrored coordinates have no noise, ε = ∞ |
| `a/b` (Theorem 2) | a, b | σ·min(a, b)/√L |
| `hermitian` (the transform of real white noise) | 1, 1 | σ/√L |

How Spectral-DP charges its layers is told in `assay.methods.spectral`.

In the full domain with `real` noise the mirrored coordinates lie outside the corner that becomes the kernel's gradient.
Circulant layers have no such outside, so the form counts as ∞ everywhere.

`sound` adds white noise of multiplier σ relative to the joint bound C = c√L. In distribution this is DP-SGD with
per-layer clipping. It works in the kernel's domain unless told otherwise. With `domain=full` (Spectral-DP: also
`filter=first`) it does what the published form does, and the two differ in ε alone. What remains of the gain comes from
block-circulant layers, which have fewer parameters. The filter is post-processing: it cannot lower ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from assay.accounting.adjacency import Adjacency
from assay.accounting.epsilon import epsilon, rdp_epsilon
from assay.errors import ConfigError, one_of
from assay.gradients.clip_rules.per_layer import PerLayer
from assay.mechanisms.gaussian import Gaussian, gaussian_event
from assay.mechanisms.spectral import Spectral
from assay.methods import Method, check_variant
from assay.methods.chain import Chain
from assay.methods.denoise.lowpass import LowPass
from assay.methods.encode.spectral import rules

if TYPE_CHECKING:
    from assay.methods.plan import Plan

_FILTERS = ("conjugates", "first")
_FORMS = {"complex": (math.sqrt(0.5), math.sqrt(0.5)), "real": (1.0, 0.0), "hermitian": (1.0, 1.0)}


@dataclass(frozen=True, kw_only=True)
class FrequencyDomain(Method):
    """Clip each layer, add noise to its Fourier coefficients, keep the real part of a share ρ of them."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("variant", "noise_form", "domain", "rho", "filter", "groups")

    noise_form: str
    rho: float
    domain: str | None = None
    groups: int | None = None
    filter: str | None = None
    """Which coefficients are kept: "conjugates" (each with its conjugate) or "first" (the first ones, as Spectral-DP's
    public code does). None for `first` if the method publishes that and the variant is `published`.
    """
    jointly: bool = False
    """Whether the published noise is relative to what all layers move together, and not to one layer."""
    one_sided: bool = False
    """Whether the published filter keeps the first coefficients only (`assay.methods.denoise.lowpass`)."""

    def __post_init__(self) -> None:
        check_variant(self.variant)
        a, b = self._parts()
        if self.variant == "sound" and a != b:
            raise ConfigError(
                "noise_form",
                self.noise_form,
                "complex or hermitian with variant sound (both are white noise there); other forms give some "
                "directions less noise than others, and exist as variant published",
            )
        if self.groups is not None and self.groups < 1:
            raise ConfigError("groups", self.groups, "the number of separately clipped layers, 1 or above")
        if self.filter not in (None, *_FILTERS):
            raise ConfigError("filter", self.filter, one_of(self.filter, _FILTERS))
        LowPass(rho=self.rho)
        rules(self._domain(), maps=False)

    @property
    def clip(self) -> PerLayer:
        """Every layer is clipped by itself."""
        return PerLayer(1.0)

    @property
    def layers(self) -> int | None:
        """L, once it is known."""
        return self.groups

    @property
    def needs_layers(self) -> bool:
        """Yes, until L is known."""
        return self.groups is None

    def for_layers(self, layers: list[str]) -> FrequencyDomain:
        """The method with L from the model."""
        if self.groups is not None and self.groups != len(layers):
            accepted = f"{len(layers)}: the model has {len(layers)} layers with parameters"
            raise ConfigError("groups", self.groups, accepted)
        return replace(self, groups=len(layers))

    def chain(self, plan: Plan, noise_multiplier: float) -> Chain:
        """Per-layer clipping, noise in the frequency domain, the filter if there is one."""
        if not isinstance(plan.clip, PerLayer):
            raise ConfigError(
                "clip", str(plan.clip), f"per-layer:C with {self.name}: every layer is clipped by itself, at c = C/√L"
            )
        a, b = self._parts()
        one_sided = self.filter == "first" if self.filter else self.one_sided and self.variant == "published"
        if self.variant == "sound":
            noise: Gaussian | Spectral = Gaussian(multiplier=noise_multiplier)
        else:
            noise = Spectral(multiplier=noise_multiplier, reference=plan.clip.bound / self._over_claimed(), a=a, b=b)
        return Chain(
            clip=plan.fresh_clip(),
            noise=noise,
            micro=plan.micro_batch,
            # Only coloured noise and averages of micro-batches need whole maps.
            rules=rules(
                self._domain(), maps=not noise.white or plan.micro_batch > 1, rho=self.rho, one_sided=one_sided
            ),
            decode=(LowPass(rho=self.rho, one_sided=one_sided),) if self.rho < 1 else (),
        )

    def claimed(self, plan: Plan) -> float:
        """The Rényi accountant at the paper's σ: the noise divided by what the paper takes for the bound."""
        sigma = plan.noise_multiplier
        if self.variant == "sound":
            sigma *= self._over_claimed() / self._parts()[0]
        return rdp_epsilon(plan.sampler.compose(GaussianDpEvent(sigma), plan.steps), plan.delta, plan.adjacency)

    def _parts(self) -> tuple[float, float]:
        """The noise in the real and in the imaginary part of a coefficient, relative to σc."""
        if self.noise_form in _FORMS:
            return _FORMS[self.noise_form]
        try:
            a, b = (float(number) for number in self.noise_form.split("/"))
        except ValueError:
            raise ConfigError("noise_form", self.noise_form, f"{', '.join(_FORMS)}, or a/b such as 0.6/0.8") from None
        Spectral(multiplier=1.0, reference=1.0, a=a, b=b)
        return a, b

    def _domain(self) -> str:
        """The papers work on the whole map. In the kernel's domain clipping takes less away."""
        return self.domain or ("full" if self.variant == "published" else "kernel")

    def _over_claimed(self) -> float:
        """What all layers move together, over what the paper takes for the bound."""
        return 1.0 if self.jointly else math.sqrt(self._layers())

    def _layers(self) -> int:
        if self.groups is None:
            raise ConfigError(
                "groups", None, f"the number of layers that {self.name} clips (a run takes it from its model)"
            )
        return self.groups


def readings(
    *, records: int, batch_size: float, steps: int, layers: int, delta: float, sigma: float
) -> dict[str, float]:
    """What GReDP's noise is worth, verified, under each reading of the paper that we know of.

    Args:
        records: How many records there are.
        batch_size: The expected size of a batch.
        steps: How many steps the run takes.
        layers: L, the number of layers clipped one by one.
        delta: δ.
        sigma: The paper's σ.

    Returns:
        The verified ε by reading.
    """
    multipliers = {
        "half the noise, layers clipped together": sigma / math.sqrt(2),
        "all the noise, layers charged as one": sigma / math.sqrt(layers),
        "half the noise, layers charged as one": sigma / math.sqrt(2 * layers),
        "the same with noise for every record (Algorithm 2 as printed)": sigma * math.sqrt(batch_size / (2 * layers)),
        "real-valued noise on circulant layers (Corollary 1)": 0.0,
    }
    rate = batch_size / records
    return {
        name: epsilon(
            SelfComposedDpEvent(PoissonSampledDpEvent(rate, gaussian_event(multiplier)), steps),
            delta,
            Adjacency.ADD_OR_REMOVE_ONE,
        )
        for name, multiplier in multipliers.items()
    }


METHOD = FrequencyDomain(
    name="gredp",
    summary="GReDP: each layer's gradient clipped and noised in the frequency domain, imaginary part dropped",
    soundness="not sound as we read it: half the noise at the old ε, L layers charged as one (verified multiplier "
    "σ/√(2L)); with real-valued noise ε = ∞",
    noise_form="complex",
    rho=1.0,
)
