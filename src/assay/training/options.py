"""A run by names: the options of `assay train`, and how values of options are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import EnumType
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from assay import features as features_room
from assay import methods as methods_room
from assay.accounting import schedules
from assay.accounting.epsilon import Adjacency
from assay.data import DataBundle, catalog, samplers
from assay.data.units import Sampled, Unit
from assay.errors import ConfigError
from assay.gradients import clip_rules
from assay.methods import denoise as denoise_room
from assay.methods import encode as encode_room
from assay.methods import method_of
from assay.methods.columns import Columns
from assay.methods.perturb.mean import parse as parse_center
from assay.methods.plan import Plan
from assay.training import defaults
from assay.training.planning import usual_batch_size
from assay.training.settings import Optimizer, Training

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
    """A model's name. None: what the method brings for such records (`Method.model_for`), or else `lenet5` for pictures
    and `linear-head` for rows of numbers."""
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
    """The settings that a person gave beside the preset, which override it."""
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
        usual = usual_batch_size(records, whole=sampling.whole, table=table)
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
