"""Groups of runs that differ only in their seed, and what the three ε of a setting say, in words."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from assay._util.figures import at_least, at_most
from assay.report.collect import Finished, number
from assay.runs.signoff import uncharged
from assay.runs.statement import scored
from assay.studies.summary import tried

_ROUNDING = 1e-9  # two ways to compute the same ε may differ by this much of it
_SLACK = 1.01  # a verified ε is within 1 % of the exact one: a smaller excess says nothing about a claim


class Tone(StrEnum):
    """How a verdict is marked."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The conclusion for a reader."""

    tone: Tone
    words: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """One setting and its seeds. Over seeds, ε is the largest and audited ε the smallest: both hold for each seed."""

    key: str
    method: str
    variant: str
    options: str
    data: str
    model: str
    setting: str
    predicts: str | None
    target: float | None
    target_is: str
    delta: float
    unit: str
    claimed: float | None
    verified: float
    audited: float | None
    runs: tuple[Finished, ...]

    @property
    def family(self) -> str:
        """The method with its options, which has one colour and shape."""
        return f"{self.method} ({self.options})" if self.options else self.method

    @property
    def label(self) -> str:
        """The method with its options, and its variant, if that is not the sound one."""
        return f"{self.family}, {self.variant}" if self.published else self.family

    @property
    def published(self) -> bool:
        """Whether it is the paper's algorithm, as its text or its authors' code has it."""
        return self.variant in ("published", "authors")

    @property
    def name(self) -> str:
        """The setting in one line."""
        target = "" if self.target is None else f", ε {self.target:g} {self.target_is}"
        return f"{self.label} on {self.data}{target}" + (f", {self.setting}" if self.setting else "")

    @property
    def scored(self) -> str:
        """On which records accuracy was measured: `test` or `validation`."""
        return scored(self.runs[0].record)

    @property
    def accuracies(self) -> list[float]:
        """The accuracies of the seeds that have one."""
        return [value for run in self.runs if (value := accuracy(run)) is not None]

    @property
    def mean(self) -> float | None:
        """Mean accuracy."""
        return statistics.mean(self.accuracies) if self.accuracies else None

    def measured(self, what: str) -> float | None:
        """Another figure of the result, mean over seeds; None where no seed has it."""
        found = [value for run in self.runs if (value := finite(run.record.get("result", {}).get(what))) is not None]
        return statistics.mean(found) if found else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def sent(self, way: str) -> float | None:
        """Megabytes between server and clients in a run, `up` or `down`, mean over seeds; None without clients."""
        counts = [finite((run.record.get("federated") or {}).get(f"bytes_{way}")) for run in self.runs]
        known = [count for count in counts if count is not None]
        return round(statistics.mean(known) / 1e6, 3) if known else None

    @property
    def tried(self) -> str:
        """How the settings were found, for a column; each way if runs found them differently."""
        return " or ".join(dict.fromkeys(tried(run.record.get("tuning")) for run in self.runs))

    @property
    def above(self) -> bool:
        """Whether an audit of any seed shows more than that seed spent."""
        pairs = [
            (number(eps.get("audited")), number(eps["verified"])) for eps in (r.record["epsilon"] for r in self.runs)
        ]
        return any(audited is not None and audited > (verified or 0.0) * (1 + _ROUNDING) for audited, verified in pairs)

    @property
    def seeded(self) -> bool:
        """Whether a seed was fixed: the run is then reproducible, and therefore not private."""
        return any(run.record.get("seed") is not None for run in self.runs)


def accuracy(run: Finished) -> float | None:
    """The accuracy of a run, on test records unless it was scored on others."""
    return finite(run.record.get("result", {}).get("test_accuracy"))


def finite(value: object) -> float | None:
    """A number that can be drawn."""
    try:
        parsed = number(value)
    except ValueError:
        return None
    return parsed if parsed is not None and math.isfinite(parsed) else None


_SHOWN = ("target", "accuracy on", "protects")  # a table has separate columns for these


def group_runs(runs: Sequence[Finished]) -> list[Group]:
    """The settings in the order of their first run, each with what distinguishes it from others of its method."""
    by_key: dict[str, list[Finished]] = {}
    for run in runs:
        by_key.setdefault(json.dumps(_settings(run), sort_keys=True, default=str), []).append(run)
    all_settings = {key: _flat(_settings(members[0])) for key, members in by_key.items()}
    groups = []
    for key, members in by_key.items():
        mine = all_settings[key]
        same = [other for other in all_settings.values() if _kin(other) == _kin(mine)]
        differing = [name for name in mine if any(other.get(name) != mine[name] for other in same)]
        groups.append(
            _group(key, members, ", ".join(f"{name} {mine[name]}" for name in differing if name not in _SHOWN))
        )
    return groups


def _group(key: str, members: Sequence[Finished], setting: str) -> Group:
    first = members[0].record
    eps = [run.record["epsilon"] for run in members]
    options = {name: value for name, value in (first.get("options") or {}).items() if name not in ("variant", "groups")}
    audited = [value for e in eps if (value := number(e.get("audited"))) is not None]
    claimed = [value for e in eps if (value := number(e.get("claimed"))) is not None]
    return Group(
        key=key,
        method=first["method"],
        variant=str(first.get("variant", "")),
        options=", ".join(f"{name}={value}" for name, value in options.items()),
        data=first["data"],
        model=str(first.get("model", "unnamed")) + _circulant(members[0]),
        setting=setting,
        predicts=_predicted(members[0]),
        target=finite(eps[0].get("target")),
        target_is=str(eps[0].get("target_is", "verified")),
        delta=float(eps[0]["delta"]),
        unit=str(first.get("unit", "one record")),
        claimed=max(claimed, default=None),
        verified=max(number(e["verified"]) or 0.0 for e in eps),
        audited=min(audited, default=None),
        runs=tuple(members),
    )


def _circulant(run: Finished) -> str:
    block = (run.spec.get("names") or {}).get("circulant")
    return "" if block is None else f", circulant {block}"


def _predicted(run: Finished) -> str | None:
    """The target of a run on a table."""
    found: str | None = (run.spec.get("names") or {}).get("target")
    return found


_COMPARED = (
    *("method", "variant", "options", "encode", "denoise", "model"),
    *("data", "records", "clip", "micro_batch", "sampling"),
)
_NO_SETTING = ("seed", "device", "max_physical_batch", "scaled")  # the last follows from others
_FEDERATED = ("clients", "rounds", "unit", "noise", "min_answers", "partition", "partition_seed")


def _settings(run: Finished) -> dict[str, Any]:
    """Everything that distinguishes two settings, without the seed and what follows from it."""
    record, eps = run.record, run.record["epsilon"]
    settings = {name: record.get(name) for name in _COMPARED}
    settings |= {"circulant": _circulant(run), "accuracy on": scored(record), "protects": record.get("unit")}
    if (predicted := _predicted(run)) is not None:
        settings["predicts"] = predicted
    target = eps.get("target")
    settings |= {
        "target": target,
        "target is": eps.get("target_is"),
        "delta": eps["delta"],
        "adjacency": eps.get("adjacency"),
    }
    if target is None:
        settings["noise multiplier"] = record.get("noise_multiplier")
    settings["steps"] = (run.spec.get("plan") or {}).get("steps", record.get("steps"))
    training = {k: v for k, v in (record.get("training") or {}).items() if k not in _NO_SETTING}
    federated = record.get("federated") or {}
    settings |= {name: federated[name] for name in _FEDERATED if name in federated}
    return settings | {"training": training}


def _flat(settings: Mapping[str, Any], at: str = "") -> dict[str, str]:
    out: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            inner = "" if name in ("training", "optimizer", "sampling") else f"{name} "
            out |= _flat(value, at + inner)
        else:
            listed = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            out[(at + name).replace("_", " ")] = f"{value:g}" if isinstance(value, float) else listed
    return out


def _kin(settings: Mapping[str, str]) -> tuple[str | None, ...]:
    """What a table shows in separate columns: settings that agree in it need a column for what differs."""
    options = [f"{k}={v}" for k, v in sorted(settings.items()) if k.startswith("options ")]
    columns = ("method", "variant", "data", "model", "circulant", "target", "target is")
    return (*map(settings.get, columns), *options)


def verdict(group: Group) -> Verdict:
    """The three ε of a setting in words.

    Only an audit refutes a claim. A verified ε above a claim says that nothing supports it.
    """
    spent, claimed = at_most(group.verified), group.claimed
    audits = [run.record["audit"] for run in group.runs if isinstance(run.record.get("audit"), Mapping)]
    aside = [run.record["audits_aside"] for run in group.runs if isinstance(run.record.get("audits_aside"), Mapping)]
    said = {str(audit.get("verdict")) for audit in audits} | {str(one.get("alarm")) for one in aside}
    shown = "" if group.audited is None else f"; an attack shows {_least(group.audited)}"
    allowed = group.target if group.target_is == "verified" else None
    unbounded = math.isinf(group.verified)
    unsupported = group.published and claimed is not None and group.verified > _SLACK * claimed
    claims = f"claims {_most(claimed)}"
    within = f"spent {spent}" + ("" if allowed is None else f" of {allowed:g} allowed")
    if claimed is not None and math.isinf(claimed) and not unbounded:
        within += "; claimed is ∞ because the paper's accountant finds no finite ε for this run"
    suspicion = "an attack shows more than was spent if the trade-off function is Gaussian: no proof of a bug"
    troubles = [run.trouble for run in group.runs if run.trouble]
    tried = uncharged(group.runs[0].record.get("tuning"))
    agrees = ", and an audit agrees" if "consistent" in said else ""
    cases = (  # the first that applies
        ("bug" in said, Tone.BAD, "implementation bug", f"audited above verified{shown}"),
        (
            "claim-refuted" in said,
            Tone.BAD,
            "claim refuted",
            f"{claims}, {'no finite ε holds' if unbounded else f'it spends {spent}'}{shown}",
        ),
        (unbounded, Tone.BAD, "no privacy", f"no finite ε holds; {claims}{shown}"),
        (unsupported, Tone.BAD, "claim not supported", f"{claims}, spends {spent}{shown}"),
        (allowed is not None and group.verified > allowed, Tone.BAD, "over its budget", f"{within}{shown}"),
        (bool(troubles), Tone.BAD, "files damaged", f"{within}{shown}; {' '.join(troubles[:1])}"),
        ("suspect" in said or group.above, Tone.NOTE, "look into it", f"{within}; {suspicion}"),
        (bool(tried), Tone.NOTE, "holds for the run alone", f"{within}{shown}; {tried}"),
        (True, Tone.GOOD, "holds", f"{within}{shown}{agrees}"),
    )
    return next(Verdict(tone=tone, words=words, detail=detail) for applies, tone, words, detail in cases if applies)


def _most(value: float | None) -> str:
    return "nothing" if value is None else "∞" if math.isinf(value) else at_most(value)


def _least(value: float) -> str:
    return "that none holds" if math.isinf(value) else f"at least {at_least(value)}"
