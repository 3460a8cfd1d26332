"""Plans for a target ε: the least noise, the most steps or the largest batch that it allows.

The target is a verified ε. For a published variant it is the claimed one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from assay._util.figures import at_most
from assay.accounting.calibrate import most_steps, smallest_noise
from assay.accounting.epsilon import epsilon as epsilon_of
from assay.errors import ConfigError, check_above_zero, check_number
from assay.methods.perturb import mean

if TYPE_CHECKING:
    from assay.data.samplers import Sampler
    from assay.methods.plan import Plan

MOST_STEPS = 2**53
"""Floating-point numbers count exactly up to here, and so do events."""


def within(plan: Plan, epsilon: float) -> Plan:
    """The plan with the least noise for which ε is in [0.999 ε, ε].

    Args:
        plan: everything but the noise.
        epsilon: the target, which becomes the plan's `epsilon_limit` (`epsilon_claimed` for a published variant).

    Raises:
        ConfigError: no noise is enough.
    """
    aimed = _aimed_at(replace(plan, noise_multiplier=1.0), epsilon)
    return replace(aimed, noise_multiplier=smallest_noise(aimed.targeted, epsilon))


def longest(plan: Plan, epsilon: float) -> Plan:
    """The plan with the most steps that the target allows.

    Raises:
        ConfigError: it allows no step.
    """
    aimed = _aimed_at(plan, epsilon)
    count = most_steps(lambda n: replace(aimed, steps=n).targeted(), epsilon)
    if count == 0:
        raise ConfigError("epsilon", epsilon, f"more than that: one step already spends {aimed.targeted():.4g}")
    return replace(aimed, steps=count)


def largest_batch(plan: Plan, epsilon: float, epochs: float | None) -> Plan:
    """The plan with the largest batch that the target allows, for this many epochs or for the plan's steps.

    Raises:
        ConfigError: it allows no batch of one record.
    """
    aimed = _aimed_at(plan, epsilon)

    def made(size: int) -> Plan:
        return lasting(replace(aimed, batch_size=size), epochs)

    largest = max(1, plan.records // plan.bands)  # a batch comes from one of the bands
    size = most_steps(lambda n: made(n).targeted(), epsilon, limit=largest)
    if size == 0:
        spent = made(1).targeted()
        raise ConfigError("epsilon", epsilon, f"more than that: a batch of one record already spends {at_most(spent)}")
    return made(size)


def lasting(plan: Plan, epochs: float | None) -> Plan:
    """The plan with the steps of this many epochs; unchanged for None."""
    return plan if epochs is None else replace(plan, steps=steps_for(epochs, plan.sampler))


def steps_for(epochs: float | None, sampler: Sampler) -> int:
    """The number of steps in this many epochs, at least one.

    Raises:
        ConfigError: `epochs` is not a number above 0, or too large.
    """
    if epochs is not None:
        check_number("epochs", epochs, "a number above 0")
    if epochs is None or not (math.isfinite(epochs) and epochs > 0):
        raise ConfigError("epochs", epochs, "a number above 0")
    steps = epochs / sampler.rate
    if steps > MOST_STEPS:
        raise ConfigError(
            "epochs", epochs, f"at most {MOST_STEPS * sampler.rate:g} with such batches: {MOST_STEPS} steps"
        )
    return max(1, round(steps))


def _aimed_at(plan: Plan, epsilon: float) -> Plan:
    """The plan with this target. Releases before training must not use it up."""
    check_above_zero("epsilon", epsilon)
    published = plan.method.published
    aimed = replace(plan, epsilon_limit=None if published else epsilon, epsilon_claimed=epsilon if published else None)
    if aimed.center is not None and not published:
        alone = epsilon_of(aimed.stage_event, aimed.delta, aimed.adjacency)
        if alone > epsilon:
            raise ConfigError(
                "center",
                mean.describe(aimed.center),
                f"more noise: what it releases before training costs ε = {at_most(alone)} by itself, and {epsilon:g} "
                "is allowed in all",
            )
    return aimed
