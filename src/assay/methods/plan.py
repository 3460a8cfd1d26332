"""A plan: everything that decides ε, and what a gradient goes through on its way to the optimizer.

The plan that states ε is the plan that runs: it builds the sampler that draws the batches and the chain that clips and
adds the noise, and its event is what those two say they cost.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from torch import nn

from assay import methods
from assay.accounting import schedules
from assay.accounting.calibrate import most_steps, smallest_noise
from assay.accounting.epsilon import Adjacency, epsilon
from assay.data.sampling import SAMPLERS, Cyclic, Sampler
from assay.errors import ConfigError, check_above_zero
from assay.gradients import clipping
from assay.mechanisms.banded import BandedGaussian
from assay.mechanisms.exact import ExactGaussian, Grid
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.types import Denoiser
from assay.methods import Method, denoise, encode
from assay.methods.chain import Chain
from assay.methods.encode import Encoding
from assay.methods.perturb.mean import Centered
from assay.methods.perturb.mean import parse as parse_center
from assay.methods.stage import Stage, event_of

_LEAST_NOISE = 1e-30  # far from where squares are 0 in floating point; ε is ∞ long before
MOST_STEPS = 2**53  # whole numbers are exact up to here, and events count no further


def _whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(name, value, f"a whole number, {least} or above")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A private training run as its privacy sees it.

    `noise_multiplier` is that of a whole step: where a step releases more than the gradient (a training loss, a count
    for adaptive clipping), each release gets a share s of the step's privacy and noise of multiplier σ/√s; jointly they
    are exactly one Gaussian release of multiplier σ.

    `noise_schedule` lets the noise fall over the run, where `noise_multiplier` is then that of the first steps, or correlates the noise
    of its steps, where batches are drawn in turns (`assay.accounting.schedules`).

    `center` releases the mean of the inputs before training (`assay.methods.perturb.mean`), which the model then subtracts.

    `exact` releases sums of whole numbers with noise drawn exactly (`assay.mechanisms.exact`): the same ε, whose proof
    then covers the arithmetic of sums and noise.

    `encode` and `denoise` add to what the method does before clipping and after the noise. `epsilon_limit` is a ceiling on
    the verified ε, `epsilon_claimed` what a published variant was calibrated to claim, which is no ceiling on anything.
    """

    records: int
    batch_size: float
    steps: int
    noise_multiplier: float
    delta: float
    noise_schedule: str = "constant"
    clip: clipping.Rule = field(default_factory=clipping.Flat)
    micro_batch: int = 1
    center: str | None = None
    sampling: str = "poisson"
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE
    method: Method = field(default_factory=lambda: methods.get("dpsgd"))
    encode: tuple[Encoding, ...] = ()
    denoise: tuple[Denoiser, ...] = ()
    exact: bool = False
    epsilon_limit: float | None = None
    epsilon_claimed: float | None = None

    def __post_init__(self) -> None:
        _whole("records", self.records, 1)
        _whole("steps", self.steps, 1)
        if self.steps > MOST_STEPS:
            raise ConfigError("steps", self.steps, f"at most {MOST_STEPS}")
        _whole("micro_batch", self.micro_batch, 1)
        if not 0 < self.delta < 1:
            raise ConfigError(
                "delta", self.delta, "a number between 0 and 1, both excluded (at most 1/records is usual)"
            )
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ConfigError("noise_multiplier", self.noise_multiplier, "a finite number, 0 or above")
        if 0 < self.noise_multiplier * min(factor for _, factor in self.stretches) < _LEAST_NOISE:
            raise ConfigError(
                "noise_multiplier",
                self.noise_multiplier,
                f"0 for no noise, or {_LEAST_NOISE:g} and above in every step: rounding leaves nothing of less",
            )
        if self.epsilon_limit is not None:
            check_above_zero("epsilon", self.epsilon_limit)
        if self.sampling not in SAMPLERS:
            raise ConfigError("sampling", self.sampling, "one of " + ", ".join(SAMPLERS))
        if self.sampling == "without-replacement" and self.adjacency is not Adjacency.REPLACE_ONE:
            raise ConfigError(
                "adjacency",
                self.adjacency.value,
                "replace-one with sampling without replacement: adding a record changes the number of records, and with it every batch",
            )
        if self.micro_batch > 1 and isinstance(self.clip, clipping.AdaptiveQuantile):
            raise ConfigError(
                "micro_batch",
                self.micro_batch,
                "1 with adaptive clipping: its count bounds what one record does, not what one micro-batch does",
            )
        if isinstance(self.clip, clipping.Assumed) and self.method.variant != "published":
            raise ConfigError(
                "clip", str(self.clip), "a rule that clips; only published variants take a bound for granted"
            )
        if self.center is not None and methods.stage_of(self.method, self) is not None:
            raise ConfigError(
                "center", self.center, f"nothing with {self.method.name}, which releases something of its own first"
            )
        self._check_schedule()
        self._check_exact()
        _ = self.stage  # its own checks
        _ = self.sampler  # its own checks: batch_size against records

    def _check_schedule(self) -> None:
        if isinstance(self.schedule, schedules.Constant):
            return
        if not getattr(self.method, "varying_noise", False):
            raise ConfigError("noise_schedule", self.noise_schedule, f"constant with {self.method.name}")
        if self.sampling == "shuffle":
            raise ConfigError(
                "noise_schedule",
                self.noise_schedule,
                "constant with shuffled epochs, which are charged a whole epoch at a time",
            )
        if len(self.schedule.strategy) > 1 and (self.sampling != "poisson" or self.encode):
            raise ConfigError(
                "noise_schedule",
                self.noise_schedule,
                "Poisson sampling, which the bands turn into one of groups that take turns, and no --encode",
            )

    def _check_exact(self) -> None:
        """Refuse what exact noise is not proven for."""
        if not isinstance(self.exact, bool):
            raise ConfigError("exact", self.exact, "True or False")
        if not self.exact:
            return
        if self.center is not None:
            raise ConfigError(
                "exact", True, "no --center: the mean of the inputs is released with floating-point noise"
            )
        if math.isinf(self.clip.l2) or isinstance(self.clip, clipping.AdaptiveQuantile):
            raise ConfigError(
                "clip", str(self.clip), "flat, per-layer or auto with exact noise: a bound that stays what it is"
            )
        if len(self.schedule.strategy) > 1:
            raise ConfigError("noise_schedule", self.noise_schedule, "constant or decay with exact noise")
        for _, factor in self.stretches:
            self.chain(noise_factor=factor)  # its own checks

    @cached_property
    def schedule(self) -> schedules.NoiseSchedule:
        """How the noise goes from step to step."""
        return schedules.parse(self.noise_schedule)

    @cached_property
    def stretches(self) -> list[tuple[int, float]]:
        """(steps, factor on the noise multiplier), in the order of the run."""
        return self.schedule.stretches(self.steps)

    def noise_factor(self, step: int) -> float:
        """The factor on the noise multiplier in this step, counted from 0."""
        return 1.0 if len(self.stretches) == 1 else schedules.within(self.stretches, step, 1)[0][1]

    @cached_property
    def sampler(self) -> Sampler:
        """Draws the batches and states their amplification."""
        bands = len(self.schedule.strategy)
        if bands > 1:
            return Cyclic(self.records, self.batch_size, bands)
        return SAMPLERS[self.sampling](self.records, self.batch_size)

    def epochs_after(self, steps: int) -> float:
        """How often each record has been used on average."""
        return steps * self.sampler.rate

    def ends_epoch(self, step: int) -> bool:
        """Whether this many steps complete an epoch that one step fewer did not."""
        return math.floor(self.epochs_after(step) + 1e-9) > math.floor(self.epochs_after(step - 1) + 1e-9)

    def fresh_clip(self) -> clipping.Rule:
        """The clipping rule in its initial state (adaptive rules change as they run)."""
        return copy.copy(self.clip)

    def chain(self, gradient_share: float = 1.0, noise_factor: float = 1.0) -> Chain:
        """The step, its gradient release taking this share of the step's privacy, at this factor of the noise schedule."""
        multiplier = self.noise_multiplier * noise_factor / math.sqrt(gradient_share)
        chain = self.method.chain(self, multiplier)
        for encoding in self.encode:
            chain = encoding.applied(chain)
        if len(self.schedule.strategy) > 1:  # plain Gaussian noise is all that a method of varying noise has
            chain = replace(chain, noise=BandedGaussian(multiplier=multiplier, strategy=self.schedule.strategy))
        if self.exact:
            chain = self._made_exact(chain)
        return replace(chain, after=(*chain.after, *denoise.fresh(self.denoise)))

    def _made_exact(self, chain: Chain) -> Chain:
        """The chain with exact noise in the place of floating-point noise of the same multiplier."""
        if (
            type(chain.noise) is not Gaussian
            or chain.noise.reference is not None
            or methods.stage_of(self.method, self)
        ):
            raise ConfigError(
                "exact", True, f"a method that adds Gaussian noise to a clipped sum, and {self.method.name} does more"
            )
        return replace(chain, noise=ExactGaussian(multiplier=chain.noise.multiplier, grid=Grid(chain.clip.l2)))

    def for_model(self, model: nn.Module) -> Plan:
        """The plan for this model: methods may need to know its layers and their sizes."""
        return replace(self, method=methods.for_model(self.method, model))

    def for_layers(self, layers: list[str]) -> Plan:
        """The plan for a model with these layers: methods that clip them one by one need to know how many there are."""
        return replace(self, method=methods.for_layers(self.method, layers))

    @cached_property
    def step_event(self) -> DpEvent:
        """What one step releases about its batch, before amplification; of a schedule, the first step, which has the most noise."""
        return self.chain().event()

    @cached_property
    def stage(self) -> Stage | None:
        """What is released before the first step, if anything: by the method, or the mean of the inputs."""
        if self.center is not None:
            return Centered(parse_center(self.center), self.records)
        return methods.stage_of(self.method, self)

    @property
    def stage_option(self) -> tuple[str, str]:
        """Which option asked for the stage, and its value: for errors about it."""
        return ("method", self.method.name) if self.center is None else ("center", self.center)

    @cached_property
    def stage_event(self) -> DpEvent:
        """What that costs."""
        return ComposedDpEvent([]) if self.stage is None else event_of(self.stage)

    def steps_event(self, steps: int, start: int = 0) -> DpEvent:
        """What this many steps from step `start` on cost, without what comes before them: each stretch of equal noise by itself."""
        if len(self.stretches) == 1:
            return self.sampler.compose(self.step_event, steps)
        return ComposedDpEvent(
            [
                self.sampler.compose(self.chain(noise_factor=factor).event(), count)
                for count, factor in schedules.within(self.stretches, start, steps)
            ]
        )

    def event(self, steps: int | None = None) -> DpEvent:
        """What the run costs with `steps` steps (all of them by default)."""
        steps_event = self.steps_event(self.steps if steps is None else steps)
        return steps_event if self.stage is None else ComposedDpEvent([self.stage_event, steps_event])

    def epsilon(self, delta: float | None = None, *, steps: int | None = None) -> float:
        """The verified ε of the plan."""
        return epsilon(self.event(steps), self.delta if delta is None else delta, self.adjacency)

    def claimed(self, steps: int | None = None) -> float:
        """The ε that the method's paper would report for this run, or for one that ended after so many steps."""
        if steps == 0:
            return 0.0
        if steps is None or not isinstance(self.schedule, schedules.Constant):
            return self.method.claimed(
                self
            )  # a schedule goes over a whole run: what a part of it would claim no paper says
        return self.method.claimed(replace(self, steps=steps))

    def targeted(self) -> float:
        """The ε that a target is about: the verified one, or for a published variant the claimed one."""
        return self.claimed() if self.method.variant == "published" else self.epsilon()

    @classmethod
    def calibrated(
        cls,
        *,
        epsilon: float,
        delta: float,
        records: int,
        batch_size: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        noise_multiplier: float | None = None,
        **rest: Any,
    ) -> Plan:
        """The plan whose verified ε is in [0.99 ε, ε]: finds what is left out of noise_multiplier, epochs or steps,
        and batch_size. For a published variant it is the claimed ε.

        Steps and batch sizes are whole numbers, so the largest one within ε is taken, which may fall further below it. Full batches are
        all records, given or not.
        """
        check_above_zero("epsilon", epsilon)
        if epochs is not None and steps is not None:
            raise ConfigError("steps", steps, "epochs or steps, not both")
        length = epochs if steps is None else steps
        if batch_size is None and rest.get("sampling") == "full":
            if noise_multiplier is not None and length is not None:
                raise ConfigError(
                    "sampling",
                    "full",
                    "noise_multiplier or epochs/steps left out, to be found: there is no batch size to find where the batch is all records",
                )
            batch_size = records
        if [noise_multiplier, length, batch_size].count(None) != 1:
            raise ConfigError(
                "calibrated",
                {
                    "noise_multiplier": noise_multiplier,
                    "epochs": epochs,
                    "steps": steps,
                    "batch_size": batch_size,
                },
                "exactly one of noise_multiplier, epochs/steps and batch_size left out, to be found",
            )

        def made(noise: float, size: float, count: int | None) -> Plan:
            start = cls(
                records=records,
                batch_size=size,
                steps=count or 1,
                noise_multiplier=noise,
                delta=delta,
                **rest,
            )
            published = start.method.variant == "published"
            start = replace(
                start, epsilon_limit=None if published else epsilon, epsilon_claimed=epsilon if published else None
            )
            start._check_center(epsilon)
            return start if count is not None else replace(start, steps=steps_for(epochs, start.sampler))

        if batch_size is None:
            assert noise_multiplier is not None
            bands = len(schedules.parse(rest.get("noise_schedule", "constant")).strategy)
            largest = max(1, records // bands)  # a batch is drawn from one of the bands
            size = most_steps(lambda n: made(noise_multiplier, n, steps).targeted(), epsilon, limit=largest)
            if size == 0:
                raise ConfigError(
                    "epsilon",
                    epsilon,
                    f"more than that: a batch of one record already spends {made(noise_multiplier, 1, steps).targeted():.4g}",
                )
            return made(noise_multiplier, size, steps)
        if length is None:
            assert noise_multiplier is not None
            base = made(noise_multiplier, batch_size, 1)
            count = most_steps(lambda n: replace(base, steps=n).targeted(), epsilon)
            if count == 0:
                raise ConfigError("epsilon", epsilon, f"more than that: one step already spends {base.targeted():.4g}")
            return replace(base, steps=count)
        template = made(1.0, batch_size, steps)
        return replace(
            template,
            noise_multiplier=smallest_noise(lambda z: replace(template, noise_multiplier=z).targeted(), epsilon),
        )

    def _check_center(self, allowed: float) -> None:
        """Refuse a mean that alone costs more than is allowed: no noise of the steps makes up for it."""
        if self.center is None or self.method.variant == "published":
            return
        alone = epsilon(self.stage_event, self.delta, self.adjacency)
        if alone > allowed:
            raise ConfigError(
                "center",
                self.center,
                f"more noise: what it releases before training costs ε = {alone:.4g} by itself, and {allowed:g} is allowed in all",
            )

    def to_json(self) -> dict[str, Any]:
        """Everything that is needed to make the plan again."""
        return {
            "records": self.records,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
            "noise_schedule": self.noise_schedule,
            "clip": str(self.clip),
            "micro_batch": self.micro_batch,
            "center": self.center,
            "sampling": self.sampling,
            "adjacency": self.adjacency.value,
            "method": self.method.name,
            "options": methods.options(self.method),
            "encode": [encode.describe(part) for part in self.encode],
            "denoise": [denoise.describe(part) for part in self.denoise],
            "epsilon_limit": self.epsilon_limit,
            "epsilon_claimed": self.epsilon_claimed,
            **({"exact": True} if self.exact else {}),  # not in plans of earlier versions
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The plan that `to_json` described."""
        known = dict(data)
        known["clip"] = clipping.parse(known["clip"])
        known["adjacency"] = Adjacency(known["adjacency"])
        known["method"] = methods.get(known["method"], **known.pop("options"))
        known["encode"] = encode.parse_all(known["encode"])
        known["denoise"] = denoise.parse_all(known["denoise"])
        return cls(**known)


def steps_for(epochs: float | None, sampler: Sampler) -> int:
    """Steps in this many epochs, at least one."""
    if epochs is None or not (math.isfinite(epochs) and epochs > 0):
        raise ConfigError("epochs", epochs, "a number above 0")
    steps = epochs / sampler.rate
    if steps > MOST_STEPS:
        raise ConfigError(
            "epochs", epochs, f"at most {MOST_STEPS * sampler.rate:g} with such batches: {MOST_STEPS} steps"
        )
    return max(1, round(steps))
