"""`assay train`, `assay resume` and `assay show`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from assay._util.figures import at_most, shown
from assay.accounting.adjacency import Adjacency
from assay.cli import federate, options
from assay.cli.output import console, end, note, note_delta, note_unit, print_json
from assay.cli.privacy import report_plan
from assay.errors import BudgetSpentError
from assay.runs.schema import CENTRAL, FEDERATED
from assay.training import defaults

if TYPE_CHECKING:
    from assay.runs.directory import RunDirectory
    from assay.training.options import Settings


_EXAMPLES = """\b
For example:
  assay train --data digits --model logistic --epsilon 3 --out runs/first
  assay train --data stays.csv --target back --schema auto --unit patient \\
      --epsilon 3 --out runs/stays
"""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=_EXAMPLES)(train)
    app.command()(resume)
    app.command()(show)


def train(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="A new directory for the run.")],
    method: options.Method = defaults.METHOD,
    variant: options.Variant = None,
    noise_form: options.NoiseForm = None,
    groups: options.Groups = None,
    option: options.Setting = None,
    encode: options.Encode = None,
    denoise: options.Denoise = None,
    data: options.Data = options.DEFAULT_DATA,
    target: options.Target = None,
    schema: options.Schema = None,
    records: Annotated[
        int | None, typer.Option(help="Train on about N of the training records, drawn by their content.")
    ] = None,
    unit: options.Unit = None,
    unit_rows: options.UnitRows = None,
    unit_sampling: options.UnitSampling = "persons",
    validation: Annotated[
        bool,
        typer.Option(
            "--validation",
            help="For choosing settings: measure on a tenth of the training records, set aside, and not on the test"
            " records.",
        ),
    ] = False,
    features: Annotated[
        str | None,
        typer.Option(
            help="Train on features of each record, at no cost: scatter:J=2,L=8, patches or"
            " efficientnet-lite0:size=128, after deskew+, opponent+ or mirror+; words:buckets=8192 for texts; ramps for"
            " tables."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's name (`assay models`) or package.module:factory. (default: the one that the method brings"
            " for such records, lenet5 for pictures, or linear-head)"
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Start from the weights in this file (.safetensors, or a torch state dict), here or in a data"
            " directory. They are taken as public."
        ),
    ] = None,
    train_layers: Annotated[str, typer.Option(help="Which layers to train: all, or last:K.")] = "all",
    circulant: Annotated[
        int | None, typer.Option(help="Make fully connected layers block-circulant, with blocks of this size.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help=f"The ε to stay within, a hard ceiling. (default: {defaults.EPSILON:g}, unless --noise-multiplier is"
            " given)"
        ),
    ] = None,
    delta: options.Delta = defaults.DELTA,
    epochs: Annotated[float, typer.Option(help="Passes over the records.")] = defaults.EPOCHS,
    batch_size: Annotated[
        float | None,
        typer.Option(
            help=f"Expected batch size. (default: {defaults.BATCH}, {defaults.TABLE_BATCH} for rows of numbers, or an"
            " eighth of the records if that is less; all with --sampling full)"
        ),
    ] = None,
    noise_multiplier: options.Noise = None,
    clip: options.Clip = None,
    micro_batch: options.MicroBatch = 1,
    center: options.Center = None,
    noise_schedule: options.Schedule = "constant",
    sampling: options.Sampling = "poisson",
    adjacency: options.Adjacent = Adjacency.ADD_OR_REMOVE_ONE,
    optimizer: Annotated[str | None, typer.Option(help="sgd, adam or adamw. (default: the method's)")] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help=f"Learning rate. (default: {defaults.LR['sgd']} for sgd, {defaults.LR['adam']} for adam and adamw)"
        ),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help=f"Momentum of sgd. (default: {defaults.MOMENTUM['sgd']})")
    ] = None,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = 0.0,
    schedule: Annotated[
        str,
        typer.Option(
            help="Learning rate over the run: constant, linear, cosine, inverse (1/step; inverse:every=N changes it "
            "every N steps) or drop:at=N,by=K."
        ),
    ] = defaults.SCHEDULE,
    warmup: Annotated[float, typer.Option(help="Share of the run in which the learning rate rises.")] = 0.0,
    ema: Annotated[
        float | None, typer.Option(help="Decay of a moving average of the weights, which is then the result.")
    ] = None,
    tail: Annotated[
        float | None, typer.Option(help="Share of the run, at its end, whose weights are averaged; replaces --ema.")
    ] = None,
    scale_from: Annotated[
        float | None,
        typer.Option(
            help="The batch size at which learning rate, momentum and --ema were found: they are scaled to this run's."
        ),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            help="Random views of each record, averaged before clipping: shift:views=4,pixels=2 or shift-flip:views=8."
        ),
    ] = None,
    max_physical_batch: Annotated[
        int | None, typer.Option(help="Largest number of records (or views) in memory at once; results do not change.")
    ] = None,
    seed: options.Seed = None,
    secure_rng: options.SecureRng = False,
    exact_noise: Annotated[
        bool,
        typer.Option(
            "--exact-noise",
            help="Sums of whole numbers and noise drawn exactly: the proof of ε covers the arithmetic; up to twice the"
            " time.",
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    shard: Annotated[
        bool,
        typer.Option(
            "--shard", help="Under torchrun: split the model over the ranks (FSDP2), for one too large for a device."
        ),
    ] = False,
    precision: Annotated[
        str, typer.Option(help="float32, or bf16: the model's passes under autocast; clipping and noise stay float32.")
    ] = "float32",
    data_dir: options.DataDir = None,
    force: options.Force = False,
    log: Annotated[
        str | None,
        typer.Option(
            help="Also log what is released, with the statement: tensorboard, wandb:project=P,mode=offline or"
            " mlflow:uri=U,experiment=E; several with + between them."
        ),
    ] = None,
    budget: options.Budget = None,
    budget_key: options.BudgetKey = None,
    operator: options.Operator = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings that do well on the data set: best, or scratch (where the data set has it). Other options"
            " override it."
        ),
    ] = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    config: options.Config = None,
    save_config: options.Save = None,
    quiet: options.Quiet = False,
) -> None:
    """Train a model privately and write its record and its privacy statement. Under torchrun all ranks train it."""
    asked = dict(locals())
    from assay.distributed.world import world
    from assay.runs.callbacks import progress
    from assay.runs.statement import scored
    from assay.training.from_names import begin_run, plan_of

    options.check_free(save_config, force)
    ranks, settings = world(), settings_of(context, asked)
    made = None if dry_run else begin_run(settings, out=out, force=force)
    plan = plan_of(settings, ranks=ranks.size) if made is None else made.plan
    if save_config is not None and ranks.leader:
        options.save(save_config, context)
    if ranks.leader and plan.noise_multiplier == 0:
        note("no noise: this run has no privacy (ε = ∞)")
    if ranks.leader:
        note_unit(settings)
    if made is None:
        if ranks.leader:
            report_plan(plan, json)
        return
    if ranks.leader:
        note_delta(plan.delta, plan.protected)
    showing = progress(plan.epsilon_limit, leader=ranks.leader, scored=scored(made.names), lines=not quiet)
    with showing as bar:
        result = made.fit(out=out, force=force, callbacks=[bar])
    end(result, json, ranks=ranks, quiet=quiet)


def settings_of(context: typer.Context, asked: dict[str, Any]) -> Settings:
    """The settings that were asked for. Only options that a person gave override a preset."""
    from assay.presets import of_options
    from assay.training.options import Settings

    typed = {name: asked[name] for name in options.typed(context)}
    return of_options({**options.given(Settings, typed), "preset": asked["preset"]})


def resume(
    run: Annotated[Path, typer.Argument(help="The directory of an unfinished run.")],
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Resume a run that was stopped or killed."""
    from assay.distributed.world import world
    from assay.federated.kinds import kind_of
    from assay.training.inputs import UNFINISHED_CHOICE, is_choice

    ranks = world()
    directory, finished, spec = ranks.once(lambda: _asked(run))
    if finished:
        directory.finish()
        if directory.read_record()["status"] == "budget-spent":
            raise BudgetSpentError(f"{run} is finished and its budget is spent: no further step is taken")
        console().print(f"{run} is finished; see: assay show {shlex.quote(str(run))}")
        return
    if is_choice(spec):
        raise BudgetSpentError(f"{run}: {UNFINISHED_CHOICE}")
    _RESUME[kind_of(spec).name](run, spec, data_dir, json)


def _resume(run: Path, spec: dict[str, Any], data_dir: Path | None, json: bool) -> None:
    """Continue a central run."""
    from assay.distributed.world import world
    from assay.runs.callbacks import progress
    from assay.runs.statement import scored
    from assay.training import from_names

    ranks = world()
    with progress(spec["plan"]["epsilon_limit"], leader=ranks.leader, scored=scored(spec["names"])) as bar:
        result = from_names.resume(run, data_dir=data_dir, callbacks=[bar])
    end(result, json, ranks=ranks)


_RESUME: Mapping[str, Callable[[Path, dict[str, Any], Path | None, bool], None]] = {
    CENTRAL: _resume,
    FEDERATED: federate.resume,
}
"""By the kind of the run."""


def _asked(run: Path) -> tuple[RunDirectory, bool, dict[str, Any]]:
    from assay.runs.directory import RunDirectory

    directory = RunDirectory.open(run)
    return directory, directory.finished, directory.read_spec()


def show(
    run: Annotated[Path, typer.Argument(help="The directory of a run, or a record.json alone.")],
    json: options.Json = False,
) -> None:
    """The privacy statement of a finished run; for an unfinished one, what it has spent and how to resume it."""
    from assay.runs import record_of, statement_of
    from assay.runs.directory import RunDirectory

    if not run.is_file():
        directory = RunDirectory.open(run)
        _note_earlier(directory)
        if not directory.finished:
            _print_unfinished(directory)
            return
    if json and run.is_file():
        print_json(record_of(run))
        return
    text = statement_of(run)  # which compares the record with the ledger, too
    if json:
        print_json(record_of(run))
        return
    if run.is_file():
        note("this is what the record says; ε cannot be recomputed, because the ledger is not here")
    out = console(wrap=Console().is_terminal)
    out.print(Markdown(text) if out.is_terminal else text)


def _print_unfinished(directory: RunDirectory) -> None:
    from assay.federated.kinds import spent_by
    from assay.runs.record import number
    from assay.training.inputs import UNFINISHED_CHOICE

    out, spent = console(wrap=Console().is_terminal), spent_by(directory)
    if spent.is_choice:
        out.print(f"{directory.path}: {UNFINISHED_CHOICE}; ε = {at_most(spent.epsilon)} at δ = {spent.delta:g}.")
        return
    steps, whole, so_far = spent.kind.steps, shown(number(spent.if_ended)), shown(number(spent.epsilon))
    out.print(
        f"{directory.path} is unfinished: {spent.charged} of {spent.planned} planned {steps} are charged.\n"
        f"If it ends here, it has spent ε = {whole} at δ = {spent.delta:g}, as all its {steps} would.\n"
        f"The {steps} charged so far cost ε = {so_far}. That holds only if nobody stopped the run because of what"
        f" it had shown.\nResume it with: {directory.resume_command}"
    )


def _note_earlier(directory: RunDirectory) -> None:
    """What runs spent that --force replaced here: no statement covers them, and on the same records it adds up."""
    from assay.accounting.ledger import read_ledger
    from assay.runs.record import number

    for path in sorted(directory.earlier.glob("*.jsonl")):
        ledger = read_ledger(path)
        if ledger is None:
            continue
        limit = "" if ledger.ceiling is None else f" (count its ceiling, {ledger.ceiling:g}, if it was stopped by hand)"
        note(
            f"an earlier run in this directory was charged {ledger.total_steps} steps, "
            f"ε = {shown(number(ledger.epsilon()))} at δ = {ledger.delta:g}{limit}; "
            f"it stays spent ({path.relative_to(directory.path)})"
        )
