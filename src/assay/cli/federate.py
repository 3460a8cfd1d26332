"""`assay federate`: train across clients; `assay resume` and `assay show` of such a run."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

from assay import models as models_room
from assay.cli import options
from assay.cli.inputs import build, check_ceiling, check_features, load, of_run
from assay.cli.privacy import note_delta, report_spending
from assay.cli.show import end, progress
from assay.data import catalog
from assay.distributed.launch import check_alone
from assay.errors import ConfigError
from assay.federated import methods, partition
from assay.federated import transport as carriers
from assay.federated.layout import Layout
from assay.federated.local import Training
from assay.federated.plan import NOISES, UNITS, FederatedPlan, Silo
from assay.federated.server import federate as run_rounds
from assay.federated.server import resume as resume_rounds
from assay.federated.server import run_spec, site_settings
from assay.models.layers import trainable_layers
from assay.runs.directory import RunDirectory


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(federate)


def federate(
    out: Annotated[Path, typer.Option(help="A new directory for the run.")],
    method: Annotated[str, typer.Option(help="fedavg, fedags, fedsnlc or cpsgd; see `assay methods`.")] = "fedavg",
    variant: options.Variant = None,
    option: options.Setting = None,
    data: options.Data = catalog.DEFAULT,
    records: Annotated[
        int | None, typer.Option(help="Train on about N of the training records, drawn by their content.")
    ] = None,
    model: Annotated[str, typer.Option(help="A model's name (`assay models`) or package.module:factory.")] = "lenet5",
    circulant: Annotated[
        int | None, typer.Option(help="Make fully connected layers block-circulant, with blocks of this size.")
    ] = None,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 100,
    per_round: Annotated[
        int | None, typer.Option(help="Clients a round, expected. (default: a tenth; all with --unit record)")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 200,
    division: Annotated[
        str, typer.Option("--partition", help="Who holds what: iid, dirichlet:ALPHA or label:K.")
    ] = "iid",
    show_partition: Annotated[
        bool,
        typer.Option(
            "--show-partition",
            help="Publish how many records of each label each client holds, in the record and a picture. No ε covers that: for public data only.",
        ),
    ] = False,
    partition_seed: Annotated[int, typer.Option(help="Seed of the partition; it is public.")] = 0,
    unit: Annotated[str, typer.Option(help="What ε protects: client or record.")] = "client",
    noise: Annotated[
        str | None,
        typer.Option(help="Who adds it: central (the server), local (each client) or distributed (all together)."),
    ] = None,
    min_answers: Annotated[
        int | None,
        typer.Option(help="With distributed noise: how many must answer for a round to be opened. (default: all)"),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="The ε to stay within, a hard ceiling. (default: 1, unless --noise-multiplier is given)"),
    ] = None,
    delta: options.Delta = 1e-3,
    noise_multiplier: options.Noise = None,
    clip: Annotated[float, typer.Option(help="Bound on a client's update (or on a record's gradient).")] = 1.0,
    local_epochs: Annotated[int, typer.Option(help="Epochs of a client in its turn.")] = 1,
    local_steps: Annotated[int | None, typer.Option(help="Steps of a client in its turn, instead of epochs.")] = None,
    batch_size: Annotated[int, typer.Option(help="Batch size at the clients.")] = 128,
    lr: Annotated[float, typer.Option(help="Learning rate at the clients.")] = 0.1,
    server_lr: Annotated[
        float | None,
        typer.Option(
            help="What the average is multiplied by. (default: 1; --lr for published variants, which send gradients)"
        ),
    ] = None,
    weight_records: Annotated[
        int | None,
        typer.Option(help="Let a client with n records count min(n, N)/N. (default: all count the same)"),
    ] = None,
    keep_models: Annotated[
        int, typer.Option(help="Keep so many of the models on the way, for `assay attack` to follow; ε covers them.")
    ] = 0,
    engine: Annotated[str, typer.Option(help="What runs the clients: serial, simulation or deploy.")] = "serial",
    superlink: Annotated[
        str | None, typer.Option(help="With --engine deploy: this machine's superlink. (default: 127.0.0.1:9092)")
    ] = None,
    certificates: Annotated[
        Path | None, typer.Option(help="With --engine deploy: the directory with ca.crt (`assay federation`).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Fixes all randomness: reproducible, and therefore not private.")
    ] = None,
    secure_rng: Annotated[
        bool,
        typer.Option("--secure-rng", help="Every random number from SHAKE-256 and 64 bits, on every device; slower."),
    ] = False,
    data_dir: options.DataDir = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace an earlier run in the same directory; its ledger stays, in ledgers/."),
    ] = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Train one model across clients that keep their records, and write its record and its privacy statement."""
    chosen = methods.get(method, **options.settings(option, {"variant": variant}))
    for name, value, known in (("unit", unit, UNITS), ("noise", noise, (*NOISES, None))):
        if value not in known:
            raise ConfigError(name, value, "one of " + ", ".join(filter(None, known)))
    reach = carriers.Reach(
        superlink=superlink, certificates=None if certificates is None else str(certificates.absolute())
    )
    carriers.check(engine, reach)
    training = Training(
        epochs=local_epochs,
        steps=local_steps,
        batch_size=batch_size,
        lr=lr,
        server_lr=(lr if chosen.variant == "published" else 1.0) if server_lr is None else server_lr,
        weight_records=weight_records,
        seed=seed,
        secure_rng=secure_rng,
        keep_models=keep_models,
    )
    divided = partition.parse(division)
    check_features(None, model, None)
    bundle = load(data, data_dir, records)
    network = build(model, circulant, bundle, seed)
    labels = bundle.train_y.numpy()
    parts = divided.divide(labels, clients, partition_seed)
    sizes = [len(part) for part in parts]
    silo = _silo(network, sizes, training) if unit == "record" else None
    plan = _planned(
        FederatedPlan(
            clients=clients,
            per_round=(clients if unit == "record" else max(1, clients // 10)) if per_round is None else per_round,
            rounds=rounds,
            size=Layout.of(network, parameters_only=unit == "record").size,
            noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
            delta=delta,
            clip=clip,
            unit=unit,
            noise=chosen.noises[0] if noise is None else noise,
            minimum=min_answers,
            public_seed=secrets.randbits(63) if seed is None else seed,
            silo=silo,
            method=chosen,
        ),
        epsilon,
        noise_multiplier,
    )
    table = partition.counts(labels, parts, bundle.classes) if show_partition else None
    names = {
        "model": model,
        "circulant": circulant,
        "data": data,
        "data_dir": None if data_dir is None else str(data_dir),
        "records": len(labels),
        "split": bundle.split.to_json(),
        "unit": bundle.unit,
        "notes": bundle.notes,
        "partition": str(divided),
        "partition_seed": partition_seed,
        "counts": None if table is None else table.tolist(),
        "sizes": sizes if unit == "record" else None,
    }
    _warn(plan)
    if dry_run:
        facts = {"rounds": plan.rounds, "clients": plan.clients, "per_round": plan.per_round, "unit": plan.unit}
        words = f"{plan.rounds} rounds of {plan.per_round} of {plan.clients} clients, unit {plan.unit}"
        report_spending(plan, facts, words, json)
        return
    spec = run_spec(plan, training, names, engine, vars(reach))
    directory = RunDirectory.create(out, spec, force=force)
    if table is not None:
        partition.draw(table, out / "partition.png", f"{data}, {divided}, {clients} clients")
    carrier = carriers.open_carrier(engine, site_settings(spec, directory), out, reach)
    try:
        with progress(plan.epsilon_limit) as shown:
            result = run_rounds(
                network,
                carrier,
                plan=plan,
                training=training,
                names=names,
                test=bundle.test,
                directory=directory,
                callbacks=[shown],
            )
    finally:
        carrier.close()
    end(result, json, left_out="answers were not usable", steps="rounds")


def resume(directory: RunDirectory, spec: dict[str, Any], data_dir: Path | None, json: bool) -> None:
    """Continue a federated run."""
    check_alone("resume of a federated run")
    bundle, network = of_run(
        spec, data_dir, spec["training"]["seed"], instead="continue one from Python with assay.federated.server.resume"
    )
    if data_dir is not None:
        spec["names"] = {**spec["names"], "data_dir": str(data_dir)}
    reach = carriers.Reach(**spec["reach"])
    carrier = carriers.open_carrier(spec["engine"], site_settings(spec, directory), directory.path, reach)
    try:
        with progress(spec["plan"]["epsilon_limit"]) as shown:
            result = resume_rounds(network, carrier, directory, test=bundle.test, callbacks=[shown])
    finally:
        carrier.close()
    end(result, json, left_out="answers were not usable", steps="rounds")


def _silo(network: torch.nn.Module, sizes: list[int], training: Training) -> Silo:
    """DP-SGD at the clients: as many steps for each as `epochs` take for a client of average size."""
    models_room.compat.check(network)
    trainable_layers(network)
    held = [size for size in sizes if size]
    steps = training.steps or max(1, round(training.epochs * float(np.mean(held)) / training.batch_size))
    return Silo(records=min(held), batch_size=training.batch_size, steps=steps)


def _planned(start: FederatedPlan, epsilon: float | None, noise_multiplier: float | None) -> FederatedPlan:
    """Noise found for ε; or noise given, and ε (if also given) a ceiling that may end the run early."""
    if noise_multiplier is None:
        return start.calibrated(1.0 if epsilon is None else epsilon)
    check_ceiling(epsilon, start.method.variant)
    return replace(start, epsilon_limit=epsilon)


def _warn(plan: FederatedPlan) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if plan.unit == "client":
        note_delta(plan.delta, plan.clients)
    if plan.method.variant == "published":
        console.print(f"[yellow]note:[/] {plan.method.name} as published: {plan.method.soundness}")
