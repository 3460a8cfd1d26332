"""`assay federate`: train across clients; `assay resume` and `assay show` of such a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import options
from assay.cli.output import end, note, note_delta
from assay.cli.privacy import report_spending
from assay.distributed.launch import check_alone

if TYPE_CHECKING:
    from assay.federated.plan import FederatedPlan


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(federate)


def federate(
    out: Annotated[Path, typer.Option(help="A new directory for the run.")],
    method: Annotated[str, typer.Option(help="fedavg, fedags, fedsnlc or cpsgd; see `assay methods`.")] = "fedavg",
    variant: options.Variant = None,
    option: options.Setting = None,
    data: options.Data = options.DEFAULT_DATA,
    records: Annotated[
        int | None, typer.Option(help="Train on about N of the training records, drawn by their content.")
    ] = None,
    model: Annotated[str, typer.Option(help="A model's name (`assay models`) or package.module:factory.")] = "lenet5",
    circulant: Annotated[
        int | None, typer.Option(help="Make fully connected layers block-circulant, with blocks of this size.")
    ] = None,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 100,
    per_round: Annotated[
        int | None, typer.Option(help="Expected clients in a round. (default: a tenth; all with --unit record)")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 200,
    division: Annotated[
        str, typer.Option("--partition", help="Who holds what: iid, dirichlet:ALPHA or label:K.")
    ] = "iid",
    show_partition: Annotated[
        bool,
        typer.Option(
            "--show-partition",
            help="Publish how many records of each label each client holds, in the record and a picture."
            " No ε covers that: for public data only.",
        ),
    ] = False,
    partition_seed: Annotated[int, typer.Option(help="Seed of the partition; it is public.")] = 0,
    unit: Annotated[str, typer.Option(help="What ε protects: client or record.")] = "client",
    noise: Annotated[
        str | None,
        typer.Option(help="Who adds it: central (the server), local (each client) or distributed (all of them)."),
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
            help="Multiplies the average update. (default: 1; --lr for published variants, which send gradients)"
        ),
    ] = None,
    weight_records: Annotated[
        int | None,
        typer.Option(help="Let a client with n records count min(n, N)/N. (default: all count the same)"),
    ] = None,
    keep_models: Annotated[
        int, typer.Option(help="Keep this many intermediate models, for `assay attack`; ε covers them.")
    ] = 0,
    engine: Annotated[str, typer.Option(help="What runs the clients: serial, simulation or deploy.")] = "serial",
    superlink: Annotated[
        str | None, typer.Option(help="With --engine deploy: this machine's superlink. (default: 127.0.0.1:9092)")
    ] = None,
    certificates: Annotated[
        Path | None, typer.Option(help="With --engine deploy: the directory with ca.crt (`assay federation`).")
    ] = None,
    seed: options.Seed = None,
    secure_rng: options.SecureRng = False,
    data_dir: options.DataDir = None,
    budget: options.Budget = None,
    budget_key: options.BudgetKey = None,
    operator: options.Operator = None,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Train one model across clients that keep their records, and write its record and its privacy statement."""
    asked = {**locals(), "partition": division}
    from assay.federated.from_names import FederatedSettings, prepare
    from assay.runs.callbacks import progress

    made = prepare(FederatedSettings(**options.given(FederatedSettings, asked)))
    plan = made.plan
    _warn(plan)
    if dry_run:
        facts = {"rounds": plan.rounds, "clients": plan.clients, "per_round": plan.per_round, "unit": plan.unit}
        words = f"{plan.rounds} rounds of {plan.per_round} of {plan.clients} clients, unit {plan.unit}"
        report_spending(plan, facts, words, json)
        return
    with progress(plan.epsilon_limit) as shown:
        result = made.run(out=out, force=force, callbacks=[shown])
    end(result, json, steps="rounds")


def resume(run: Path, spec: dict[str, Any], data_dir: Path | None, json: bool) -> None:
    """Continue a federated run."""
    from assay.federated import from_names
    from assay.runs.callbacks import progress

    check_alone("resume of a federated run")
    with progress(spec["plan"]["epsilon_limit"]) as shown:
        result = from_names.resume(run, data_dir=data_dir, callbacks=[shown])
    end(result, json, steps="rounds")


def _warn(plan: FederatedPlan) -> None:
    if plan.unit == "client":
        note_delta(plan.delta, plan.clients)
    if plan.method.published:
        note(f"{plan.method.name} as published: {plan.method.soundness}")
