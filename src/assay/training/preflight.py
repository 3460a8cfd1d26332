"""Checks before anything is written, charged or replaced: of the settings, the machine, and the model on a few records.

The model is tried out as on its first batch. Nothing of the trial remains: only copies of the model and of the loss see
the records. A model that would store something about them (data-dependent initialisation) is refused.

The last functions are what a private step asks of its ledger, its shares of privacy, exact noise and precision.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, NonPrivateDpEvent
from torch import Tensor, nn
from torch.utils.data import Dataset

from assay.accounting.budget import check_independent
from assay.accounting.ledger import Ledger
from assay.data.apart import check_apart
from assay.data.records import PLAIN, Loading, Records, pair
from assay.errors import AssayError, ConfigError, UnsupportedModelError
from assay.gradients.engine import Engine
from assay.gradients.proof.losses import separate
from assay.gradients.rules.layers import RULES
from assay.gradients.units import check_free
from assay.mechanisms.gaussian import Gaussian
from assay.mechanisms.types import SideQuery
from assay.methods.plan import Plan
from assay.methods.stage import Loss
from assay.models import compat, copies
from assay.randomness.streams import Randomness
from assay.runs.budgeted import unit_of
from assay.training import augment
from assay.training.settings import Training, pick_device

# A table that all records share may happen to have as many rows as the trial has records, and be taken for one row per
# record. So a model is refused only if it fails with both numbers of records.
_SIZES = (5, 7)


def check_run(
    model: nn.Module,
    train: Dataset[Any],
    loss: Loss,
    plan: Plan,
    training: Training,
    data: str | None,
    ranks: int,
    *,
    loading: Loading = PLAIN,
) -> Plan:
    """Refuse a run that could not be trained.

    Args:
        model: The model.
        train: Yields (input, target).
        loss: `loss(output, target)` gives one value for each record.
        plan: Everything that decides ε.
        training: How to train.
        data: The name of the data set, if it has one.
        ranks: How many ranks train together.
        loading: How records are fetched and put together.

    Returns:
        The plan for this model.

    Raises:
        ConfigError: Settings do not go together, or the model or the loss fails on the records.
        UnsupportedModelError: The model or the loss mixes records.
    """
    records = Records(train, loading=loading)
    records.check_pairs("train")
    if not records.plain:
        check_apart(records, int(training.randomness().stream("apart", 0).integers(2**31, 1)), once=plan.unit is None)
    _check_finite(model)
    plan = plan.for_model(model)
    if plan.stage is not None:
        plan.stage.check(model, Records(train), data)
    training.at_batch(plan.batch_size)
    check_ranks(plan, ranks, shard=training.shard)
    plan.chain()
    device = pick_device(training.device)
    if plan.exact and device.type != "cpu":
        raise ConfigError("device", training.device, "cpu with exact noise: kernels elsewhere add up in any order")
    if plan.exact and training.precision != "float32":
        raise ConfigError("precision", training.precision, "float32 with exact noise")
    check_precision(training.precision, device)
    decided = plan.stage is not None and plan.center is None  # a stage that decides what the model sees
    if not training.shard and not decided:
        _rehearse(model, Records(train, device, loading), loss, plan, training, device)
    if training.augment is not None:
        check_views(training.augment, plan, ranks)
        _check_augment(training.augment, train, plan)
    return plan


def channels_last(shape: tuple[int, ...]) -> str:
    """What to do about pictures whose channels come last, as a sentence after another; empty for other shapes.

    >>> channels_last((3, 32, 32))
    ''
    >>> channels_last((32, 32, 3))
    '. The last dimension looks like channels, and layers want them first: transpose it to (3, 32, 32)'
    """
    few = (1, 3, 4)
    if len(shape) != 3 or shape[2] not in few or shape[0] in few:
        return ""
    return (
        ". The last dimension looks like channels, and layers want them first: transpose it to "
        f"{(shape[2], shape[0], shape[1])}"
    )


def _check_finite(model: nn.Module) -> None:
    """Refuse weights that are NaN or infinite: nothing can be trained from there."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter.detach()).all()):
            raise ConfigError(
                "model", f"{type(model).__name__} with {name}", "finite weights; these hold NaN or infinite numbers"
            )


def check_views(text: str, plan: Plan, ranks: int) -> None:
    """Refuse views of records where persons are sampled, or on several ranks.

    Raises:
        ConfigError: There can be no views.
    """
    if plan.unit is not None and plan.unit.whole:
        raise ConfigError("augment", text, f"no views where the unit is {plan.unit} and persons are sampled")
    if ranks > 1:
        raise ConfigError("augment", text, "one rank: ranks with one seed would draw the same views")


def _check_augment(text: str, train: Dataset[Any], plan: Plan) -> None:
    """Refuse views of records that are not images, or that a stage replaces."""
    if plan.stage is not None and not plan.stage.takes_views:
        raise ConfigError(
            "augment", text, f"no augmentation with {plan.method.name}, which decides what training sees of a record"
        )
    augment.check(text, tuple(Records(train).gather(torch.tensor([0]))[0].shape[1:]))


def _rehearse(
    model: nn.Module, records: Records, loss: Loss, plan: Plan, training: Training, device: torch.device
) -> None:
    """Refuse a model or a loss that fails on a few records."""
    model.to(device).train()

    def losses(trial: nn.Module, batch: Any, engine: Engine) -> Tensor:
        inputs, targets = pair(batch)
        mine = copies.of_loss(loss)
        outputs = training.outputs(trial, inputs, device)
        separate(mine, outputs, targets, engine.coins)
        found: Tensor = mine(outputs, targets)
        return found

    rehearse(model, records, plan, losses, training.randomness())


def rehearse(
    model: nn.Module,
    records: Records,
    plan: Plan,
    losses: Callable[[nn.Module, Any, Engine], Tensor],
    randomness: Randomness,
    name: str | None = None,
) -> None:
    """Refuse a model that fails on a few records. If it cannot be copied, the first batch shows it.

    Args:
        model: The model, where it will be trained; only copies of it see the records.
        records: The records.
        plan: Everything that decides ε.
        losses: `losses(model, batch, engine)` gives one loss for each record, by way of the engine's model.
        randomness: Chooses how the engine checks itself.
        name: What the user calls the model; its class by default.

    Raises:
        ConfigError: The model or the loss fails on the records.
        UnsupportedModelError: The model or the loss mixes records.
    """
    compat.check(model)
    check_free(model)
    if len(records) < 2:
        return
    for size in _SIZES:
        trial = copies.of_model(model)
        if trial is None:
            return
        batch = records.gather(torch.arange(min(size, len(records))))
        try:
            _try(trial, batch, plan, losses, randomness, name or type(model).__name__)
            return
        except UnsupportedModelError:
            if size == _SIZES[-1]:
                raise


def _try(
    model: nn.Module,
    batch: Any,
    plan: Plan,
    losses: Callable[[nn.Module, Any, Engine], Tensor],
    randomness: Randomness,
    name: str,
) -> None:
    engine = Engine(model, {**RULES, **plan.chain().rules}, coins=randomness.stream("rehearsal", 0))
    try:
        with torch.random.fork_rng(devices=[]):
            engine.collect(losses(model, batch, engine))
    except AssayError:
        raise
    except Exception as error:  # the user's own model and loss, which may fail in any way
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ConfigError(
            "model",
            name,
            f"a model and a loss that take these records (inputs {shape}); it failed with {type(error).__name__}: "
            f"{error}{channels_last(shape) if isinstance(shape, tuple) else ''}",
        ) from error
    finally:
        engine.detach()


def check_ranks(plan: Plan, ranks: int, *, shard: bool = False) -> None:
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
    sized = plan.for_layers(["layer"]) if plan.method.needs_layers else plan
    if ranks > 1 and sized.chain().before:
        raise ConfigError(
            "method",
            plan.method.name,
            f"one that only adds up gradients, on {ranks} ranks: what this one does to a batch's sum would be done to "
            "each rank's part of it, and the parts together exceed its bound",
        )
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


_PRODUCT = "import torch; torch.ones(64, 64).bfloat16() @ torch.ones(64, 64).bfloat16()"
_SWITCH = "ONEDNN_MAX_CPU_ISA"
_CPUINFO = Path("/proc/cpuinfo")


def check_precision(
    precision: str, device: torch.device, *, program: str = _PRODUCT, processor: Path = _CPUINFO
) -> None:
    """Refuse bf16 on a machine where it ends the process.

    Some virtual machines announce AMX tiles and kill whoever uses them, as torch does for products in bf16. A run would
    die in its first step. So a process of its own tries it first, on processors that announce tiles.

    Args:
        precision: The precision of the run's passes.
        device: Where they are made.
        program: What the process tries.
        processor: The system's description of the processor.

    Raises:
        ConfigError: The process was killed. Says how to do without tiles.
    """
    if precision != "bf16" or device.type != "cpu" or _SWITCH in os.environ:
        return
    if processor.exists() and "amx_tile" in processor.read_text(errors="replace") and not _survives(program):
        raise ConfigError(
            "precision",
            precision,
            "float32 on this machine: its processor announces AMX tiles, and the system kills a process that uses "
            f"them. With {_SWITCH}=AVX512_CORE_FP16 in the environment, torch does without them",
        )


@functools.cache
def _survives(program: str) -> bool:
    """Whether a process that runs this is not killed by a signal; errors do not count."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    return done.returncode >= 0


_AS_IT_IS = contextlib.nullcontext()


def without_autocast(device_type: str) -> contextlib.AbstractContextManager[Any]:
    """Full precision for norms and sums: rounded to half precision they would not keep the clipping bound."""
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device_type):  # the first question is quick
        return torch.autocast(device_type, enabled=False)
    return _AS_IT_IS


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


def lock_charges(ledger: Ledger, draws: str | None) -> Any:
    """Lock the ledger against other processes, and the numbers drawn against other runs; the charges it holds."""
    ledger.lock()
    ledger.claim_draws(draws)
    return ledger.charges()


def check_ledger(ledger: Ledger, plan: Plan) -> None:
    """Refuse a ledger with another δ, adjacency or unit, or a higher ceiling, than the plan's.

    Under a budget the plan must be one that the budget's theorem covers, whatever plan made the reservation.
    """
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
    unit = unit_of(plan)
    if ledger.unit not in (None, unit):
        raise ConfigError(
            "ledger",
            f"a ledger that protects each {ledger.unit}",
            f"one of this plan's unit, {unit}: what steps cost a {unit} is not what they cost a {ledger.unit}",
        )
    ledger.unit = unit
    if ledger.covers is not None:
        check_independent(plan)


def check_paid(released: DpEvent, charged: DpEvent) -> None:
    """Stop if a release cost more than was charged. The two are computed separately, so this can only be a bug."""
    if isinstance(charged, NonPrivateDpEvent) or released == charged:
        return
    both = isinstance(released, GaussianDpEvent) and isinstance(charged, GaussianDpEvent)
    if not both or released.noise_multiplier < charged.noise_multiplier * (1 - 1e-9):
        raise AssayError(f"this step released {released} but only {charged} was charged; the run must not go on")
