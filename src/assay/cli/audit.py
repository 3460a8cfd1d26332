"""`assay audit`: a lower bound on ε beside the claimed and the verified one, and what the three say together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from assay.accounting.adjacency import Adjacency
from assay.cli import options
from assay.cli.output import console, print_json
from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.audit import Audited

_OF_A_PLAN = (
    *("variant", "noise_form", "groups", "option", "epsilon", "noise_multiplier", "records", "batch_size", "epochs"),
    *("delta", "clip", "micro_batch", "sampling", "adjacency"),
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(audit)


def audit(
    context: typer.Context,
    run: Annotated[Path | None, typer.Argument(help="The directory of a run; or name a --method, or --all.")] = None,
    method: Annotated[
        str | None, typer.Option(help="Audit a method without a run; `assay methods` lists them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Audit every method and variant, and print a table.")] = False,
    variant: options.Variant = None,
    noise_form: options.NoiseForm = None,
    groups: options.Groups = None,
    option: options.Setting = None,
    epsilon: Annotated[float | None, typer.Option(help="Without a run: the target ε. (default: 1)")] = None,
    noise_multiplier: options.Noise = None,
    records: options.Records = 60_000,
    batch_size: options.BatchSize = 500,
    epochs: options.Epochs = 30,
    delta: options.Delta = 1e-5,
    clip: options.Clip = None,
    micro_batch: options.MicroBatch = 1,
    sampling: options.Sampling = "poisson",
    adjacency: options.Adjacent = Adjacency.ADD_OR_REMOVE_ONE,
    canaries: Annotated[
        int | None,
        typer.Option(help="With a run: train again with this many canaries, instead of auditing one step."),
    ] = None,
    black_box_: Annotated[
        bool,
        typer.Option(
            "--black-box", help="With --canaries: mislabelled records or clients, seen by the final model's loss only."
        ),
    ] = False,
    worlds: Annotated[
        int | None,
        typer.Option(
            help="With a run: train it this often with a mislabelled record (or client), and as often without it."
        ),
    ] = None,
    worst_case: Annotated[
        bool,
        typer.Option(
            "--worst-case", help="With --worlds: the worst initial weights and the worst record that the run allows."
        ),
    ] = False,
    releases: Annotated[
        int | None,
        typer.Option(help="How often one step is released, with the canary and as often without. (default: enough)"),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the audited ε.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Fix the audit's randomness.")] = None,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Attack one step of a method or a run (seconds), or a whole run trained again with canaries.

    The audit of one step goes into a finished run's record and statement. No ε covers what training again shows: that
    goes into audits.json, for the holder of the records.
    """
    from assay.audit import by_name
    from assay.audit.bounds import check_releases, check_significance

    check_releases(releases)
    if [run is not None, method is not None, every].count(True) != 1:
        raise ConfigError(
            "run", None if run is None else str(run), "exactly one of: the directory of a run, --method, --all"
        )
    check_significance(1 - confidence)
    how: dict[str, Any] = {"releases": releases, "confidence": confidence, "seed": seed}
    if run is not None:
        _check_as_it_was(context)
        again = {"canaries": canaries, "worlds": worlds, "black_box": black_box_, "worst_case": worst_case}
        _report(by_name.of_run(run, data_dir=data_dir, **again, **how), json)  # type: ignore[arg-type]
        return
    for field, asked in (
        ("canaries", canaries),
        ("worlds", worlds),
        ("black_box", black_box_ or None),
        ("worst_case", worst_case or None),
    ):
        if asked is not None:
            raise ConfigError(field, asked, "nothing, unless a run is named to train again")
    how |= {
        "records": records,
        "batch_size": batch_size,
        "epochs": epochs,
        "delta": delta,
        "sampling": sampling,
        "adjacency": adjacency,
    }
    if every:
        _table(list(by_name.of_every_method(epsilon=1.0 if epsilon is None else epsilon, **how)), json)
        return
    assert method is not None
    found = by_name.of_method(
        method,
        variant=variant,
        noise_form=noise_form,
        groups=groups,
        option=option,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        clip=clip,
        micro_batch=micro_batch,
        **how,
    )
    _report(found, json)


def _check_as_it_was(context: typer.Context) -> None:
    """Refuse options of a plan beside a run: it is audited as it was run."""
    for name in _OF_A_PLAN:
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE":
            raise ConfigError(name, context.params[name], "nothing beside a run, which is audited as it was run")


def _table(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"methods": rows})
        return
    from assay._util.figures import shown

    table = Table("method", "variant", "ε claimed", "ε verified", "ε audited", "verdict", box=None, pad_edge=False)
    for row in rows:
        name = f"{row['method']} ({row['form']})" if row["form"] else row["method"]
        numbers = [
            shown(row[key], lower_bound=key == "audited").removesuffix(" (no privacy)")
            for key in ("claimed", "verified", "audited")
        ]
        table.add_row(name, row["variant"], *numbers, row["verdict"])
    console(wrap=True).print(table)


def _report(done: Audited, as_json: bool) -> None:
    from assay._util.figures import shown
    from assay.audit.aside import NOT_COVERED

    facts, found, plan = done.facts, done.audit, done.plan
    if as_json:
        print_json(done.to_json())
        return
    out = console()
    out.print(facts["sentence"], style="bold")
    out.print(f"ε claimed   {shown(facts['claimed'])}   (what the paper's accountant would report)")
    out.print(f"ε verified  {shown(facts['verified'])}   at δ = {plan.delta:g}, {plan.adjacency.value}")
    sure = f"at least, with {100 * found.confidence:g} % confidence"
    out.print(f"ε audited   {shown(facts['audited'], lower_bound=True)}   {sure}")
    out.print(f"{found.estimator}: {found.how}")
    if found.assumption:
        out.print(f"assuming that {found.assumption}")
    if done.again:
        out.print(f"{NOT_COVERED}: of a finished run they are in audits.json only.")
