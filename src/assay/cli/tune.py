"""`assay tune`: choose the best of several settings, on private records as part of ε, or on public data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli import options, passing
from assay.cli.output import console, end, print_json
from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.training.public_choice import PublicChoice
    from assay.training.tuning import PrivateChoice

_DECIDED = {
    "out": "the command's own --out",
    "epsilon": "the command's own --epsilon",
    "noise_multiplier": "nothing: the noise is found for --epsilon",
    "seed": "the command's own --seed",
    "force": "nothing: a new directory",
    "json": "the command's own --json",
    "dry_run": "the command's own --dry-run",
    "validation": "nothing: a tenth of the training records is set aside anyway",
    "log": "nothing: trials that were not chosen leave no trace",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(tune)


def tune(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="A new directory for the model that is chosen.")],
    tried: Annotated[
        list[str],
        typer.Option(
            "--try", help="An option of `assay train` and its values: lr=1,2,4. May be repeated: all combinations."
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="The ε of everything that leaves, the choice included.")] = 1.0,
    trials: Annotated[
        float, typer.Option(help="Mean number of trials; how many there are is drawn, and stays secret.")
    ] = 10,
    public: Annotated[
        str | None,
        typer.Option(help="Choose on this public data set instead, at no cost, and train once on the private records."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes all randomness: reproducible, not private.")] = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Try settings and keep the best model. Every other option of `assay train` may be added and goes to all trials.

    On private records ε covers the choice; on public data (--public) the choice is free.
    """
    from assay import presets
    from assay.training.tuning import PrivateChoice, prepared_choice

    shared = passing.settings("train", context.args, decided=_DECIDED)
    if "preset" in shared:
        shared["epsilon"] = epsilon  # a preset depends on ε
    choice = prepared_choice(
        presets.of_options(shared),
        _axes(tried),
        out=out,
        epsilon=epsilon,
        trials=trials,
        public=public,
        seed=seed,
        rehearsal=dry_run,
    )
    if not dry_run:
        end(choice.run(), json)
    elif isinstance(choice, PrivateChoice):
        _report_choice(choice, json)
    else:
        _report_runs(choice, json)


def _axes(tried: list[str]) -> dict[str, list[str]]:
    axes: dict[str, list[str]] = {}
    for text in tried:
        key, equals, values = text.partition("=")
        name = key.replace("-", "_")
        if not equals or not values or name in axes:
            raise ConfigError("try", text, "OPTION=VALUE,VALUE..., each option once")
        axes[name] = _values(name, values)
    return axes


def _values(name: str, text: str) -> list[str]:
    """Values between commas. Except for --option, x=y belongs to the value before it (shift:views=4,pixels=2)."""
    values: list[str] = []
    for piece in text.split(","):
        if values and "=" in piece and ":" not in piece and name != "option":
            values[-1] += f",{piece}"
        else:
            values.append(piece)
    return values


def _report_choice(choice: PrivateChoice, as_json: bool) -> None:
    """What a choice on private records would cost."""
    from assay._util.figures import shown

    cost, plan = choice.cost(), choice.plan
    if as_json:
        print_json(cost)
        return
    out = console()
    out.print(f"ε of the choice  {shown(cost['verified'])}   at δ = {plan.delta:g}, {plan.adjacency.value}")
    out.print(f"ε of one trial   {shown(cost['one_trial'])}   (with its score; {choice.trials:g} trials on average)")
    out.print(f"scores           {choice.scored}")
    size = f"{plan.steps} steps, batches of {plan.batch_size:g} expected"
    out.print(f"every trial      noise multiplier {plan.noise_multiplier:.6g}, {size}")


def _report_runs(choice: PublicChoice, as_json: bool) -> None:
    """What the one run on private records would cost with each setting."""
    from assay._util.figures import shown
    from assay.training.trials import in_words

    cost = choice.cost()
    if as_json:
        print_json(cost)
        return
    out = console()
    out.print(
        f"trials on {choice.public} cost nothing; then one run, at δ = {cost['delta']:g}, {cost['adjacency']}:",
    )
    for run in cost["runs"]:
        noise = f"noise multiplier {run['noise_multiplier']:.6g}"
        out.print(f"ε verified  {shown(run['verified'])}   {noise}   {in_words(run['setting'])}")
