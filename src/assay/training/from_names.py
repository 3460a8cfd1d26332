"""From the settings of a run by name to all that it needs: model, records, plan and how it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import EnumType
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from assay import features as features_room
from assay import loggers
from assay import methods as methods_room
from assay.accounting import schedules
from assay.accounting.budget import folder_of
from assay.accounting.epsilon import Adjacency
from assay.accounting.ledger import Ledger
from assay.data import DataBundle, catalog, samplers
from assay.data.identity import of_bundle, of_keys
from assay.data.persons import rows_kept
from assay.data.tables.drafts import Draft, Private, is_draft, read_draft, training_rows
from assay.data.tables.loading import ESTIMATED_NOTES, NOTES
from assay.data.tables.names import is_table
from assay.data.tables.schema import Schema
from assay.data.units import Sampled, Unit
from assay.distributed.launch import restarted
from assay.distributed.world import world
from assay.errors import BudgetSpentError, ConfigError
from assay.gradients import clip_rules
from assay.methods import denoise as denoise_room
from assay.methods import encode as encode_room
from assay.methods import method_of
from assay.methods.columns import Columns
from assay.methods.perturb.mean import parse as parse_center
from assay.methods.plan import Plan
from assay.models.torchvision import is_adopted
from assay.models.transfer import begin, located
from assay.runs.budgeted import FIELD, Lease
from assay.runs.callbacks import Callback
from assay.runs.directory import RunDirectory
from assay.runs.result import Result
from assay.runs.statement import scored
from assay.training import augment as augment_room
from assay.training import defaults
from assay.training.estimating import Estimated, Terms, cost_of, estimate
from assay.training.fitting import fit, lease_for
from assay.training.fitting import resume as resume_run
from assay.training.inputs import LOG, UNFINISHED_CHOICE, build, check_features, is_choice, load, of_run
from assay.training.planning import planned
from assay.training.preflight import check_ranks
from assay.training.settings import Optimizer, Training, pick_device

_DEFAULT_MODEL = "lenet5"
_READ: Mapping[str, Callable[[str], object]] = {
    "clip": clip_rules.rule_of,
    "features": features_room.parse,
    "center": parse_center,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run by names: what `assay train` takes, with the same defaults.

    `assay.presets.settings` fills one with settings that do well. Names are read when the run is prepared: what is not
    accepted is refused then, before anything is trained or written.

    >>> settings = Settings(data="digits", model="linear-head", epsilon=3, epochs=4)
    >>> settings.method, settings.delta
    ('dpsgd', 1e-05)

    `assay.train(settings, out="runs/digits")` then trains.
    """

    method: str = defaults.METHOD
    variant: str | None = None
    noise_form: str | None = None
    groups: int | None = None
    option: Sequence[str] | None = None
    encode: Sequence[str] | None = None
    denoise: Sequence[str] | None = None
    data: str = catalog.DEFAULT
    target: str | None = None
    schema: Path | None = None
    records: int | None = None
    unit: str | None = None
    unit_rows: int | None = None
    unit_sampling: str = "persons"
    validation: bool = False
    features: str | None = None
    model: str | None = None
    """A model's name. None: the one that the method brings for such records (`Method.model_for`), or LeNet-5."""
    init: Path | None = None
    train_layers: str = "all"
    circulant: int | None = None
    epsilon: float | None = None
    delta: float = defaults.DELTA
    noise_multiplier: float | None = None
    epochs: float = defaults.EPOCHS
    batch_size: float | None = None
    clip: str | float | None = None
    micro_batch: int = 1
    center: str | None = None
    noise_schedule: str = "constant"
    sampling: str = "poisson"
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE
    optimizer: str | None = None
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float = 0.0
    schedule: str = defaults.SCHEDULE
    warmup: float = 0.0
    ema: float | None = None
    tail: float | None = None
    scale_from: float | None = None
    augment: str | None = None
    max_physical_batch: int | None = None
    seed: int | None = None
    secure_rng: bool = False
    exact_noise: bool = False
    device: str = "auto"
    shard: bool = False
    precision: str = "float32"
    data_dir: Path | None = None
    log: str | None = None
    budget: str | None = None
    budget_key: Path | None = None
    operator: str | None = None
    origin: Mapping[str, Any] | None = None
    """How the settings were found, for the record: `Preset.origin`."""
    preset: Mapping[str, Any] = field(default_factory=dict)
    """What the preset says that these settings were filled with."""
    given: frozenset[str] = frozenset()
    """The settings that a person gave beside the preset, and that go before it."""
    if_number: Settings | None = None
    """The settings that replace these if the target turns out to be a number (`--schema auto`)."""

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The names that a person may give, and their types."""
        return options_of(cls, without=("origin", "preset", "given", "if_number"))

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Settings:
        """Settings from names and values as a command line or a TOML file has them: numbers may be text.

        Raises:
            ConfigError: A name is not known, or a value is not of its type.
        """
        return cls(**read_options(cls.options(), given, "assay train"))

    def changed(self, **changes: Any) -> Settings:
        """These settings with some replaced; the record tells where they differ from a preset."""
        return replace(self, **changes, given=self.given | changes.keys())

    @property
    def described(self) -> dict[str, Any] | None:
        """How the settings were found, and which of a preset were replaced by others; for the record."""
        if self.origin is None:
            return None
        differ = [name for name in self.preset if name in self.given and self._differs(name)]
        return {**self.origin, "changed": differ}

    def _differs(self, name: str) -> bool:
        """Whether it is another value than the preset's, and not the same one written differently."""
        mine, said, read = getattr(self, name), self.preset[name], _READ.get(name)
        return bool(mine != said if read is None else read(mine) != read(said))

    @property
    def chosen_method(self) -> methods_room.Method:
        """The method with its options.

        Raises:
            ConfigError: There is no such method, or it does not take an option.
        """
        return method_of(self.method, self.variant, self.noise_form, self.groups, self.option)

    @property
    def training(self) -> Training:
        """How the run trains, apart from what decides ε.

        Raises:
            ConfigError: A setting is not accepted.
        """
        return Training(
            optimizer=Optimizer(
                name=self.optimizer or self.chosen_method.optimizer,
                lr=self.lr,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                schedule=self.schedule,
                warmup=self.warmup,
            ),
            ema=self.ema,
            tail=self.tail,
            scale_from=self.scale_from,
            augment=self.augment,
            seed=self.seed,
            secure_rng=self.secure_rng,
            max_physical_batch=self.max_physical_batch,
            device=self.device,
            shard=self.shard,
            precision=self.precision,
        )

    def unit_of(self, bundle: DataBundle) -> Unit | None:
        """Who is protected in this data set, where it is a person with all of their rows.

        Args:
            bundle: The data set, loaded with `unit`.

        Raises:
            ConfigError: A setting of the unit is not accepted, or is given without a unit.
        """
        sampled = Sampled(self.unit_sampling)
        if self.unit is None:
            if self.unit_rows is not None:
                raise ConfigError("unit_rows", self.unit_rows, "nothing without --unit, which says whose a row is")
            return None
        assert bundle.unit_column is not None
        assert bundle.persons is not None
        return Unit(name=bundle.unit_column, persons=bundle.persons, rows=self.unit_rows, sampled=sampled)

    def plan(
        self, records: int, unit: Unit | None = None, columns: Columns | None = None, *, table: bool = False
    ) -> Plan:
        """These settings as a `Plan` of one step with noise of 1; `planned` finds both.

        Args:
            records: How many training records, or persons where these are sampled, there are.
            unit: Who is protected, where it is not a record.
            columns: What was estimated of a table's columns.
            table: Whether records are rows of numbers, which have larger batches by default.

        Raises:
            ConfigError: A part (clipping, an encoding, a method) is not accepted.
        """
        sampling = samplers.parse(self.sampling)
        usual = defaults.batch_size(records, whole=sampling.whole, table=table)
        return Plan(
            records=records,
            batch_size=usual if self.batch_size is None else self.batch_size,
            steps=1,
            noise_multiplier=1.0,
            delta=self.delta,
            clip=self.clip,
            micro_batch=self.micro_batch,
            center=None if self.center is None else parse_center(self.center),
            columns=columns,
            noise_schedule=schedules.parse(self.noise_schedule),
            sampling=sampling,
            adjacency=self.adjacency,
            method=self.chosen_method,
            encode=[encode_room.parse(text) for text in self.encode or ()],
            denoise=[denoise_room.parse(text) for text in self.denoise or ()],
            unit=unit,
            exact=self.exact_noise,
        )


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
            lease_for(self.budget, self.plan, self.contents(), self.names, None, self.budget_key)

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
        with loggers.logging(None if out is None else log, out or Path(), scored(self.names)) as logged:
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
    with loggers.logging(names.get("log"), path, scored(names)) as logged:
        return resume_run(
            network,
            bundle.train,
            path,
            test=bundle.test,
            callbacks=[*callbacks, *logged],
            units=bundle.train_units,
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
    if not is_draft(settings.schema):
        return prepare(settings)
    found = world().once(lambda: _estimate(settings, out, force))
    if found.schema.predicts_number and settings.if_number is not None:
        settings = settings.if_number
    return prepare(replace(settings, schema=None), estimated=found)


def plan_of(settings: Settings, *, ranks: int = 1) -> Plan:
    """The plan of a run, which is checked and not trained: `assay train --dry-run`.

    Raises:
        ConfigError: A setting is not accepted.
        BudgetSpentError: The run does not fit into its budget.
    """
    if is_draft(settings.schema):
        private, _, plan, _ = _before_estimate(settings)
        check_ranks(plan, ranks, shard=settings.shard)
        if settings.budget is not None:
            _lease_before(settings, plan, private, None)
        return plan
    made = prepare(settings, rehearsal=True)
    made.check(ranks)
    made.check_budget()
    return made.plan


def _estimate(o: Settings, out: Path | None, force: bool) -> Estimated:
    """Charge and make the estimate of a table's columns; for ranks that were started again, the one of their run."""
    if restarted() and out is not None and (run := RunDirectory(out)).spec.exists():
        spec = run.read_spec()
        columns = Plan.from_json(spec["plan"]).columns
        if columns is not None:
            begun = Plan.from_json(spec["plan"])
            return Estimated(
                schema=Schema.from_json(spec["names"]["schema"]),
                columns=columns,
                units=begun.records if begun.unit is None else begun.unit.persons,
                counted=begun.records,
                lease=spec.get(FIELD),
            )
    private, draft, plan, terms = _before_estimate(o)
    assert plan.columns is not None
    pick_device(o.device)

    def reserve(digest: str, ledger: Ledger) -> Mapping[str, Any]:
        mine = _lease_before(o, plan, private, out)
        ledger.covers = mine.begin(plan, None if out is None else RunDirectory(out), ledger, digest=digest).covers
        return mine.to_json()

    return estimate(
        private,
        draft,
        plan.records,
        plan.columns,
        terms,
        o.training.randomness(),
        out=out,
        force=force,
        reserve=None if o.budget is None else reserve,
    )


def _lease_before(o: Settings, plan: Plan, private: Private, out: Path | None) -> Lease:
    assert o.budget is not None
    contents = of_keys(private.keys, o.unit)
    return lease_for(o.budget, plan, contents, {"data": o.data, "operator": o.operator}, out, o.budget_key)


def _before_estimate(o: Settings) -> tuple[Private, Draft, Plan, Terms]:
    """All that is known of a run before its columns are estimated, from public facts; and the rows.

    Raises:
        ConfigError: Something is asked for that an estimate does not go together with.
    """
    _check_early(o)
    assert o.schema is not None
    for name, value, accepted in (
        ("records", o.records, "all records"),
        ("validation", o.validation or None, "no records set aside"),
        ("features", o.features, "no features"),
        ("method", o.method if o.chosen_method.needs_layers else None, "a method that needs no layers"),
    ):
        if value is not None:
            raise ConfigError(name, value, f"{accepted} with --schema auto")
    if not is_table(o.data):
        raise ConfigError("schema", str(o.schema), "a table (.csv, .tsv, .parquet), whose columns can be estimated")
    path = Path(o.data).expanduser()
    draft = read_draft(path, o.schema, o.target, o.unit)
    if not draft.wanted:
        raise ConfigError("schema", str(o.schema), "a column that is to be estimated; none is left")
    private = training_rows(path, draft, o.unit)
    if o.epsilon is None and o.noise_multiplier is not None:
        raise ConfigError("epsilon", None, "a number with --schema auto: a share of it is for the estimate")
    terms = Terms(
        epsilon=defaults.EPSILON if o.epsilon is None else o.epsilon,
        delta=o.delta,
        adjacency=o.adjacency,
        budget=None if o.budget is None else str(folder_of(o.budget).absolute()),
        data=o.data,
        unit=o.unit,
    )
    columns = cost_of(draft, private.units, terms)
    unit, counted = None, private.units
    if o.unit is not None:
        sampled = Sampled(o.unit_sampling)
        unit = Unit(name=o.unit, persons=private.units, rows=o.unit_rows, sampled=sampled)
        if not unit.whole:
            counted = rows_kept(torch.from_numpy(private.owner), unit.rows)
    plan = planned(
        o.plan(counted, unit, columns, table=True),
        epsilon=terms.epsilon,
        noise_multiplier=o.noise_multiplier,
        epochs=o.epochs,
    )
    if plan.stage is not None and not plan.stage.takes_fewer:
        raise ConfigError("method", o.method, "one that releases nothing before training, with --schema auto")
    return private, draft, plan, terms


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
        said = f"the value is that of {settings.origin['from']}, and {option} typed beside it goes before it"
        raise ConfigError(error.field, error.value, f"{error.accepted}; {said}") from error


def options_of(settings: type, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a class of settings, by name, with the type of a value that is there."""
    hints = get_type_hints(settings)
    return {name: _kind(hint) for name, hint in hints.items() if name not in without}


def _kind(hint: Any) -> Any:
    """The type of a value: of `float | None` float."""
    if isinstance(hint, UnionType):
        return _kind(next(one for one in get_args(hint) if one is not type(None)))
    return get_origin(hint) or hint


def read_options(known: Mapping[str, Any], given: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Values of the types of `known`.

    Raises:
        ConfigError: A name is not known, or a value is not of its type.
    """
    return {name: read_option(known, name, value, command) for name, value in given.items()}


def read_option(known: Mapping[str, Any], name: str, value: Any, command: str) -> Any:
    """One value, of the type that its name has in `known`; text is read.

    Raises:
        ConfigError: The name is not known, or the value is not of its type.
    """
    if name not in known:
        raise ConfigError(name, value, f"an option of {command}: {', '.join(known)}")
    kind = known[name]
    if kind is Sequence:
        return [str(one) for one in (value if isinstance(value, list | tuple) else [value])]
    if value is None or (isinstance(value, kind) and not (kind is not bool and isinstance(value, bool))):
        return value
    if kind is bool or isinstance(value, bool) or (kind is int and isinstance(value, float) and value != int(value)):
        raise ConfigError(name, value, "true or false" if kind is bool else _WORDS.get(kind, "a value"))
    try:
        return kind(value)
    except (TypeError, ValueError):
        accepted = ", ".join(kind) if isinstance(kind, EnumType) else _WORDS.get(kind, "a value")
        raise ConfigError(name, value, accepted) from None


_WORDS: Mapping[Any, str] = {int: "a whole number", float: "a number", str: "a text", Path: "a path"}


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
    check_features(o.features, o.model or _DEFAULT_MODEL, o.augment)
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
    if is_draft(o.schema):
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
    model = o.model or chosen.model_for(bundle.input_shape) or _DEFAULT_MODEL
    network = build(model, o.circulant, bundle, o.seed)
    start = begin(network, init, o.train_layers)
    if is_adopted(network) and (note := bundle.note_on_pixels("the checkpoint's network")):
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
        "model_by": "name" if o.model is not None else "default" if model == _DEFAULT_MODEL else "method",
        "circulant": o.circulant,
        **start,
        "data": o.data,
        "features": o.features,
        "inputs": bundle.inputs(),
        "validation_of": len(bundle.train_x) + len(bundle.test_x) if o.validation else None,
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


def _counted(bundle: DataBundle, unit: Unit | None) -> int:
    """How many of what is sampled there are: records, persons, or the rows that are kept of them."""
    if unit is None or bundle.train_units is None:
        return len(bundle.train_x)
    return unit.persons if unit.whole else rows_kept(bundle.train_units, unit.rows)
