"""What several ranks cannot do. It is refused before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.errors import ConfigError
from assay.mechanisms.gaussian import Gaussian

if TYPE_CHECKING:
    from assay.methods.plan import Plan


def check(plan: Plan, ranks: int, *, shard: bool = False) -> None:
    """Refuse a plan whose meaning would change on several ranks, or that needs the whole model if it is split.

    Args:
        plan: The plan.
        ranks: How many ranks there are.
        shard: Whether the model is split over them.

    Raises:
        ConfigError: The ranks cannot do this.
    """
    if plan.micro_batch > 1 and ranks > 1:
        raise ConfigError(
            "micro_batch",
            plan.micro_batch,
            f"1 on {ranks} ranks: a micro-batch is averaged before it is clipped, and would have its records on "
            "several of them",
        )
    if plan.exact and ranks > 1:
        raise ConfigError("exact", True, f"one process, not {ranks} ranks: sums across ranks are floating-point sums")
    if not shard:
        return
    if ranks == 1:
        raise ConfigError("shard", True, "several ranks, as started by: torchrun --nproc-per-node N -m assay train ...")
    if plan.stage is not None:
        _, value = plan.stage_option
        raise ConfigError("shard", True, f"a run without a stage: what {value} does first needs the whole model")
    chain = plan.chain()
    if (
        chain.rules
        or chain.each
        or chain.before
        or chain.decode
        or chain.after
        or not isinstance(chain.noise, Gaussian)
    ):
        raise ConfigError(
            "shard",
            True,
            "method dpsgd or dpadam without --encode and --denoise and without noise in bands: anything else works on "
            "whole gradients, and of a model that is split no rank has one",
        )
