"""From the settings of a federated run by name to everything that the run needs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent

from assay import models
from assay.accounting.adjacency import CLIENT
from assay.data import DataBundle, catalog
from assay.data.identity import of_bundle
from assay.errors import ConfigError, one_of
from assay.federated import methods, partition
from assay.federated import transport as carriers
from assay.federated.layout import Layout
from assay.federated.local import Training
from assay.federated.plan import NOISES, UNITS, FederatedPlan, Silo
from assay.federated.server import federate as run_rounds
from assay.federated.server import resume as resume_rounds
from assay.federated.server import run_spec, site_settings
from assay.methods import given_once
from assay.models.compat import trainable_layers
from assay.runs.budgeted import FIELD, Lease, lease, unit_in
from assay.runs.callbacks import Callback
from assay.runs.directory import RunDirectory
from assay.runs.result import Result
from assay.training.inputs import build, check_features, load, of_run
from assay.training.options import options_of, read_options
from assay.training.planning import check_ceiling


@dataclass(frozen=True, kw_only=True)
class FederatedSettings:
    """A federated run by names: what `assay federate` takes, with the same defaults.

    settings = FederatedSettings(data="digits", model="linear-head", clients=20, rounds=5)
    federate(settings, out="runs/federated")
    """

    method: str = "fedavg"
    variant: str | None = None
    option: Sequence[str] | None = None
    data: str = catalog.DEFAULT
    records: int | None = None
    model: str = "lenet5"
    circulant: int | None = None
    clients: int = 100
    per_round: int | None = None
    rounds: int = 200
    partition: str = "iid"
    show_partition: bool = False
    partition_seed: int = 0
    unit: str = "client"
    noise: str | None = None
    min_answers: int | None = None
    epsilon: float | None = None
    delta: float = 1e-3
    noise_multiplier: float | None = None
    clip: float = 1.0
    local_epochs: int = 1
    local_steps: int | None = None
    batch_size: int = 128
    lr: float = 0.1
    server_lr: float | None = None
    weight_records: int | None = None
    keep_models: int = 0
    engine: str = "serial"
    superlink: str | None = None
    certificates: Path | None = None
    seed: int | None = None
    secure_rng: bool = False
    data_dir: Path | None = None
    budget: str | None = None
    budget_key: Path | None = None
    operator: str | None = None

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The names that a person may give, and their types."""
        return options_of(cls)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> FederatedSettings:
        """Settings from names and values as a command line or a TOML file has them: numbers may be text.

        Raises:
            ConfigError: A name is not known, or a value is not of its type.
        """
        return cls(**read_options(cls.options(), given, "assay federate"))


@dataclass(frozen=True, kw_only=True)
class PreparedFederation:
    """Everything that a federated run needs, made from its settings."""

    network: torch.nn.Module
    bundle: DataBundle
    plan: FederatedPlan
    training: Training
    names: dict[str, Any]
    engine: str
    reach: carriers.Reach
    picture: str
    """The title of a picture of the partition."""
    budget: str | None = None
    """The budget that the run is under."""
    budget_key: Path | None = None

    def run(self, *, out: Path, force: bool = False, callbacks: Iterable[Callback] = ()) -> Result:
        """Train across the clients; see `federate`."""
        spec = run_spec(self.plan, self.training, self.names, self.engine, vars(self.reach))
        mine = self._lease(out)
        if mine is not None:
            spec[FIELD] = mine.to_json()
        directory = RunDirectory.create(out, spec, force=force)
        if self.names["counts"] is not None:
            partition.draw(np.asarray(self.names["counts"]), out / "partition.png", self.picture)
        carrier = carriers.open_carrier(self.engine, site_settings(spec, directory), out, self.reach)
        try:
            return run_rounds(
                self.network,
                carrier,
                plan=self.plan,
                training=self.training,
                names=self.names,
                test=self.bundle.test,
                directory=directory,
                callbacks=callbacks,
                lease=mine,
            )
        finally:
            carrier.close()

    def contents(self) -> Iterator[bytes]:
        """What a budget recognises the clients' records by."""
        return of_bundle(self.bundle)

    def _lease(self, out: Path) -> Lease | None:
        """Check that the run fits into its budget, before anything is written."""
        if self.budget is None:
            return None
        plan = self.plan

        def noisier(times: float) -> tuple[DpEvent, float]:
            more = replace(plan, noise_multiplier=times * plan.noise_multiplier, epsilon_limit=None)
            return more.event(), more.epsilon()

        return lease(
            self.budget,
            plan,
            self.contents(),
            name=str(out),
            what=f"{plan.method.name}, federated, on {self.names['data']}",
            key=self.budget_key,
            by=self.names["operator"],
            noisier=noisier if plan.noise_multiplier > 0 else None,
            draws=self.training.randomness().fingerprint,
            clients=unit_in({"plan": plan.to_json(), "names": self.names}) if plan.unit == CLIENT else None,
        )


def federate(
    settings: FederatedSettings, *, out: Path | str, force: bool = False, callbacks: Iterable[Callback] = ()
) -> Result:
    """Train one model across clients that keep their records: `assay federate` as a call.

        federate(FederatedSettings(data="digits", model="linear-head", clients=20, rounds=5), out="runs/federated")

    Args:
        settings: The run by names.
        out: A new directory for the run.
        force: Replace an earlier run in `out`; its ledger stays.
        callbacks: Told about the run's progress; they may end it.

    Returns:
        The model, its record and its statement.

    Raises:
        ConfigError: A setting is not accepted. Nothing was trained or written.
    """
    return prepare(settings).run(out=Path(out), force=force, callbacks=callbacks)


def resume(run: Path | str, *, data_dir: Path | None = None, callbacks: Iterable[Callback] = ()) -> Result:
    """Resume an unfinished run of `federate`.

    Args:
        run: The run's directory.
        data_dir: Where data sets are, if they have moved since.
        callbacks: Told about the run's progress; they may end it.

    Returns:
        As `federate`.

    Raises:
        ConfigError: The run was started from Python with a model or data that have no name.
    """
    directory = RunDirectory.open(Path(run))
    spec = directory.read_spec()
    bundle, network = of_run(
        spec, data_dir, spec["training"]["seed"], instead="continue one from Python with assay.federated.server.resume"
    )
    if (mine := Lease.from_json(spec.get(FIELD))) is not None:
        mine.check_records(of_bundle(bundle))
    if data_dir is not None:
        spec["names"] = {**spec["names"], "data_dir": str(data_dir)}
    reach = carriers.Reach(**spec["reach"])
    carrier = carriers.open_carrier(spec["engine"], site_settings(spec, directory), directory.path, reach)
    try:
        return resume_rounds(network, carrier, directory, test=bundle.test, callbacks=callbacks)
    finally:
        carrier.close()


def prepare(o: FederatedSettings) -> PreparedFederation:
    """Load and divide the data, build the model and find the noise.

    Args:
        o: The run by names.

    Returns:
        Everything that the run needs.

    Raises:
        ConfigError: A setting is not accepted.
    """
    chosen = methods.get(o.method, **given_once(o.option, {"variant": o.variant}))
    for name, value, known in (("unit", o.unit, UNITS), ("noise", o.noise, (*NOISES, None))):
        if value not in known:
            raise ConfigError(name, value, one_of(value, filter(None, known)))
    reach = carriers.Reach(
        superlink=o.superlink, certificates=None if o.certificates is None else str(o.certificates.absolute())
    )
    carriers.check(o.engine, reach)
    training = Training(
        epochs=o.local_epochs,
        steps=o.local_steps,
        batch_size=o.batch_size,
        lr=o.lr,
        server_lr=(o.lr if chosen.variant == "published" else 1.0) if o.server_lr is None else o.server_lr,
        weight_records=o.weight_records,
        seed=o.seed,
        secure_rng=o.secure_rng,
        keep_models=o.keep_models,
    )
    divided = partition.parse(o.partition)
    check_features(None, o.model, None)
    bundle = load(o.data, o.data_dir, o.records)
    if bundle.unit_column is not None:
        raise ConfigError("data", o.data, f"single records, and not those of persons ({bundle.unit_column})")
    network = build(o.model, o.circulant, bundle, o.seed)
    labels = bundle.train_y.numpy()
    parts = divided.divide(labels, o.clients, o.partition_seed)
    sizes = [len(part) for part in parts]
    silo = _silo(network, sizes, training) if o.unit == "record" else None
    usual = o.clients if o.unit == "record" else max(1, o.clients // 10)
    plan = _plan(
        FederatedPlan(
            clients=o.clients,
            per_round=usual if o.per_round is None else o.per_round,
            rounds=o.rounds,
            size=Layout.of(network, parameters_only=o.unit == "record").size,
            noise_multiplier=1.0 if o.noise_multiplier is None else o.noise_multiplier,
            delta=o.delta,
            clip=o.clip,
            unit=o.unit,
            noise=chosen.noises[0] if o.noise is None else o.noise,
            minimum=o.min_answers,
            public_seed=secrets.randbits(63) if o.seed is None else o.seed,
            silo=silo,
            method=chosen,
        ),
        o.epsilon,
        o.noise_multiplier,
    )
    table = partition.counts(labels, parts, bundle.classes) if o.show_partition else None
    names = {
        "model": o.model,
        "circulant": o.circulant,
        "data": o.data,
        "data_dir": None if o.data_dir is None else str(o.data_dir),
        "records": len(labels),
        "inputs": bundle.inputs(),
        "split": bundle.split.to_json(),
        "unit": bundle.unit,
        "notes": bundle.notes,
        "partition": str(divided),
        "partition_seed": o.partition_seed,
        "counts": None if table is None else table.tolist(),
        "sizes": sizes if o.unit == "record" else None,
        "operator": o.operator,
    }
    return PreparedFederation(
        network=network,
        bundle=bundle,
        plan=plan,
        training=training,
        names=names,
        engine=o.engine,
        reach=reach,
        picture=f"{o.data}, {divided}, {o.clients} clients",
        budget=o.budget,
        budget_key=o.budget_key,
    )


def _silo(network: torch.nn.Module, sizes: list[int], training: Training) -> Silo:
    """DP-SGD at the clients. Each takes as many steps as `epochs` are for a client of average size."""
    models.compat.check(network)
    trainable_layers(network)
    held = [size for size in sizes if size]
    steps = training.steps or max(1, round(training.epochs * float(np.mean(held)) / training.batch_size))
    return Silo(records=min(held), batch_size=training.batch_size, steps=steps)


def _plan(start: FederatedPlan, epsilon: float | None, noise_multiplier: float | None) -> FederatedPlan:
    """Find the noise for ε. If the noise is given, ε is a ceiling that may end the run early."""
    if noise_multiplier is None:
        return start.calibrated(1.0 if epsilon is None else epsilon)
    check_ceiling(epsilon, start.method.variant)
    return replace(start, epsilon_limit=epsilon)
