"""Attacks on the model of a finished run, as `assay attack` makes them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from assay import attacks
from assay.attacks import shadows
from assay.attacks.evaluation import AttackResult, gain
from assay.attacks.setting import rounds_of
from assay.attacks.storage import write_attacks
from assay.data import DataBundle
from assay.data.records import Records
from assay.errors import ConfigError
from assay.federated.kinds import kind_of
from assay.runs.directory import RunDirectory
from assay.training.inputs import check_classes, network_of
from assay.training.inputs import of_run as rebuilt
from assay.training.stages import kept_release


def of_run(
    run: Path | str,
    names: Sequence[str] | None = None,
    *,
    records: int = 5000,
    confidence: float = 0.95,
    seed: int = 0,
    save: bool = False,
    data_dir: Path | None = None,
) -> list[AttackResult]:
    """Tell training from test records by the model of a finished run.

        for result in assay.attacks.of_run("runs/mnist"):
            print(result.attack, result.auc.value)

    The attacker knows the membership of half of the records, and is measured on the others. Attacks with shadow models
    train them as the run was trained, on test records that are not decided on.

    Args:
        run: The run's directory.
        names: The attacks; None for all that need the model only.
        records: Members to decide on, and as many non-members.
        confidence: The confidence of the intervals.
        seed: Decides which records are drawn, and which of them the attacker knows.
        save: Write the results to `attacks.json` beside the run, for the report. No ε covers them.
        data_dir: Where data sets are, if they have moved since.

    Returns:
        A result for each attack.

    Raises:
        ConfigError: There is no such attack, or the run was not started by names.
        AssayError: The run is unfinished.
    """
    directory = RunDirectory.open(Path(run))
    directory.read_record()  # refuses an unfinished run, and says how to resume it
    spec = directory.read_spec()
    if spec["plan"].get("unit") and isinstance(spec["plan"]["unit"], dict):
        raise ConfigError(
            "run",
            f"a run that protects one {spec['plan']['unit'].get('name')} with all of their rows",
            "a run whose unit is a record: attacks decide on single records, and what one row shows says little of a"
            " person. `assay audit --canaries N` inserts whole persons",
        )
    bundle, models = _models(directory, spec, data_dir, seed)
    draw = torch.Generator().manual_seed(seed)
    members = _some(bundle.train, records, draw)
    others = torch.randperm(len(bundle.test), generator=draw).tolist()
    setting = attacks.Setting(
        target=models, members=members, nonmembers=Subset(bundle.test, others[:records]), seed=seed
    )
    chosen = names or [one for one in attacks.available() if not attacks.lacking(one, setting)]
    if any("pool" in attacks.get(one).needs for one in chosen):
        shadow = _with_shadows(spec, bundle, setting, others)
    found = [
        attacks.run(one, shadow if "pool" in attacks.get(one).needs else setting, confidence=confidence)
        for one in chosen
    ]
    if save:
        write_attacks(directory, [result.to_json() for result in found])
    return found


def gain_over_guessing(run: Path | str, results: Sequence[AttackResult]) -> str:
    """What attacks on a finished run gained over guessing, and over what its verified ε allows, in one sentence.

    Args:
        run: The run's directory.
        results: What `of_run` returned.

    Returns:
        The sentence.
    """
    spent = RunDirectory.open(Path(run)).read_record()["epsilon"]
    return gain(results, float(spent["verified"]), float(spent["delta"]))


def _models(
    directory: RunDirectory, spec: dict[str, Any], data_dir: Path | None, seed: int
) -> tuple[DataBundle, list[nn.Module]]:
    """The data, and the models that training released: those after some rounds, if they were kept, and the last."""
    check_classes(spec)
    bundle, model = rebuilt(spec, data_dir, seed, instead="attack one started from Python with assay.attacks.run")
    before = kind_of(spec).plan(spec["plan"]).stage
    if before is not None:
        before.install(model, kept_release(directory))
    files = [*sorted(directory.kept_models.glob("*.safetensors"))[:-1], directory.model]
    models, record = [], directory.read_record()
    for file in files:
        models.append(copy.deepcopy(model).eval())
        models[-1].load_state_dict(directory.read_model(record, file))
    return bundle, models


def _with_shadows(
    spec: dict[str, Any], bundle: DataBundle, setting: attacks.Setting, others: list[int]
) -> attacks.Setting:
    """The setting with at least half of the test records to train shadow models on."""
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
