"""What a private step asks before and after it computes: its ledger, its shares of privacy, exact noise, precision."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, NonPrivateDpEvent
from torch import nn

from assay.accounting.ledger import Ledger
from assay.errors import AssayError, ConfigError
from assay.mechanisms.types import SideQuery
from assay.methods.plan import Plan


def without_autocast(device_type: str) -> contextlib.AbstractContextManager[Any]:
    """Full precision for norms and sums: rounded to half precision they would not keep the clipping bound."""
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device_type):  # the first question is quick
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


def size_of_parts(batch_size: float) -> int:
    """How many records go through the model at once with exact noise: a power of two from 8 to 64."""
    return min(64, max(8, 1 << math.ceil(math.log2(max(1.0, batch_size)))))


def check_exact(model: nn.Module, side: Sequence[SideQuery]) -> None:
    """Refuse what exact noise does not cover: other releases, and devices other than the CPU."""
    if side:
        raise ConfigError(
            "side", [type(query).__name__ for query in side], "nothing beside the gradient with exact noise"
        )
    for name, p in model.named_parameters():
        if p.device.type != "cpu":
            raise ConfigError(
                "device", str(p.device), f"cpu with exact noise: kernels elsewhere add up in any order ({name})"
            )


def left_of(asked: Sequence[SideQuery]) -> float:
    """The share of a step's privacy that side queries leave for the gradient."""
    shares = [query.share for query in asked]
    if not all(0 < share < 1 for share in shares) or sum(shares) >= 1:
        raise ConfigError(
            "side", f"shares {shares}", "shares of a step's privacy above 0 that leave some for the gradient"
        )
    return 1.0 - sum(shares)


def claimed_charges(ledger: Ledger) -> Any:
    """Lock the ledger against other processes; the charges it holds."""
    ledger.lock()
    return ledger.charges()


def check_ledger(ledger: Ledger, plan: Plan) -> None:
    """Refuse a ledger with another δ, adjacency or a higher ceiling than the plan's."""
    if (ledger.delta, ledger.adjacency) != (plan.delta, plan.adjacency):
        raise ConfigError(
            "ledger",
            f"δ = {ledger.delta:g}, {ledger.adjacency.value}",
            f"a ledger of the plan's δ = {plan.delta:g} and {plan.adjacency.value}: ε means nothing without them",
        )
    limit = plan.epsilon_limit
    if limit is not None and (ledger.ceiling is None or ledger.ceiling > limit):
        raise ConfigError(
            "ledger", f"ceiling {ledger.ceiling}", f"a ledger whose ceiling is at most the plan's, ε = {limit:g}"
        )


def check_paid(released: DpEvent, charged: DpEvent) -> None:
    """Stop if a release cost more than was charged. The two are computed separately, so this can only be a bug."""
    if isinstance(charged, NonPrivateDpEvent) or released == charged:
        return
    both = isinstance(released, GaussianDpEvent) and isinstance(charged, GaussianDpEvent)
    if not both or released.noise_multiplier < charged.noise_multiplier * (1 - 1e-9):
        raise AssayError(f"this step released {released} but only {charged} was charged; the run must not go on")
