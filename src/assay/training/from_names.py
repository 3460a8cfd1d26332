"""From the settings of a run by name to all that it needs: model, records, plan and how it trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from assay import loggers
from assay.data import DataBundle, samplers
from assay.data.identity import of_bundle, of_table
from assay.data.persons import rows_kept
from assay.data.tables.drafts import is_draft
from assay.data.tables.loading import ESTIMATED_NOTES, NOTES
from assay.data.tables.schema import Schema
from assay.data.units import Sampled, Unit
from assay.distributed.world import world
from assay.errors import BudgetSpentError, ConfigError
from assay.gradients import clip_rules
from assay.methods import denoise as denoise_room
from assay.methods import encode as encode_room
from assay.methods.plan import Plan
from assay.models.torchvision import is_adopted
from assay.models.transfer import load_initial, located, train_only
from assay.runs.budgeted import FIELD, Lease
from assay.runs.callbacks import Callback
from assay.runs.directory import RunDirectory
from assay.runs.result import Result
from assay.runs.statement import scored
from assay.training import augment as augment_room
from assay.training import defaults
from assay.training.estimated_runs import estimate_for, plan_with_estimate
from assay.training.estimating import Estimated
from assay.training.fitting import fit, lease_for
from assay.training.fitting import resume as resume_run
from assay.training.inputs import LOG, UNFINISHED_CHOICE, build, check_features, data_of, is_choice, load, of_run
from assay.training.options import Settings
from assay.training.planning import planned
from assay.training.preflight import check_ranks
from assay.training.settings import Training, pick_device

_FOR_PICTURES, _FOR_ROWS = "lenet5", "linear-head"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """All that a run needs, made from its `Settings`."""

    network: nn.Module
    bundle: DataBundle
    plan: Plan
    training: Training
    names: dict[str, Any]
    source: tuple[Any, ...]
    """What of the settings decides the bundle."""
    budget: str | None = None
    """The budget that the run is under."""
    budget_key: Path | None = None
    lease: Lease | None = None
    """The run's part in it, if it was reserved already."""

    def contents(self) -> Iterator[bytes]:
        """What a budget recognises the training records by: the records themselves, not features made of them."""
        data, data_dir, records, features, validation, _, target, schema, *_ = self.source
        bundle = self.bundle
        if features is not None and bundle.train_keys is None and bundle.row_keys is None:
            bundle = load(data, data_dir, records, validation=validation, target=target, schema=schema)
        return of_bundle(bundle)

    @property
    def units(self) -> Tensor | None:
        """Whose each training record is, where a person is the unit."""
        return self.bundle.train_units

    def check(self, ranks: int = 1) -> None:
        """Refuse what a run on this many ranks would be refused for.

        Raises:
            ConfigError: The device is not there, or the ranks cannot do this together.
        """
        pick_device(self.training.device)
        check_ranks(self.plan, ranks, shard=self.training.shard)
        self.training.at_batch(self.plan.batch_size)

    def check_budget(self) -> None:
        """Refuse a run that its budget does not allow.

        Raises:
            DataError: The budget is for other records.
            BudgetSpentError: The run does not fit. Says what would.
        """
        if self.budget is not None and self.lease is None:
            draws = self.training.randomness().fingerprint
            lease_for(self.budget, self.plan, self.contents(), self.names, None, self.budget_key, draws)

    def fit(
        self,
        *,
        out: Path | None = None,
        force: bool = False,
        callbacks: Iterable[Callback] = (),
        progress: bool | None = False,
    ) -> Result:
        """Train, with the log that the settings ask for; see `assay.fit`."""
        log = self.names["log"]
        with ExitStack() as undo:
            logged: list[Callback] = []
            if log is not None and out is not None:
                logged = undo.enter_context(loggers.logging(log, out, scored(self.names)))
            return fit(
                self.network,
                self.bundle.train,
                plan=self.plan,
                test=self.bundle.test,
                training=self.training,
                out=out,
                force=force,
                names=self.names,
                callbacks=[*callbacks, *logged],
                units=self.units,
                budget=self.lease or self.budget,
                budget_key=self.budget_key,
                contents=None if self.budget is None else self.contents(),
                progress=progress,
            )


def train(
    settings: Settings,
    *,
    out: Path | str | None = None,
    force: bool = False,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
) -> Result:
    """Train a model privately: `assay train` as a call.

        assay.train(assay.Settings(data="digits", model="linear-head", epsilon=3), out="runs/digits")

    Args:
        settings: The run by names; `assay.presets.settings` has some that do well.
        out: A new directory for the run; None writes nothing.
        force: Replace an earlier run in `out`; its ledger stays.
        callbacks: See the run as it goes on, and may end it.
        progress: As for `assay.fit`.

    Returns:
        The model, its record and its statement.

    Raises:
        ConfigError: A setting is not accepted. Nothing was trained or written.
        AssayError: The data or the model cannot be used.
    """
    path = None if out is None else Path(out)
    made = begin_run(settings, out=path, force=force)
    return made.fit(out=path, force=force, callbacks=callbacks, progress=progress)


def resume(run: Path | str, *, data_dir: Path | None = None, callbacks: Iterable[Callback] = ()) -> Result:
    """Resume an unfinished run of `train`: its data and model are those that its `run.json` names.

    Args:
        run: The run's directory.
        data_dir: Where data sets are, if not where the run found them.
        callbacks: See the run as it goes on, and may end it.

    Returns:
        As `train`.

    Raises:
        ConfigError: The run was started from Python with a model of its own; `assay.resume` resumes it.
        BudgetSpentError: It is a choice of `assay tune`, which cannot be resumed.
    """
    path = Path(run)
    spec = RunDirectory.open(path).read_spec()
    if is_choice(spec):
        raise BudgetSpentError(f"{path}: {UNFINISHED_CHOICE}")
    bundle, network = of_run(
        spec, data_dir, spec["training"]["seed"], instead="resume one started from Python with assay.resume"
    )
    names = spec["names"]
    contents = None
    if spec.get(FIELD) is not None:
        made = names.get("features") is not None and bundle.train_keys is None and bundle.row_keys is None
        if spec["plan"].get("columns") is None:
            contents = of_bundle(data_of(spec, data_dir) if made else bundle)
        else:  # those without a usable target are protected, too, and were reserved for
            contents = of_table(names["data"], names.get("unit_column"), Schema.from_json(names["schema"]).delimiter)
    with loggers.logging(names.get("log"), path, scored(names)) as logged:
        return resume_run(
            network,
            bundle.train,
            path,
            test=bundle.test,
            callbacks=[*callbacks, *logged],
            units=bundle.train_units,
            contents=contents,
            progress=False,
        )


def begin_run(settings: Settings, *, out: Path | None = None, force: bool = False) -> Prepared:
    """Prepare a run that is to be trained now. With `schema="auto"`, columns are estimated first, which is charged.

    Args:
        settings: The run by names.
        out: The run's directory; None writes nothing.
        force: Replace an earlier run there.

    Returns:
        As `prepare`.

    Raises:
        ConfigError: A setting is not accepted. Nothing was charged.
    """
    if settings.schema is None or not is_draft(settings.schema):
        return prepare(settings)
    _check_early(settings)
    found = world().once(estimate_for, settings, out, force=force)
    if found.schema.predicts_number and settings.if_number is not None:
        settings = settings.if_number
    return prepare(replace(settings, schema=None), estimated=found)


def plan_of(settings: Settings, *, ranks: int = 1) -> Plan:
    """The plan of a run, which is checked and not trained: `assay train --dry-run`.

    Raises:
        ConfigError: A setting is not accepted.
        BudgetSpentError: The run does not fit into its budget.
    """
    if settings.schema is not None and is_draft(settings.schema):
        _check_early(settings)
        return plan_with_estimate(settings, ranks)
    made = prepare(settings, rehearsal=True)
    made.check(ranks)
    made.check_budget()
    return made.plan


def prepare(
    settings: Settings,
    *,
    like: Prepared | None = None,
    rehearsal: bool = False,
    estimated: Estimated | None = None,
) -> Prepared:
    """Load the data, build the model and find the noise.

    Args:
        settings: The run by names.
        like: Records that it has are not loaded again.
        rehearsal: Nothing will be trained: features are those of one record, repeated.
        estimated: What was estimated of a table's columns; it takes the place of `settings.schema`.

    Returns:
        Everything that `assay.fit` takes.

    Raises:
        ConfigError: A setting is not accepted. For a value that a preset gave, the message says so.
    """
    try:
        return _prepared(settings, like, rehearsal, estimated)
    except ConfigError as error:
        if settings.origin is None or error.field not in settings.preset.keys() - settings.given:
            raise
        option = f"--{error.field.replace('_', '-')}"
        said = f"the value is that of {settings.origin['from']}, and {option} overrides it"
        raise ConfigError(error.field, error.value, f"{error.accepted}; {said}") from error


def _check_early(o: Settings) -> None:
    """Refuse what can be refused before data are loaded."""
    if o.exact_noise and o.seed is not None:
        raise ConfigError(
            "seed", o.seed, "no seed together with exact_noise: a seeded run is reproducible, not private"
        )
    if o.budget is not None and o.validation:
        raise ConfigError(
            "validation",
            True,
            "nothing under a budget: accuracies on training records that were set aside have no noise, and no budget "
            "can count them; assay tune chooses at a cost that is counted",
        )
    if o.log is not None:
        loggers.check(o.log)
    check_features(o.features, o.model, o.augment)
    samplers.parse(o.sampling)  # these are refused before data are loaded
    if o.clip is not None:
        clip_rules.rule_of(o.clip)
    for text in o.encode or ():
        encode_room.parse(text)
    for text in o.denoise or ():
        denoise_room.parse(text)
    Sampled(o.unit_sampling)


def _prepared(o: Settings, like: Prepared | None, rehearsal: bool, estimated: Estimated | None) -> Prepared:
    chosen, training = o.chosen_method, o.training
    _check_early(o)
    if o.schema is not None and is_draft(o.schema):
        raise ConfigError(
            "schema",
            str(o.schema),
            "a schema without auto: an estimate is part of one run of `assay train`, which charges it. A grid, a choice"
            " or a simulation of clients needs a schema that all of its runs share",
        )
    schema = o.schema if estimated is None else estimated.schema.to_json()
    source = (o.data, o.data_dir, o.records, o.features, o.validation, rehearsal, o.target, schema, o.unit)
    if like is not None and like.source == source:
        bundle = like.bundle
    else:
        bundle = load(
            *source[:4],
            validation=o.validation,
            rehearsal=rehearsal,
            target=o.target,
            schema=schema,
            unit=o.unit,
        )
    if o.augment is not None:
        augment_room.check(o.augment, bundle.input_shape)
    init = None if o.init is None else located(o.init, o.data_dir)
    usual = _FOR_PICTURES if len(bundle.input_shape) == 3 else _FOR_ROWS
    model = o.model or chosen.model_for(bundle.input_shape) or usual
    network = build(model, o.circulant, bundle, o.seed)
    digest, fresh = (None, []) if init is None else load_initial(network, init)
    if o.train_layers != "all":
        train_only(network, o.train_layers)
    if init is not None and is_adopted(network) and (note := bundle.note_on_pixels("the checkpoint's network")):
        LOG.warning(note)
    unit = o.unit_of(bundle)
    counted = _counted(bundle, unit)
    if estimated is not None:  # how many of them have a usable target is not public
        unit = None if unit is None else replace(unit, persons=estimated.units)
        counted = estimated.counted
    is_rows = len(bundle.input_shape) == 1
    columns = None if estimated is None else estimated.columns
    plan = planned(
        replace(o.plan(counted, unit, columns, table=is_rows), method=chosen.for_model(network)),
        epsilon=defaults.EPSILON if o.epsilon is None and o.noise_multiplier is None else o.epsilon,
        noise_multiplier=o.noise_multiplier,
        epochs=o.epochs,
    )
    names = {
        "model": model,
        "model_by": "name" if o.model is not None else "default" if model == usual else "method",
        "circulant": o.circulant,
        "init": None if init is None else str(init),
        "init_sha256": digest,
        "init_anew": fresh,
        "train_layers": o.train_layers,
        "data": o.data,
        "features": o.features,
        "inputs": bundle.inputs(),
        "validation_of": bundle.counted + _tested(bundle) if o.validation else None,
        "data_dir": None if o.data_dir is None else str(o.data_dir),
        "split": bundle.split.to_json(),
        "target": None if bundle.schema is None else o.target,
        "schema": None if bundle.schema is None else dict(bundle.schema),
        "task": None if bundle.task is None else bundle.task.to_json(),
        "unit": bundle.unit,
        "unit_column": bundle.unit_column,
        "notes": bundle.notes if estimated is None else bundle.notes.replace(NOTES, ESTIMATED_NOTES),
        "log": o.log,
        "operator": o.operator,
        "tuning": o.described,
    }
    return Prepared(
        network=network,
        bundle=bundle,
        plan=plan,
        training=training,
        names=names,
        source=source,
        budget=o.budget,
        budget_key=o.budget_key,
        lease=None if estimated is None or o.budget is None else Lease.from_json(estimated.lease),
    )


def _tested(bundle: DataBundle) -> int:
    """How many test records, or persons, there are."""
    return len(bundle.test_x) if bundle.test_units is None else int(bundle.test_units.max()) + 1


def _counted(bundle: DataBundle, unit: Unit | None) -> int:
    """How many of what is sampled there are: records, persons, or the rows that are kept of them."""
    if unit is None or bundle.train_units is None:
        return len(bundle.train_x)
    return unit.persons if unit.whole else rows_kept(bundle.train_units, unit.rows)
