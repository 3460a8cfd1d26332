"""`assay attack`: membership inference against the model of a finished run."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from assay import attacks
from assay.attacks import shadows
from assay.attacks.evaluation import NOT_PRIVATE, AttackResult
from assay.attacks.setting import rounds_of
from assay.attacks.storage import write_attacks
from assay.cli import options
from assay.cli.inputs import network_of, of_run
from assay.cli.show import print_json
from assay.data import DataBundle
from assay.data.records import Records
from assay.federated.kinds import kind_of
from assay.runs.directory import RunDirectory
from assay.training.stages import kept_release


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
        bool, typer.Option("--save", help="Keep the result beside the run for `assay report`; no ε covers it.")
    ] = False,
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Tell training from test records by the trained model; half of them are known to the attacker, the others count.

    Attacks with shadow models (ml-leaks, lira-...) train them as the run was trained, on test records that are not decided on.
    """
    directory = RunDirectory.open(run)
    directory.read_record()  # refuses an unfinished run, and says how to resume it
    spec = directory.read_spec()
    bundle, models = _models(directory, spec, data_dir, seed)
    draw = torch.Generator().manual_seed(seed)
    members = _some(bundle.train, records, draw)
    others = torch.randperm(len(bundle.test), generator=draw).tolist()
    setting = attacks.Setting(
        target=models, members=members, nonmembers=Subset(bundle.test, others[:records]), seed=seed
    )
    chosen = name or [one for one in attacks.available() if not attacks.lacking(one, setting)]
    if any("pool" in attacks.get(one).needs for one in chosen):
        shadow = _with_shadows(spec, bundle, setting, others)
    found = [
        attacks.run(one, shadow if "pool" in attacks.get(one).needs else setting, confidence=confidence)
        for one in chosen
    ]
    if save:
        write_attacks(directory, [result.to_json() for result in found])
    if json:
        print_json({"run": str(run), "attacks": [result.to_json() for result in found]})
        return
    _print(found)


def _models(
    directory: RunDirectory, spec: dict[str, Any], data_dir: Path | None, seed: int
) -> tuple[DataBundle, list[nn.Module]]:
    """The data and what training released: the models after some rounds, if they were kept, and the last one."""
    bundle, model = of_run(spec, data_dir, seed, instead="attack one started from Python with assay.attacks.run")
    before = kind_of(spec).plan(spec["plan"]).stage
    if before is not None:
        before.install(model, kept_release(directory))
    files = [*sorted(directory.kept_models.glob("*.safetensors"))[:-1], directory.model]
    models = []
    for file in files:
        models.append(copy.deepcopy(model).eval())
        models[-1].load_state_dict(load_file(file))
    return bundle, models


def _with_shadows(
    spec: dict[str, Any], bundle: DataBundle, setting: attacks.Setting, others: list[int]
) -> attacks.Setting:
    """The setting with half of the test records, or what it leaves of them, to train shadow models on."""
    decided = min(len(others) // 2, len(Records(setting.nonmembers)))
    make = shadows.MAKERS[kind_of(spec).name]
    return replace(
        setting,
        target=rounds_of(setting.target)[-1],
        nonmembers=Subset(bundle.test, others[:decided]),
        pool=Subset(bundle.test, others[decided:]),
        train=make(spec, lambda seed: network_of(spec["names"], bundle, seed), setting.seed),
    )


def _some(records: TensorDataset, count: int, draw: torch.Generator) -> Dataset[tuple[torch.Tensor, ...]]:
    return Subset(records, torch.randperm(len(records), generator=draw)[:count].tolist())


def _print(found: list[AttackResult]) -> None:
    table = Table("attack", "AUC", "balanced accuracy", "TPR at 0.1 % FPR", "TPR at 1 % FPR", box=None, pad_edge=False)
    for result in found:
        estimates = [result.auc, result.balanced_accuracy, *(rate.tpr for rate in result.tpr_at_fpr)]
        table.add_row(result.attack, *(f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" for e in estimates))
    console = Console()
    console.print(table)
    first = found[0]
    console.print(
        f"{first.members} members and {first.nonmembers} non-members, {100 * first.confidence:g} % intervals; {NOT_PRIVATE}.",
        soft_wrap=True,
        highlight=False,
    )
