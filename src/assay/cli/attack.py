"""`assay attack`: membership inference against the model of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from assay.cli import options
from assay.cli.output import console, print_json

if TYPE_CHECKING:
    from assay.attacks import AttackResult


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(attack)


def attack(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    name: Annotated[
        list[str] | None,
        typer.Option("--attack", help="Only this attack; may be repeated. (default: all that need the model only)"),
    ] = None,
    records: Annotated[int, typer.Option(help="Members to decide on, and as many non-members.")] = 5000,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Which records are drawn, and which of them the attacker knows.")] = 0,
    save: Annotated[
        bool, typer.Option("--save", help="Write the result beside the run for `assay report`; no ε covers it.")
    ] = False,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Tell training from test records by the trained model. The attacker knows half of them; the others count.

    Attacks with shadow models (ml-leaks, lira-..., rmia-...) train them as the run was trained, on test records that
    are not decided on.
    """
    from assay import attacks
    from assay.attacks.by_name import gain_over_guessing

    results = attacks.of_run(run, name, records=records, confidence=confidence, seed=seed, save=save, data_dir=data_dir)
    gained = gain_over_guessing(run, results)
    if json:
        print_json({"run": str(run), "attacks": [result.to_json() for result in results], "gain": gained})
        return
    _print(results, gained)


def _print(results: list[AttackResult], gained: str) -> None:
    from assay.attacks.evaluation import NOT_PRIVATE

    table = Table("attack", "AUC", "balanced accuracy", "TPR at 0.1 % FPR", "TPR at 1 % FPR", box=None, pad_edge=False)
    for result in results:
        estimates = [result.auc, result.balanced_accuracy, *(rate.tpr for rate in result.tpr_at_fpr)]
        table.add_row(result.attack, *(f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" for e in estimates))
    out = console(wrap=True)
    out.print(table)
    out.print(gained, soft_wrap=True)
    first = results[0]
    counts = f"{first.members} members and {first.nonmembers} non-members, {100 * first.confidence:g} % intervals"
    out.print(f"{counts}; {NOT_PRIVATE}.", soft_wrap=True)
