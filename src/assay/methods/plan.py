"""A plan: everything that decides ε, and how a gradient gets from the records to the optimizer.

The plan that states ε is the plan that runs. It builds the sampler that draws the batches and the chain that clips and
adds the noise, and its event is the cost that those two state.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from assay import methods
from assay._util.spec import Converted
from assay.accounting import events, schedules
from assay.accounting.epsilon import Adjacency, epsilon
from assay.accounting.groups import SIZES, enlarged, group_epsilons
from assay.accounting.schedules import Constant, NoiseSchedule
from assay.accounting.tradeoff import RATES, TradeOff, tradeoff
from assay.data import samplers
from assay.data.samplers import Sampler
from assay.data.samplers.poisson import Poisson
from assay.data.units import Unit
from assay.errors import ConfigError, check_above_zero, check_fields, check_number, one_of
from assay.gradients import clip_rules
from assay.gradients.clip_rules import ClipRule
from assay.mechanisms.banded import BandedGaussian
from assay.mechanisms.buffered import BufferedGaussian
from assay.mechanisms.correlated import Correlated
from assay.mechanisms.exact import ExactGaussian, Grid
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.types import Denoiser
from assay.methods import Method, targets
from assay.methods import columns as estimated
from assay.methods import denoise as denoising
from assay.methods import encode as encoding
from assay.methods.chain import Chain
from assay.methods.columns import Columns
from assay.methods.encode import Encoding
from assay.methods.perturb import mean
from assay.methods.perturb.mean import Mean
from assay.methods.selecting import Selection
from assay.methods.stage import Stage, event_of
from assay.methods.targets import MOST_STEPS

if TYPE_CHECKING:
    from torch import nn

_LEAST_NOISE = 1e-30  # its square is far from 0 in floating point; ε is ∞ for much larger noise
_DELTA = "a number between 0 and 1, both excluded (at most 1/records is usual)"

# Defaults that `Plan` and `Plan.calibrated` share. All are immutable.
_SCHEDULE, _METHOD = Constant(), "dpsgd"


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(name, value, f"a whole number, {least} or above")


def _check_kind(name: str, value: object, kind: type[Any] | tuple[type[Any], ...], accepted: str) -> None:
    if not isinstance(value, kind):
        raise ConfigError(name, value, accepted)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything about a training run that decides its privacy.

    Settings are objects. The module of each has a `parse` for its text, as in the command line and in JSON:
    `assay.accounting.schedules.parse("decay:levels=4")`. For `clip` and `method` the text will do.

    Attributes:
        records: the number of records.
        batch_size: the expected size of a batch, by which sums are divided.
        steps: the number of steps.
        noise_multiplier: the noise σ of a whole step, relative to what one record can move its sum by. A step may
            release more than the gradient (a training loss, a count for adaptive clipping). Each release then gets a
            share s of the step's privacy and noise of multiplier σ/√s. Together they are exactly one Gaussian release
            of multiplier σ.
        delta: δ.
        noise_schedule: lets the noise fall over the run, where `noise_multiplier` is that of the first steps, or
            correlates the noise of its steps, where batches are drawn in turns (`assay.accounting.schedules`).
        method: how a step works (`assay.methods`), or its name: `dpadam`.
        clip: how a record's gradient is bounded: a rule (`assay.gradients.clipping`), its text (`auto:0.5`), or a
            number, the bound of flat clipping. None is the method's own, for most `flat:0.5`.
        micro_batch: the number of records whose gradients are averaged before clipping.
        center: releases the mean of the inputs before training, and the model subtracts it
            (`assay.methods.perturb.mean`).
        columns: what was released about the columns of a table before training, so that its rows could be prepared
            (`assay.methods.columns`). `assay train --schema auto` makes and charges that release.
        sampling: the sampler's class (`assay.data.sampling`).
        adjacency: which data sets are neighbours.
        encode: applied before clipping, in this order, after what the method does there (`assay.methods.encode`).
        denoise: applied after the noise, in this order, after what the method does there (`assay.methods.denoise`).
        unit: who is protected where one person has several rows (`assay.data.units`). Where persons are sampled,
            `records` and `batch_size` count persons, and a person's rows are clipped as one. Where rows are sampled
            they count rows, and ε is that of a person's rows together.
        exact: releases sums of whole numbers with noise drawn exactly (`assay.mechanisms.exact`). ε is the same, and
            its proof also covers the arithmetic of sums and noise.
        epsilon_limit: a ceiling on the verified ε.
        epsilon_claimed: the ε that a published variant was calibrated to claim. It limits nothing.

    Raises:
        ConfigError: a setting has another type or is out of range, or two do not fit together.

    >>> plan = Plan(records=60_000, batch_size=512, steps=1000, noise_multiplier=1.0, delta=1e-5)
    >>> round(plan.epsilon(), 2)
    1.54
    """

    records: int
    batch_size: float
    steps: int
    noise_multiplier: float
    delta: float
    noise_schedule: NoiseSchedule = _SCHEDULE
    method: Converted[Method | str, Method] = Converted(methods.METHODS.method_of, default=_METHOD)
    clip: Converted[ClipRule | float | str | None, ClipRule] = Converted(clip_rules.rule_of, default=None)
    micro_batch: int = 1
    center: Mean | None = None
    columns: Columns | None = None
    sampling: type[Sampler] = Poisson
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE
    encode: Sequence[Encoding] = ()
    denoise: Sequence[Denoiser] = ()
    unit: Unit | None = None
    exact: bool = False
    epsilon_limit: float | None = None
    epsilon_claimed: float | None = None

    def __post_init__(self) -> None:
        if self.clip is None:
            object.__setattr__(self, "clip", self.method.clip)
        self._check_parts()
        object.__setattr__(self, "encode", tuple(self.encode))
        object.__setattr__(self, "denoise", tuple(self.denoise))
        self._check_numbers()
        self._check_together()
        self._check_schedule()
        self._check_exact()
        _ = self.stage  # its own checks
        _ = self.sampler  # its own checks: batch_size against records
        _ = self.selection  # its own checks
        self._check_unit()

    def _check_parts(self) -> None:
        """Refuse settings of another type: a text would be compared with objects, and ε would be wrong."""
        _check_kind("adjacency", self.adjacency, Adjacency, "one of " + ", ".join(map(str, Adjacency.__members__)))
        accepted = "a noise schedule such as Decay(levels=4); assay.accounting.schedules.parse reads a text"
        _check_kind("noise_schedule", self.noise_schedule, NoiseSchedule, accepted)
        if self.center is not None:
            _check_kind(
                "center", self.center, Mean, "Mean(noise=40.0) or so; assay.methods.perturb.mean.parse reads a text"
            )
        if self.columns is not None:
            _check_kind("columns", self.columns, Columns, "a Columns, such as Columns(noise=12.5, count=14)")
        if samplers.SAMPLERS.get(getattr(self.sampling, "name", "")) is not self.sampling:
            accepted = ", ".join(kind.__name__ for kind in samplers.SAMPLERS.values())
            raise ConfigError("sampling", self.sampling, f"a sampler's class, one of {accepted}")
        for name, parts, member in (("encode", self.encode, "applied"), ("denoise", self.denoise, "needs_white")):
            if isinstance(parts, str) or not isinstance(parts, Sequence) or not all(hasattr(p, member) for p in parts):
                raise ConfigError(name, parts, f"a list of objects; assay.{name}.parse reads the text of one")

    def _check_numbers(self) -> None:
        _check_whole("records", self.records, 1)
        _check_whole("steps", self.steps, 1)
        if self.steps > MOST_STEPS:
            raise ConfigError("steps", self.steps, f"at most {MOST_STEPS}")
        _check_whole("micro_batch", self.micro_batch, 1)
        for name in ("batch_size", "delta", "noise_multiplier"):
            check_number(name, getattr(self, name), "a number")
        if not 0 < self.delta < 1:
            raise ConfigError("delta", self.delta, _DELTA)
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

    def _check_together(self) -> None:
        if self.sampling.replaces and self.adjacency is not Adjacency.REPLACE_ONE:
            raise ConfigError(
                "adjacency",
                self.adjacency.value,
                f"replace-one with sampling {self.sampling.name}: adding a record changes the number of records, and "
                "with it every batch",
            )
        if self.micro_batch > 1 and self.clip.queries:
            raise ConfigError(
                "micro_batch",
                self.micro_batch,
                "1 with adaptive clipping: its count bounds what one record does, not what one micro-batch does",
            )
        if self.clip.assumed is not None and not self.method.published:
            raise ConfigError(
                "clip", str(self.clip), "a rule that clips; only published variants take a bound for granted"
            )
        if self.columns is not None and self.method.variant == "published":
            raise ConfigError("variant", "published", "sound where columns were estimated: no paper claims that")
        if self.center is not None and self.method.stage(self) is not None:
            raise ConfigError(
                "center",
                mean.describe(self.center),
                f"nothing with {self.method.name}, which releases something of its own first",
            )

    def _check_schedule(self) -> None:
        if isinstance(self.noise_schedule, Constant):
            return
        said = schedules.describe(self.noise_schedule)
        if not self.method.varying_noise:
            raise ConfigError("noise_schedule", said, f"constant with {self.method.name}")
        if self.sampling.by_epoch:
            raise ConfigError(
                "noise_schedule", said, "constant with shuffled epochs, which are charged a whole epoch at a time"
            )
        _ = self.sampling(self.records, self.batch_size)  # its checks, before groups are made of the records
        longest = self.schedule.longest
        if longest is not None and self.steps > longest:
            raise ConfigError("noise_schedule length", longest, f"at least the {self.steps} steps of the run")
        if self.bands > 1 and (self.encode or self._in_turns is None):
            raise ConfigError(
                "noise_schedule",
                said,
                "Poisson sampling, which the bands turn into one of groups that take turns, and no --encode",
            )

    def _check_exact(self) -> None:
        """Refuse settings for which exact noise is not proved."""
        _check_kind("exact", self.exact, bool, "True or False")
        if not self.exact:
            return
        if self.center is not None:
            raise ConfigError("exact", True, "no --center: that mean is released with floating-point noise")
        if self.columns is not None:
            raise ConfigError("exact", True, "a declared schema: an estimate is released with floating-point noise")
        if math.isinf(self.clip.l2) or self.clip.queries:
            raise ConfigError("clip", str(self.clip), "a bound that is finite and stays what it is, with exact noise")
        if self.bands > 1:
            said = schedules.describe(self.noise_schedule)
            raise ConfigError("noise_schedule", said, "constant or decay with exact noise")
        for _, factor in self.stretches:
            self.chain(noise_factor=factor)  # its own checks

    def _check_unit(self) -> None:
        """Refuse what is not proven for persons with several rows."""
        unit = self.unit
        if unit is None:
            return
        _check_kind("unit", unit, Unit, "a Unit, such as Unit(name='patient_id', persons=500, rows=4)")
        if self.method.published:
            raise ConfigError("variant", self.method.variant, f"sound with a unit: no paper claims anything for {unit}")
        if self.stage is not None:
            name, value = self.stage_option
            raise ConfigError(
                name, value, f"nothing that is released about rows before training, where the unit is {unit}"
            )
        if self.micro_batch > 1:
            raise ConfigError("micro_batch", self.micro_batch, f"1 where the unit is {unit}")
        if unit.whole:
            self._check_whole_persons(unit)
        else:
            self._check_rows_together(unit)

    def _check_whole_persons(self, unit: Unit) -> None:
        if unit.persons != self.records:
            raise ConfigError("records", self.records, f"{unit.persons}, the number of persons: persons are sampled")
        if self.exact:
            raise ConfigError(
                "exact", True, "a row as the unit, or unit_sampling rows: sums over persons are not exact"
            )
        if not self.method.needs_layers and self.chain().rules:
            raise ConfigError(
                "method", self.method.name, "one that does not work on whole maps of a layer, where persons are sampled"
            )

    def _check_rows_together(self, unit: Unit) -> None:
        if self.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
            raise ConfigError(
                "adjacency", self.adjacency.value, "add-or-remove-one where the rows of a person are sampled"
            )
        if not self.together:
            raise ConfigError(
                "unit_sampling",
                unit.sampled.value,
                f"persons with method {self.method.name} and sampling {self.sampler.name}: rows of a person are "
                "accounted for together only where each row is sampled by its own coin and sums get Gaussian noise",
            )
        if not unit.persons <= self.records:
            raise ConfigError("unit.persons", unit.persons, f"at most {self.records}, the number of rows")

    @cached_property
    def together(self) -> bool:
        """Whether several records cost what `assay.accounting.groups.enlarged` says about the plan's events.

        Each must be sampled by a separate coin, and only sums with Gaussian noise be released.
        """
        chain = self.chain()
        sums = type(chain.noise) in (Gaussian, ExactGaussian) and not chain.before and self.method.stage(self) is None
        return self.sampler.together and sums and chain.micro == 1

    @property
    def bands(self) -> int:
        """How many groups of records take turns, where the noise of steps is correlated; 1 where it is not."""
        return self.schedule.separation

    @cached_property
    def schedule(self) -> NoiseSchedule:
        """`noise_schedule` with all its settings: what it leaves open depends on steps, records and batch size."""
        return self.noise_schedule.for_run(self.steps, self.records, self.batch_size)

    @cached_property
    def _in_turns(self) -> Sampler | None:
        return self.sampling.in_bands(
            self.records, self.batch_size, self.bands, amplified=self.noise_schedule.amplified
        )

    @cached_property
    def stretches(self) -> list[tuple[int, float]]:
        """(steps, factor on the noise multiplier), in the order of the run."""
        return self.noise_schedule.stretches(self.steps)

    def noise_factor(self, step: int) -> float:
        """The factor on the noise multiplier in this step, counted from 0."""
        return 1.0 if len(self.stretches) == 1 else schedules.within(self.stretches, step, 1)[0][1]

    @property
    def protected(self) -> int:
        """How many there are of what ε protects: records, or persons."""
        return self.records if self.unit is None else self.unit.persons

    @property
    def sampled(self) -> str:
        """What the sampler draws and clipping bounds, in one word."""
        if self.unit is None:
            return "record"
        return "person" if self.unit.whole else "row"

    @property
    def batches_in_words(self) -> str:
        """How batches are drawn."""
        return self.sampler.describe().replace("record", self.sampled)

    @cached_property
    def sampler(self) -> Sampler:
        """Draws the batches and states their amplification."""
        in_turns = self._in_turns if self.bands > 1 else None
        return self.sampling(self.records, self.batch_size) if in_turns is None else in_turns

    def epochs_after(self, steps: int) -> float:
        """How often each record was used on average after this many steps."""
        return steps * self.sampler.rate

    def ends_epoch(self, step: int) -> bool:
        """Whether this many steps complete an epoch that one step fewer did not."""
        return math.floor(self.epochs_after(step) + 1e-9) > math.floor(self.epochs_after(step - 1) + 1e-9)

    def fresh_clip(self) -> ClipRule:
        """The clipping rule in its initial state; adaptive rules change as they run."""
        return copy.copy(self.clip)

    def chain(self, gradient_share: float = 1.0, noise_factor: float = 1.0) -> Chain:
        """The step.

        Args:
            gradient_share: the gradient's share of the step's privacy.
            noise_factor: the factor of the noise schedule.
        """
        multiplier = self.noise_multiplier * noise_factor / math.sqrt(gradient_share)
        chain = self._uncorrelated(multiplier)
        if self.bands > 1:  # methods of varying noise have plain Gaussian noise
            chain = replace(chain, noise=self._correlated(multiplier))
        if self.exact:
            chain = self._made_exact(chain)
        return replace(chain, after=(*chain.after, *map(copy.copy, self.denoise)))

    def _uncorrelated(self, multiplier: float) -> Chain:
        chain = self.method.chain(self, multiplier)
        for part in self.encode:
            chain = part.applied(chain)
        return chain

    def _correlated(self, multiplier: float) -> Correlated:
        buffers = self.schedule.blt
        if buffers is not None:
            return BufferedGaussian(multiplier=multiplier, strategy=buffers)
        return BandedGaussian(multiplier=multiplier, strategy=self.schedule.strategy)

    def _made_exact(self, chain: Chain) -> Chain:
        """The chain with exact noise instead of floating-point noise of the same multiplier."""
        noise = chain.noise
        if type(noise) is not Gaussian or noise.reference is not None or self.method.stage(self) is not None:
            raise ConfigError(
                "exact", True, f"a method that adds Gaussian noise to a clipped sum, and {self.method.name} does more"
            )
        return replace(chain, noise=ExactGaussian(multiplier=noise.multiplier, grid=Grid(chain.clip.l2)))

    def for_model(self, model: nn.Module) -> Plan:
        """The plan for this model. Methods may need its layers and their sizes."""
        return replace(self, method=self.method.for_model(model))

    def for_layers(self, layers: list[str]) -> Plan:
        """The plan for a model with these layers. Methods that clip them separately need their number."""
        return replace(self, method=self.method.for_layers(layers))

    @cached_property
    def step_event(self) -> DpEvent:
        """What one step releases about its batch, before amplification; in a schedule the first step.

        Correlated noise costs as much as independent noise of the same multiplier (`assay.mechanisms.correlated`), so
        its strategy, which takes long to find, is not asked for.
        """
        return (self._uncorrelated(self.noise_multiplier) if self.bands > 1 else self.chain()).event()

    @cached_property
    def stage(self) -> Stage | None:
        """What is released before the first step, if anything: by the method, or the mean of the inputs."""
        if self.center is not None:
            return self.center.stage(self.records)
        return self.method.stage(self)

    @cached_property
    def selection(self) -> Selection | None:
        """The test that decides after each step whether it is kept, if the method has one."""
        return self.method.selection(self)

    @property
    def stage_option(self) -> tuple[str, str]:
        """The option that asked for the stage, and its value, for errors."""
        return ("method", self.method.name) if self.center is None else ("center", mean.describe(self.center))

    @cached_property
    def stage_event(self) -> DpEvent:
        """The cost of the stage."""
        return ComposedDpEvent([]) if self.stage is None else event_of(self.stage)

    @cached_property
    def first_events(self) -> list[DpEvent]:
        """The cost of each release before the first step: what was estimated of columns, and the stage."""
        return [
            *([] if self.columns is None else [self.columns.event()]),
            *([] if self.stage is None else [self.stage_event]),
        ]

    def steps_event(self, steps: int, start: int = 0) -> DpEvent:
        """The cost of `steps` steps from step `start` on, each stretch of equal noise by itself, and of their tests."""
        if self.selection is not None:  # such methods have constant noise and protect records
            return ComposedDpEvent([self.sampler.compose(self.step_event, steps), self.selection.event(steps)])
        if len(self.stretches) == 1:
            return self._for_unit(self.sampler.compose(self.step_event, steps))
        return self._for_unit(
            ComposedDpEvent(
                [
                    self.sampler.compose(self.chain(noise_factor=factor).event(), count)
                    for count, factor in schedules.within(self.stretches, start, steps)
                ]
            )
        )

    def _for_unit(self, event: DpEvent) -> DpEvent:
        """What steps cost the unit that ε protects, from what they cost what is sampled."""
        if self.unit is None or self.unit.whole:
            return event
        assert self.unit.rows is not None
        together = enlarged(event, self.unit.rows)
        assert together is not None, f"{event} is not accounted for by person"  # refused in `_check_unit`
        return together

    def groups(self, event: DpEvent, sizes: Sequence[int] = SIZES) -> dict[int, float]:
        """ε for groups of several records or persons, of what a ledger of this plan holds (`assay.accounting.groups`).

        Args:
            event: What was charged.
            sizes: How many belong together.
        """
        return group_epsilons(event, self.delta, self.adjacency, sizes, together=self.together)

    @property
    def may_lack_records(self) -> bool:
        """Whether the data set may have fewer records, or persons, than `records` says.

        Where columns were estimated, rows without a usable target are left out. How many is not public, so rates and
        denominators count all of them: those left out are drawn like the others and add nothing.
        """
        return self.columns is not None

    def event(self, steps: int | None = None) -> DpEvent:
        """The cost of the run with `steps` steps; all of them by default."""
        steps_event = self.steps_event(self.steps if steps is None else steps)
        return ComposedDpEvent([*self.first_events, steps_event]) if self.first_events else steps_event

    def fits(self, steps: int, origin: int | None, event: DpEvent, once: bool) -> bool:
        """Whether an entry fits this plan, for `Ledger.check_fits`.

        Args:
            steps: the number of steps that it charges.
            origin: the step that they begin with. Earlier versions did not store it; where it matters, this returns
                True.
            event: what it charges.
            once: whether it is a release made once.
        """
        charged = events.to_json(event)
        if once:
            return charged in [events.to_json(first) for first in self.first_events or [self.stage_event]]
        if origin is None and len(self.stretches) > 1:
            return True
        expected = self.steps_event(steps, origin or 0) if steps else ComposedDpEvent([])
        if charged == events.to_json(expected):
            return True
        # The first step of a schedule has the most noise, so its cost is not that of all steps; nor is it with a test.
        if not steps or len(self.stretches) > 1 or self.selection is not None:
            return False
        return charged == events.to_json(self._for_unit(self.sampler.composed_before(self.step_event, steps)))

    def epsilon(self, delta: float | None = None, *, steps: int | None = None) -> float:
        """The verified ε of the plan, at its δ or another, for all its steps or fewer."""
        return epsilon(self.event(steps), self.delta if delta is None else delta, self.adjacency)

    def tradeoff(self, rates: Sequence[float] = RATES, *, steps: int | None = None) -> TradeOff:
        """What an attacker can find out at most, for all steps of the plan or fewer (`assay.accounting.tradeoff`).

        Args:
            rates: Rates of false positives.
            steps: How many steps; None for all.

        Returns:
            The best rate of true positives at each of them, and the μ of the whole curve with its error.

        >>> plan = Plan(records=60_000, batch_size=2048, steps=439, noise_multiplier=2.856, delta=1e-5)
        >>> round(plan.tradeoff().mu, 3)
        0.266
        """
        return tradeoff(self.event(steps), self.delta, self.adjacency, rates)

    def claimed(self, steps: int | None = None) -> float:
        """The ε that the method's paper would report for this run, or after `steps` of its steps."""
        if steps == 0:
            return 0.0
        if self.sampling.claimed_as is not None:
            return replace(self, sampling=self.sampling.claimed_as).claimed(steps)
        if self.unit is not None and not self.unit.whole:
            # Charles et al. 2024 account for a person's rows as the ledger does; no other paper says anything of them
            return self.epsilon(steps=steps)
        if steps is None or not isinstance(self.noise_schedule, Constant):
            # A schedule covers a whole run: no paper says what fewer steps would claim.
            return self.method.claimed(self)
        return self.method.claimed(replace(self, steps=steps))

    def targeted(self, noise_multiplier: float | None = None) -> float:
        """The ε that a target refers to, of this plan or with other noise.

        That is the verified one, or the claimed one of a published variant.
        """
        plan = self if noise_multiplier is None else replace(self, noise_multiplier=noise_multiplier)
        return plan.claimed() if self.method.published else plan.epsilon()

    @classmethod
    def calibrated(  # every setting of a plan is an argument, so that an editor can complete it
        cls,
        *,
        epsilon: float,
        delta: float,
        records: int,
        batch_size: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        noise_multiplier: float | None = None,
        noise_schedule: NoiseSchedule = _SCHEDULE,
        method: Method | str = _METHOD,
        clip: ClipRule | float | str | None = None,
        micro_batch: int = 1,
        center: Mean | None = None,
        sampling: type[Sampler] = Poisson,
        adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
        encode: Sequence[Encoding] = (),
        denoise: Sequence[Denoiser] = (),
        unit: Unit | None = None,
        exact: bool = False,
    ) -> Plan:
        """The plan whose verified ε is in [0.999 ε, ε]; for a published variant the claimed ε is.

        Leave out one of `noise_multiplier`, `epochs` and `steps`, or `batch_size`, and this computes it. Steps and
        batch sizes are whole numbers. The largest one within ε counts, and may have a smaller ε. Full batches hold all
        records, given or not.

        Args:
            epsilon: the target. The verified ε of a sound variant never exceeds it.
            delta: δ.
            records: the number of records.
            batch_size: the expected batch size; None for the largest.
            epochs: the length of the run in epochs. If it and `steps` are None, the longest.
            steps: the length of the run in steps.
            noise_multiplier: the noise; None for the least.
            noise_schedule: how the noise changes over the run.
            method: how one step works, or its name.
            clip: the clipping rule, its text, or the bound of flat clipping; None is the method's own.
            micro_batch: how many records are averaged before clipping.
            center: what is released first, to centre the inputs.
            sampling: how batches are drawn.
            adjacency: what neighbouring data sets are.
            encode: what is done to a record's gradient before clipping.
            denoise: what is done to a released gradient.
            unit: who is protected where one person has several rows.
            exact: whether the noise's proof covers the arithmetic.

        Returns:
            The plan, with `epsilon` as its `epsilon_limit` (`epsilon_claimed` for a published variant).

        Raises:
            ConfigError: not exactly one of them is left out, no plan stays within ε, or a setting is not accepted.

        >>> plan = Plan.calibrated(epsilon=1, delta=1e-5, records=60_000, batch_size=512, epochs=10)
        >>> round(plan.noise_multiplier, 2), plan.steps
        (1.33, 1172)
        """
        check_above_zero("epsilon", epsilon)
        _check_whole("records", records, 1)
        if epochs is not None and steps is not None:
            raise ConfigError("steps", steps, "epochs or steps, not both")
        length = epochs if steps is None else steps
        whole = getattr(sampling, "whole", False)  # anything but a sampler is refused below
        if batch_size is None and whole and None not in (noise_multiplier, length):
            raise ConfigError(
                "sampling",
                sampling.name,
                "noise_multiplier or epochs/steps left out, to be found: no batch size can be found where the "
                "batch is all records",
            )
        given = {"noise_multiplier": noise_multiplier, "epochs": epochs, "steps": steps, "batch_size": batch_size}
        if whole and batch_size is None:
            batch_size = records
        if [noise_multiplier, length, batch_size].count(None) != 1:
            known = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
            wanted = "exactly one of noise_multiplier, epochs/steps and batch_size left out, to be found"
            raise ConfigError("calibrated", known or "nothing", wanted)
        start = cls(
            records=records,
            batch_size=1 if batch_size is None else batch_size,
            steps=1 if steps is None else steps,
            noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
            delta=delta,
            noise_schedule=noise_schedule,
            clip=clip,
            micro_batch=micro_batch,
            center=center,
            sampling=sampling,
            adjacency=adjacency,
            method=method,
            encode=encode,
            denoise=denoise,
            unit=unit,
            exact=exact,
        )
        if batch_size is None:
            return targets.largest_batch(start, epsilon, epochs)
        start = targets.lasting(start, epochs)
        return targets.longest(start, epsilon) if length is None else targets.within(start, epsilon)

    def within(self, epsilon: float) -> Plan:
        """This plan with the least noise for which ε, verified or for a published variant claimed, is in [0.999 ε, ε].

        Args:
            epsilon: the target, which becomes the plan's `epsilon_limit` (`epsilon_claimed` for a published variant).

        Raises:
            ConfigError: no noise is enough.
        """
        return targets.within(self, epsilon)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON, from which `from_json` builds an equal plan."""
        return {
            "records": self.records,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
            "noise_schedule": schedules.describe(self.noise_schedule),
            "clip": str(self.clip),
            "micro_batch": self.micro_batch,
            "center": None if self.center is None else mean.describe(self.center),
            "sampling": self.sampling.name,
            "adjacency": self.adjacency.value,
            "method": self.method.name,
            "options": methods.options(self.method),
            "encode": [encoding.describe(part) for part in self.encode],
            "denoise": [denoising.describe(part) for part in self.denoise],
            "epsilon_limit": self.epsilon_limit,
            "epsilon_claimed": self.epsilon_claimed,
            **({} if self.columns is None else {"columns": estimated.describe(self.columns)}),
            **({} if self.unit is None else {"unit": self.unit.to_json()}),  # not in plans of earlier versions
            **({"exact": True} if self.exact else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The plan that `to_json` of this version or an earlier one wrote.

        Raises:
            ConfigError: a field is missing, unknown, or out of range.
        """
        check_fields("plan", data, [*(f.name for f in fields(cls)), "options"])
        for name in ("clip", "adjacency", "method", "options", "encode", "denoise"):
            if name not in data:
                raise ConfigError(f"plan.{name}", None, "a value: the field is missing")
        known = dict(data)
        options = known.pop("options")
        read: dict[str, Callable[[Any], object]] = {
            "noise_schedule": schedules.parse,
            "clip": clip_rules.parse,
            "center": lambda text: None if text is None else mean.parse(text),
            "columns": lambda text: None if text is None else estimated.parse(text),
            "sampling": samplers.parse,
            "adjacency": _adjacency,
            "method": lambda name: methods.get(name, **options),
            "encode": encoding.parse_all,
            "denoise": denoising.parse_all,
            "unit": lambda unit: None if unit is None else Unit.from_json(unit),
        }
        made: dict[str, Any] = {key: read[key](value) if key in read else value for key, value in known.items()}
        return cls(**made)


def _adjacency(name: str) -> Adjacency:
    try:
        return Adjacency(name)
    except ValueError as error:
        raise ConfigError("adjacency", name, one_of(name, (one.value for one in Adjacency))) from error
