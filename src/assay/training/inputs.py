"""Data, models and plans from their names: those that a person gives, and those that a run's `run.json` holds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from assay import features as features_package
from assay import models as models_package
from assay.data import sources
from assay.data.bundle import DataBundle
from assay.data.split import BY_CONTENT, CONTENT, VALIDATION_SHARE, SplitRule
from assay.data.task import Task
from assay.errors import ConfigError
from assay.models.circulant import replace_linear
from assay.models.transfer import load_initial, train_only
from assay.randomness.streams import Seeded
from assay.runs.schema import is_by_name

UNFINISHED_CHOICE = (
    "a choice of `assay tune` that did not end with a model: its budget is spent, nothing was released, and it cannot "
    "be resumed"
)
LOG = logging.getLogger("assay")
"""Progress of long work (INFO) and what a reader should know (WARNING); the command line prints both."""


def load(
    data: str,
    data_dir: Path | None,
    records: int | None,
    features: str | None = None,
    *,
    validation: bool = False,
    rehearsal: bool = False,
    rule: SplitRule = BY_CONTENT,
    target: str | None = None,
    schema: Mapping[str, Any] | Path | str | None = None,
    unit: str | None = None,
) -> DataBundle:
    """The data set of a run.

    Args:
        data: Its name, or a file.
        data_dir: Where to look for it first.
        records: About how many of its training records to take; all by default.
        features: The features that replace the records.
        validation: A tenth of the training records replaces the test records, the same at every call.
        rehearsal: Nothing will be trained: features are those of the first record, repeated.
        rule: How records are drawn; the bundle's `split` gives the same records again.
        target: As for `assay.data.load`.
        schema: As for `assay.data.load`.
        unit: As for `assay.data.load`.

    Raises:
        ConfigError: There is no such data set, or too few records.
        DataError: The data cannot be used.
    """
    wanted = None if features is None else features_package.parse(features)
    bundle = sources.load(data, data_dir, split=rule.by, target=target, schema=schema, unit=unit).limited(records, rule)
    # Before features are computed: their last bits may depend on what else is in a batch.
    aside = _aside(bundle, rule) if validation else None
    if wanted is not None and not rehearsal:
        bundle = features_package.of_bundle(wanted, bundle if aside is None else _with_one_test(bundle), LOG.info)
    if aside is not None:
        bundle = _validated(bundle, aside)
    return bundle if wanted is None or not rehearsal else _rehearsed(wanted, bundle)


def _aside(bundle: DataBundle, rule: SplitRule) -> torch.Tensor:
    """Which training records are set aside to choose settings by."""
    if rule.by == CONTENT:
        aside = bundle.drawn("validation", VALIDATION_SHARE)
    else:
        aside = Seeded(0).stream("validation", 0).uniform(len(bundle.train_x)) * 10 < 1
    if not 0 < int(aside.sum()) < len(aside):
        raise ConfigError("records", len(aside), "many more than 10, to set some aside for validation")
    return aside


def _with_one_test(bundle: DataBundle) -> DataBundle:
    """The data set with its first test record only: others are not measured on, and their features take long."""
    units = None if bundle.test_units is None else bundle.test_units[:1]
    return replace(bundle, test_x=bundle.test_x[:1], test_y=bundle.test_y[:1], test_units=units)


def _validated(bundle: DataBundle, aside: torch.Tensor) -> DataBundle:
    notes = (
        f"{bundle.notes} A tenth of the training records was set aside to choose settings by, and accuracies are those "
        "on it: exact numbers about these records, which ε does not cover."
    )
    if bundle.split.by == CONTENT:
        what = "each record's own content" if bundle.unit_column is None else "the id of the person they belong to"
        notes += f" Which records those are follows from a hash of {what}."
    return replace(bundle.with_test(aside), notes=notes)


def check_features(features: str | None, model: str | None, augment: str | None) -> None:
    """Refuse a model without the features that it is made for, and views of features.

    Args:
        features: The features that replace the records.
        model: The model that was asked for; None for the one that suits the records.
        augment: The views that were asked for.

    Raises:
        ConfigError: The settings do not go together.
    """
    computed = None if features is None else features_package.parse(features).name
    needed = next((info.features for info in models_package.available() if info.name == model), None)
    if needed not in (None, computed):
        raise ConfigError(
            "model",
            model,
            f"--features {needed} beside it, which it is made for; one linear layer on anything else is linear-head",
        )
    if augment is not None and features is not None:
        raise ConfigError(
            "augment",
            augment,
            f"no features beside it: views are made of pictures, and features ({features}) are computed before",
        )


def _rehearsed(features: features_package.Features, bundle: DataBundle) -> DataBundle:
    features.check(bundle.input_shape)
    with torch.no_grad():
        one = features.extract(bundle.train_x[:1]).float()
    train_x, test_x = (one.expand(len(x), *one.shape[1:]) for x in (bundle.train_x, bundle.test_x))  # no copies
    return replace(bundle, train_x=train_x, test_x=test_x, record_shape=bundle.input_shape)


def build(model: str, circulant: int | None, bundle: DataBundle, seed: int | None) -> torch.nn.Module:
    """The model, initialised from the seed, or from the operating system: torch's default seed is a constant.

    Raises:
        ConfigError: There is no such model, or it does not fit the data.
    """
    if seed is None:
        torch.seed()
    else:
        torch.manual_seed(seed)
    network = models_package.build(model, input_shape=bundle.input_shape, classes=bundle.classes)
    if circulant is not None:
        replace_linear(network, circulant)
    return network


def of_run(
    spec: dict[str, Any], data_dir: Path | None, seed: int | None, *, instead: str
) -> tuple[DataBundle, torch.nn.Module]:
    """The data and a new model of a run, by the names that `assay train` was given.

    Args:
        spec: What run.json says.
        data_dir: Where data sets are, if not where the run found them.
        seed: The seed of the model's initial weights.
        instead: What to do with a run that was started from Python.

    Raises:
        ConfigError: The run has no names, or the data are not those of the run.
    """
    names = spec["names"]
    if "data" not in names or not is_by_name(spec):
        raise ConfigError("run", "a run started from Python", f"a run started with `assay train`; {instead}")
    check_not_chosen(spec)
    used = spec["plan"].get("records") or names.get("records")  # a federated plan counts clients
    bundle = data_of(spec, data_dir, names.get("features"))
    protected = spec["plan"].get("unit")
    if isinstance(protected, dict):
        used, there, what = protected["persons"], bundle.persons, "persons"
    else:
        there, what = len(bundle.train_x), "records"
    lacking = spec["plan"].get("columns") is not None and (there or 0) < used  # `Plan.may_lack_records`
    if there != used and not lacking:
        raise ConfigError("data", names["data"], f"the {what} of the run: it used {used}, here there are {there}")
    return bundle, network_of(names, bundle, seed)


def data_of(spec: Mapping[str, Any], data_dir: Path | None, features: str | None = None) -> DataBundle:
    """The data of a run by its names, with these features in place of the records.

    Args:
        spec: What run.json says.
        data_dir: Where data sets are, if not where the run found them.
        features: The features; the records themselves by default.
    """
    names = spec["names"]
    known = names.get("data_dir")
    whole, rule = names.get("validation_of"), SplitRule.from_json(names.get("split"))
    return load(
        names["data"],
        data_dir or (None if known is None else Path(known)),
        None if rule.by == CONTENT else whole or spec["plan"].get("records") or names.get("records"),
        features,
        validation=whole is not None,
        rule=rule,
        target=names.get("target"),
        schema=names.get("schema"),
        unit=names.get("unit_column"),
    )


def is_choice(spec: Mapping[str, Any]) -> bool:
    """Whether run.json describes a choice of `assay tune` that was charged."""
    return bool((spec["names"].get("tuning") or {}).get("charged"))


def check_not_chosen(spec: Mapping[str, Any]) -> None:
    """Refuse a model that `assay tune` chose and charged.

    It is the best of several, trained on records that were drawn in secret. What one training shows says nothing of it.

    Raises:
        ConfigError: It is such a model.
    """
    if is_choice(spec):
        raise ConfigError(
            "run",
            "a model that assay tune chose",
            "a run of `assay train`, with the settings that were chosen: which records this model was trained on was "
            "drawn in secret and not kept",
        )


def check_classes(spec: Mapping[str, Any]) -> None:
    """Refuse a run that does not tell classes apart: attacks, and audits that train again, are made for those.

    Args:
        spec: What run.json says.

    Raises:
        ConfigError: the run predicts labels or a number.
    """
    said = spec["names"].get("task")
    if said is not None and not Task.from_json(said).is_classification:
        raise ConfigError(
            "run", f"a {said['kind']}", "a run that tells classes apart: attacks and canaries need classes"
        )


def network_of(names: Mapping[str, Any], bundle: DataBundle, seed: int | None) -> torch.nn.Module:
    """A new model of a run, by its names. A checkpoint that it began with must still be there, unchanged.

    Raises:
        ConfigError: The run has no name for its model, or the checkpoint is not the same.
    """
    if "model" not in names:
        raise ConfigError("run", "a run whose model has no name", "a run started with `assay train`")
    network = build(names["model"], names.get("circulant"), bundle, seed)
    if names.get("init") is not None:
        load_initial(network, Path(names["init"]), names.get("init_sha256"))
    train_only(network, names.get("train_layers", "all"))
    return network
