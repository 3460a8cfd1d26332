"""What a study has measured, cell by cell, over the seeds that are finished."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay._util.figures import shown
from assay.attacks.storage import read_attacks
from assay.runs.directory import RunDirectory
from assay.runs.record import number
from assay.studies.directory import Study
from assay.studies.grid import Run, Settings


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a table needs of one finished run."""

    labels: tuple[str, ...]
    seed: int
    test_accuracy: float | None
    claimed: float | None
    verified: float
    audited: float | None
    noise_multiplier: float | None
    steps: int
    seconds: float
    status: str = "done"
    parts: Mapping[str, float | str] = field(default_factory=dict)
    """The verified ε of the run's parts with separate noise, by name."""
    attacks: Mapping[str, float] = field(default_factory=dict)
    """The balanced accuracy of attacks on the run, by name."""
    history: Sequence[tuple[float, float]] = ()
    """Pairs of epoch (or round) and test accuracy."""
    losses: Sequence[tuple[float, float | None, float | None]] = ()
    """Epoch (or round), released training loss and test loss; kept where a figure draws them."""
    bytes_up: int | None = None
    bytes_down: int | None = None
    """Between clients and server, where there are clients."""
    settings: Settings | None = None
    """What the run was asked for, and what its preset stood for; None in old results."""
    tuning: Mapping[str, Any] | None = None
    """How its settings were found, as its record has it."""
    commit: str | None = None
    """The commit of Assay that trained it; None in old results, and for an installed package."""

    recalls: Sequence[float | None] = ()
    """The recall of each class on the test records; empty in old results."""

    @classmethod
    def of_run(cls, run: Run, directory: RunDirectory) -> Measured:
        """From `record.json`, and `attacks.json` if there is one."""
        record = directory.read_record()
        eps = record["epsilon"]
        return cls(
            labels=run.labels,
            seed=run.seed,
            settings=run.decided,
            test_accuracy=_float(record["result"]["test_accuracy"]),
            claimed=_float(eps["claimed"]),
            verified=float(eps["verified"]),
            audited=_float(eps["audited"]),
            noise_multiplier=record["noise_multiplier"],
            steps=record["steps"],
            seconds=record["timing"]["seconds"],
            status=record["status"],
            parts={part["name"]: part["verified"] for part in record.get("parts", [])},
            attacks={result["attack"]: result["balanced_accuracy"]["value"] for result in read_attacks(directory)},
            history=[
                (entry.get("round", entry["epoch"]), entry["test_accuracy"])
                for entry in record["history"]
                if entry["test_accuracy"] is not None
            ],
            losses=[
                (entry.get("round", entry["epoch"]), entry.get("train_loss"), entry.get("test_loss"))
                for entry in record["history"]
            ],
            bytes_up=(record.get("federated") or {}).get("bytes_up"),
            bytes_down=(record.get("federated") or {}).get("bytes_down"),
            tuning=record.get("tuning"),
            commit=record["environment"].get("commit"),
            recalls=record.get("recalls", ()),
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        eps = {name: number(data[name]) for name in ("claimed", "verified", "audited")}
        return data | {"labels": list(self.labels)} | eps

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        """Read what `to_json` gave; old results have neither audits nor statuses."""
        eps = {name: _float(data.get(name)) for name in ("claimed", "verified", "audited")}
        history = tuple((time, accuracy) for time, accuracy in data.get("history", ()))
        recalls = tuple(data.get("recalls", ()))
        losses = tuple((time, training, test) for time, training, test in data.get("losses", ()))
        more = {"history": history, "recalls": recalls, "losses": losses}
        return cls(**{**data, "labels": tuple(data["labels"]), **more, **eps})


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The finished runs of a cell. Over seeds, ε is the largest and audited ε the smallest: both hold for each seed."""

    labels: tuple[str, ...]
    runs: tuple[Measured, ...]

    @property
    def accuracy(self) -> str:
        """In percent, mean ± standard deviation over seeds."""
        return spread(self.accuracies)

    @property
    def accuracies(self) -> list[float]:
        """In percent, by seed."""
        return [100 * run.test_accuracy for run in self.runs if run.test_accuracy is not None]

    def attacked(self, names: Sequence[str]) -> list[float]:
        """The accuracy of an attack, or the mean of several, in percent, by seed."""
        done = [run.attacks for run in self.runs if set(names) <= run.attacks.keys()]
        return [100 * statistics.mean(accuracies[name] for name in names) for accuracies in done]

    @property
    def recalls(self) -> list[float]:
        """The recall of each class in percent, mean over seeds; empty where a run does not have it."""
        if not self.runs or not all(run.recalls for run in self.runs):
            return []
        by_class = zip(*(run.recalls for run in self.runs), strict=True)
        return [100 * statistics.mean(found) for one in by_class if (found := [r for r in one if r is not None])]

    @property
    def claimed(self) -> float | None:
        """ε by the paper."""
        return max((run.claimed for run in self.runs if run.claimed is not None), default=None)

    @property
    def verified(self) -> float | None:
        """ε by the ledger."""
        return max((run.verified for run in self.runs), default=None)

    @property
    def audited(self) -> float | None:
        """ε by attack."""
        return min((run.audited for run in self.runs if run.audited is not None), default=None)

    @property
    def tuning(self) -> Mapping[str, Any] | None:
        """How the settings were found. All seeds agree, because a preset that has changed is another setting."""
        return next((run.tuning for run in self.runs if run.tuning is not None), None)

    def sent(self, way: str) -> float | None:
        """The megabytes of a whole run, `up` or `down`, mean over seeds."""
        counts = [count for run in self.runs if (count := getattr(run, f"bytes_{way}")) is not None]
        return statistics.mean(counts) / 1e6 if counts else None


def measured(study: Study) -> list[Measured]:
    """Every finished run."""
    done = [run for run in study.grid.runs() if study.of(run).finished]
    return [Measured.of_run(run, study.of(run)) for run in done]


def cells(runs: Sequence[Measured], order: Sequence[tuple[str, ...]]) -> list[Cell]:
    """The runs by cell, in this order; a cell without a finished run is empty, not left out."""
    return [Cell(labels=labels, runs=tuple(run for run in runs if run.labels == labels)) for labels in order]


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    if not values:
        return "–"
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def epsilon(value: float | None, *, lower_bound: bool = False) -> str:
    """An ε in a column: rounded to the side that is true."""
    if value is None:
        return "–"
    text = shown(number(value), lower_bound=lower_bound).removesuffix(" (no privacy)")
    return f"≥ {text}" if lower_bound and text != "∞" else text


def tried(tuning: Mapping[str, Any] | None) -> str:
    """How settings were found, for a column: how many were tried, whether ε covers that, and what was changed."""
    if tuning is None:
        return "–"
    before = f"{tried(tuning['start'])}; then " if tuning.get("start") else ""
    changed = f"; {', '.join(tuning['changed'])} changed" if tuning.get("changed") else ""
    return f"{before}{settings_tried(tuning)}, {'charged' if tuning['charged'] else 'not charged'}{changed}"


def settings_tried(tuning: Mapping[str, Any]) -> int:
    """How many settings there were to choose from."""
    return len(tuning["candidates"]) if "candidates" in tuning else int(tuning["tried"])


def _float(value: float | str | None) -> float | None:
    return None if value is None else float(value)
