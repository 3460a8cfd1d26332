"""From the options of `assay train` to all that a run needs: model, records, plan and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import typer
from torch import nn

from assay import features as features_room
from assay import presets
from assay.accounting import schedules
from assay.cli import options
from assay.cli.inputs import build, check_features, load, planned
from assay.data import DataBundle
from assay.data import sampling as samplers
from assay.data.sampling import Sampler
from assay.errors import ConfigError
from assay.gradients import clipping
from assay.integrations import tensorboard as logs
from assay.methods import denoise as denoise_room
from assay.methods import encode as encode_room
from assay.methods.perturb.mean import parse as parse_center
from assay.methods.plan import Plan
from assay.models.transfer import begin, located
from assay.training import augment as augment_room
from assay.training.optim import Optimizer
from assay.training.settings import Training

_DEFAULT_BATCH = 1024
_DEFAULT_LR = {"sgd": 0.7, "adam": 0.002, "adamw": 0.002}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """All that a run needs, made from the options of `assay train`."""

    network: nn.Module
    bundle: DataBundle
    plan: Plan
    training: Training
    names: dict[str, Any]
    source: tuple[Any, ...]
    """What of the options decides the bundle."""


def prepare(*, context: typer.Context, like: Prepared | None = None, **settings: Any) -> Prepared:
    """What the options of `assay train` ask for; what was typed goes before what a preset says, and the run's names tell where the two
    differ. Records that `like` has are not loaded again.
    """
    if settings["preset"] is None:
        return _prepared(settings, None, like)
    preset = presets.of(settings)
    given = context.get_parameter_source
    typed = {name for name in context.params if getattr(given(name), "name", "") == "COMMANDLINE"}
    filled = {name: value for name, value in preset.settings.items() if name not in typed}
    changed = [name for name in preset.settings if name in typed and _differ(name, settings[name], preset)]
    try:
        return _prepared(settings | filled, preset.origin(changed), like)
    except ConfigError as error:
        if error.field not in filled:
            raise
        option = f"--{error.field.replace('_', '-')}"
        said = (
            f"{error.accepted}; the value is that of preset {preset.name}, and {option} typed beside it goes before it"
        )
        raise ConfigError(error.field, error.value, said) from error


_READ: Mapping[str, Callable[[str], object]] = {
    "clip": clipping.parse,
    "features": features_room.parse,
    "center": parse_center,
}


def _differ(name: str, typed: Any, preset: presets.Preset) -> bool:
    """Whether it is another value than the preset's, and not the same one written differently."""
    said, read = preset.settings[name], _READ.get(name)
    return bool(typed != said if read is None else read(typed) != read(said))


def _prepared(settings: Mapping[str, Any], tuning: Mapping[str, Any] | None, like: Prepared | None) -> Prepared:
    o = SimpleNamespace(**settings)
    chosen = options.method(o.method, o.variant, o.noise_form, o.groups, o.option)
    name = o.optimizer or chosen.optimizer
    training = Training(
        optimizer=Optimizer(
            name=name,
            lr=_DEFAULT_LR.get(name, 0.7) if o.lr is None else o.lr,
            momentum=(0.9 if name == "sgd" else 0.0) if o.momentum is None else o.momentum,
            weight_decay=o.weight_decay,
            schedule=o.schedule,
            warmup=o.warmup,
        ),
        ema=o.ema,
        tail=o.tail,
        scale_from=o.scale_from,
        augment=o.augment,
        seed=o.seed,
        secure_rng=o.secure_rng,
        max_physical_batch=o.max_physical_batch,
        device=o.device,
        shard=o.shard,
        precision=o.precision,
    )
    if o.exact_noise and o.seed is not None:
        raise ConfigError(
            "seed", o.seed, "no seed together with exact_noise: a seeded run is reproducible, not private"
        )
    logs.check(o.log)
    check_features(o.features, o.model, o.augment)
    rule, sampling = clipping.parse(o.clip or str(chosen.clip)), samplers.parse(o.sampling)
    encodings, denoisers = encode_room.parse_all(o.encode or ()), denoise_room.parse_all(o.denoise or ())
    source = (o.data, o.data_dir, o.records, o.features, o.validation, o.dry_run)
    if like is not None and like.source == source:
        bundle = like.bundle
    else:
        bundle = load(*source[:4], validation=o.validation, rehearsal=o.dry_run)
    if o.augment is not None:
        augment_room.check(o.augment, bundle.input_shape)
    init = None if o.init is None else located(o.init, o.data_dir)
    network = build(o.model, o.circulant, bundle, o.seed)
    start = begin(network, init, o.train_layers)
    records = len(bundle.train_x)
    start_plan = Plan(
        records=records,
        batch_size=_default_batch(sampling, records) if o.batch_size is None else o.batch_size,
        steps=1,
        noise_multiplier=1.0,
        delta=o.delta,
        clip=rule,
        micro_batch=o.micro_batch,
        center=None if o.center is None else parse_center(o.center),
        noise_schedule=schedules.parse(o.noise_schedule),
        sampling=sampling,
        adjacency=o.adjacency,
        method=chosen.for_model(network),
        encode=encodings,
        denoise=denoisers,
        exact=o.exact_noise,
    )
    plan = planned(
        start_plan,
        epsilon=1.0 if o.epsilon is None and o.noise_multiplier is None else o.epsilon,
        noise_multiplier=o.noise_multiplier,
        epochs=o.epochs,
    )
    names = {
        "model": o.model,
        "circulant": o.circulant,
        **start,
        "data": o.data,
        "features": o.features,
        "validation_of": len(bundle.train_x) + len(bundle.test_x) if o.validation else None,
        "data_dir": None if o.data_dir is None else str(o.data_dir),
        "split": bundle.split.to_json(),
        "unit": bundle.unit,
        "notes": bundle.notes,
        "log": o.log,
        "tuning": tuning,
    }
    return Prepared(network=network, bundle=bundle, plan=plan, training=training, names=names, source=source)


def _default_batch(sampling: type[Sampler], records: int) -> int:
    return records if sampling.whole else min(_DEFAULT_BATCH, max(1, records // 8))
