"""DPSUR: DP-SGD that keeps a step only if a noisy test says that it lowered the loss.

Fu, Ye, Hu, Chen, Wang, Wang and Ran: "DPSUR: Accelerating Differentially Private Stochastic Gradient Descent Using
Selective Update and Release", PVLDB 17(6), 2024, arXiv:2311.14056; public code: github.com/JeffffffFu/DPSUR.
`experiments/dpsur` says how we read it, and what of it we could read.

A trial is a step of DP-SGD and a test: on another Poisson batch, the change of the mean loss is clipped to ±C_v and
gets noise of standard deviation 2C_v σ_v. Below β·C_v the update is accepted, else the model goes back. The paper
redraws until an update is accepted.

Claimed ε (Theorem 5.6): Rényi composition of one subsampled Gaussian of multiplier σ_t and one of σ_v for each accepted
update; rejected trials are charged nothing.

What is true: acceptance changes how likely a record was in the batch, so amplification by the sampling rate does not
survive it. Even if nobody learns of rejected trials, accepted updates can cost more than the claim
(`experiments/dpsur/bound.py`: at least 3.72 where 3.00 is claimed). What always holds is the cost of all trials, of
which accepted updates are post-processing. The ledger charges that.

`published` accepts `updates` updates and claims for them; its steps are the trials that it may take, and the verified ε
is that of all. By default `updates` is the number of trials times the least acceptance probability Φ((β - 1)/(2σ_v)).
So T accepted updates take at most that many trials on average, whatever the records are. A run that has its updates
rejects what follows.

`sound` takes a fixed number of trials, all charged. Its test bounds the change of each record's loss and sums those
(`test=sum`), because a sum of n terms has an n-th of the noise of a clipped mean, for the same ε. What is left of the
idea is a choice among steps that have been paid for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent

from assay.accounting.adjacency import Adjacency
from assay.accounting.epsilon import rdp_epsilon
from assay.data.samplers.poisson import Poisson
from assay.errors import ConfigError, check_above_zero, check_number, one_of
from assay.mechanisms.gaussian import Gaussian
from assay.methods import Method, check_variant
from assay.methods.chain import Chain
from assay.methods.selecting import Selection

if TYPE_CHECKING:
    from assay.methods.plan import Plan

_TESTS = ("sum", "mean")
_THEIRS = 1.3
"""σ_v in the authors' README for ε = 1."""


@dataclass(frozen=True, kw_only=True)
class DPSUR(Method):
    """DP-SGD with a test after each step."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("variant", "test", "validation", "sigma_v", "c_v", "beta", "updates")

    name: str = "dpsur"
    summary: str = "DPSUR: DP-SGD that takes a step back unless a noisy test says that the loss fell (Fu et al. 2024)"
    soundness: str = (
        "not sound: rejected trials are not charged, and accepted updates alone can cost more than is claimed"
    )
    test: str | None = None
    """`mean` clips the change of the mean loss (the paper); `sum` clips each record's and sums them (the default of
    `sound`).
    """
    validation: float | None = None
    """The expected number of records in a test; None for a quarter of the batch, as the authors have it on MNIST."""
    sigma_v: float | None = None
    """σ_v; None for the multiplier of the gradient's noise, and 1.3 with `published`."""
    c_v: float | None = None
    """C_v; None for 0.001 with `mean` (the authors') and 0.1 with `sum`."""
    beta: float | None = None
    """β; None for -1 with `mean` (the authors') and 0 with `sum`."""
    updates: int | None = None
    """How many updates a published run accepts at most."""

    def __post_init__(self) -> None:
        check_variant(self.variant)
        if self.test not in (None, *_TESTS):
            raise ConfigError("test", self.test, one_of(self.test, _TESTS))
        if self.published and self.test == "sum":
            raise ConfigError("test", self.test, "mean with variant published: the paper clips the mean")
        for name in ("validation", "sigma_v", "c_v"):
            if getattr(self, name) is not None:
                check_above_zero(name, getattr(self, name))
        if self.beta is not None:
            check_number("beta", self.beta, "a number")
            if not math.isfinite(self.beta):
                raise ConfigError("beta", self.beta, "a finite number")
        if self.updates is not None and not (self.published and self.updates >= 1):
            raise ConfigError("updates", self.updates, "a whole number, 1 or above, with variant published alone")

    @property
    def single(self) -> bool:
        """Whether a test bounds the change of each record's loss, and not that of the mean."""
        return (self.test or ("mean" if self.published else "sum")) == "sum"

    def chain(self, plan: Plan, noise_multiplier: float) -> Chain:
        """The step of DP-SGD: any clipping, and one Gaussian draw."""
        return Chain(clip=plan.fresh_clip(), micro=plan.micro_batch, noise=Gaussian(multiplier=noise_multiplier))

    def selection(self, plan: Plan) -> Selection:
        """The test after each step."""
        self._check(plan)
        size = plan.batch_size / 4 if self.validation is None else self.validation
        if size > plan.records:
            raise ConfigError("validation", size, f"at most the number of records, {plan.records}")
        default = _THEIRS if self.published else plan.noise_multiplier
        test = Selection(
            sampler=Poisson(plan.records, size),
            bound=(0.1 if self.single else 0.001) if self.c_v is None else self.c_v,
            multiplier=default if self.sigma_v is None else self.sigma_v,
            threshold=(0.0 if self.single else -1.0) if self.beta is None else self.beta,
            single=self.single,
        )
        return replace(test, most=self._accepted(plan, test)) if self.published else test

    def _check(self, plan: Plan) -> None:
        if plan.sampling is not Poisson:
            raise ConfigError("sampling", plan.sampling.name, f"poisson with {self.name}, whose tests sample so")
        if plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
            raise ConfigError("adjacency", plan.adjacency.value, f"add-or-remove-one with {self.name}")
        if plan.unit is not None:
            raise ConfigError(
                "unit", str(plan.unit), f"a record with {self.name}: its tests bound what one record does"
            )
        if plan.exact:
            raise ConfigError("exact", True, f"False with {self.name}: its tests have floating-point noise")
        if plan.columns is not None:
            raise ConfigError("schema", "auto", f"a declared schema with {self.name}")

    def _accepted(self, plan: Plan, test: Selection) -> int:
        """T, the updates that a published run accepts at most."""
        fixed = math.ceil(plan.steps * test.least) if self.updates is None else self.updates
        return min(fixed, plan.steps)

    def claimed(self, plan: Plan) -> float:
        """Theorem 5.6 for T accepted updates; a sound run may accept all of its steps."""
        test = self.selection(plan)
        accepted = plan.steps if test.most is None else test.most
        if not (plan.noise_multiplier and test.multiplier):
            return math.inf
        gradients = plan.sampler.compose(GaussianDpEvent(plan.noise_multiplier), accepted)
        tests = test.sampler.compose(GaussianDpEvent(test.multiplier), accepted)
        return rdp_epsilon(ComposedDpEvent([gradients, tests]), plan.delta, plan.adjacency)

    def model_for(self, input_shape: tuple[int, ...]) -> str | None:
        """Networks like those in the authors' code: for pictures of one channel, or their scattering features."""
        if len(input_shape) != 3 or min(input_shape[1:]) < 14:
            return "scatter-cnn" if input_shape[1:] == (7, 7) else None
        return "mnist-cnn" if input_shape[0] == 1 else None


METHOD = DPSUR()
