"""The settings that a choice tries: which may vary, all their combinations, and the run that each stands for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from assay.errors import ConfigError, UnsupportedModelError
from assay.runs.statement import large_delta
from assay.training.from_names import Prepared, prepare
from assay.training.inputs import LOG
from assay.training.options import Settings, read_option

DECIDED = ("epsilon", "noise_multiplier", "seed", "validation", "log")
"""Settings that a choice decides itself."""
_DATA_AND_BUDGET = {
    "data", "data_dir", "records", "preset", "delta", "adjacency", "variant", "device", "budget", "budget_key",
    "operator",
}  # fmt: skip
_DECIDES_EPSILON = {
    "method", "option", "groups", "noise_form", "encode", "epochs", "batch_size", "micro_batch", "center",
    "noise_schedule", "sampling",
}  # fmt: skip
Tried = Mapping[str, Sequence[Any]]


def in_words(setting: Mapping[str, str]) -> str:
    """A setting that is tried, as text."""
    return " ".join(f"{name.replace('_', '-')}={value}" for name, value in setting.items())


def combinations(tried: Tried, public: bool) -> list[dict[str, str]]:
    """Every setting to try, as texts by name.

    Raises:
        ConfigError: An option may not vary, or a value is given twice or not accepted.
    """
    axes: dict[str, list[str]] = {}
    for name, values in tried.items():
        text = f"{name}={','.join(map(str, values))}"
        _check_may_vary(name, text, public)
        if not values:
            raise ConfigError("try", text, "at least one value")
        axes[name] = [str(value) for value in values]
        if len({_taken(name, value) for value in axes[name]}) < len(axes[name]):
            raise ConfigError("try", text, "each value once")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _taken(name: str, value: str) -> Any:
    with naming_the_setting({name: value}):
        taken = read_option(Settings.options(), name, value, "assay train")
        return tuple(taken) if isinstance(taken, list) else taken


def _check_may_vary(name: str, text: str, public: bool) -> None:
    """Refuse an option that all trials must share: data and budget, and on private records what decides ε."""
    free = {known for known, kind in Settings.options().items() if kind is not bool} - _DATA_AND_BUDGET - set(DECIDED)
    if public and name not in free:
        raise ConfigError(
            "try", text, f"an option of `assay train` that names neither data nor budget ({_listed(free)})"
        )
    if not public and name not in free - _DECIDES_EPSILON:
        raise ConfigError(
            "try",
            text,
            f"an option of `assay train` that does not decide ε ({_listed(free - _DECIDES_EPSILON)}); "
            f"with --public also {_listed(free & _DECIDES_EPSILON)}",
        )


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(name.replace("_", "-") for name in names))


@contextmanager
def naming_the_setting(setting: dict[str, str]) -> Iterator[None]:
    """A context in which errors about a value that is tried name --try."""
    try:
        yield
    except ConfigError as error:
        if error.field.split()[0] not in setting:
            raise
        raise ConfigError("try", in_words(setting), str(error)) from error
    except UnsupportedModelError as error:
        if "model" not in setting:
            raise
        raise UnsupportedModelError(f"--try {in_words(setting)}: {error}") from error


def one_made(
    shared: Settings,
    setting: dict[str, str],
    seed: int | None,
    more: dict[str, Any],
    like: Prepared | None,
    rehearsal: bool,
) -> Prepared:
    """What `assay train` would train with. If an option may be repeated, its value is added to those of all trials."""
    with naming_the_setting(setting):
        given: dict[str, Any] = {}
        for name, text in setting.items():
            value = read_option(Settings.options(), name, text, "assay train")
            given[name] = [*(getattr(shared, name) or ()), *value] if isinstance(value, list) else value
        return prepare(shared.changed(**given, seed=seed, **more), like=like, rehearsal=rehearsal)


def all_made(
    shared: Settings, settings: list[dict[str, str]], seed: int | None, more: dict[str, Any], rehearsal: bool
) -> list[Prepared]:
    """One for each setting. Records are in memory once, unless a setting changes them."""
    made: list[Prepared] = []
    for setting in settings:
        made.append(one_made(shared, setting, seed, more, made[-1] if made else None, rehearsal))
        task = made[-1].bundle.what
        if not task.is_classification:
            raise ConfigError("target", task.kind, "classes: settings are chosen by their accuracy")
    return made


def in_common(described: list[dict[str, Any]]) -> dict[str, Any]:
    """The entries on which all agree; dictionaries are compared entry by entry."""
    first, *rest = described
    kept: dict[str, Any] = {}
    for key, value in first.items():
        others = [one[key] for one in rest if key in one]
        if len(others) == len(rest) and all(other == value for other in others):
            kept[key] = value
        elif isinstance(value, dict) and len(others) == len(rest) and all(isinstance(other, dict) for other in others):
            kept[key] = in_common([value, *others])
    return kept


def note_delta(delta: float, records: int) -> None:
    """Warn where δ is too large for this number of records."""
    if (said := large_delta(delta, records)) is not None:
        LOG.warning(said)
