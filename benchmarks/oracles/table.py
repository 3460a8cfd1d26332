"""Assay's ε beside that of the peers, lower bounds, and why some rows are above the best peer."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution as pld

from assay.accounting.epsilon import Adjacency, epsilon
from assay.data.samplers import parse
from assay.data.samplers.cyclic import Cyclic
from benchmarks.oracles.settings import ADDED, SETTINGS, Setting

RESULTS = Path(__file__).with_name("results.json")
PARTIAL = Path(__file__).with_name("partial.jsonl")  # answers of a comparison that is under way
MARGIN = 0.01  # how far above the best peer Assay may be without a reason
REASONS: dict[str, str] = {
    "without-replacement": (
        "jax_privacy composes one pair, in which the same data set has the outlier in every step. Gradients that are "
        "chosen step by step exceed its number: ε is at least 9.281 where it says 9.236 (σ 1.5, 500 of 5,000, 50 "
        "steps; `python -m benchmarks.oracles.adaptive`). So it is no upper bound for these."
    ),
}


def event_of(run: Setting) -> Any:
    """What Assay charges."""
    noise = GaussianDpEvent(run.noise)
    if run.bands > 1:
        return Cyclic(run.records, run.batch, run.bands).compose(noise, run.steps)
    return parse(run.sampling)(run.records, run.batch).compose(noise, run.steps)


def ours(run: Setting) -> float:
    """Assay's ε."""
    return epsilon(event_of(run), run.delta, Adjacency(run.adjacency))


def proven_lower(run: Setting) -> float | None:
    """A lower bound on the ε of the mechanism that needs no peer; None for random allocation, where a peer has one."""
    replaced = run.adjacency != ADDED
    if run.sampling == "full":
        moved = 2 if replaced else 1
        return float(get_epsilon_gaussian(run.noise / moved / math.sqrt(run.steps), run.delta)) * (1 - 1e-9)
    if run.sampling == "without-replacement":  # everybody else pulls the other way: `WithoutReplacement.at_least`
        return _optimistic(run.rate, run.noise / 2, run.turns, run.delta, replaced=False)
    if run.sampling == "permutation":  # `Permuted.at_least`
        noise = run.noise * math.sqrt(run.epoch / (run.steps // run.epoch))
        return float(get_epsilon_gaussian(noise, run.delta)) * (1 - 1e-9)
    if run.sampling == "shuffle":
        return None
    kept = 1 - 1e-10 if run.sampling == "truncated-poisson" else 1.0
    return _optimistic(kept * run.rate, run.noise, run.turns, run.delta, replaced=replaced)


def _optimistic(rate: float, noise: float, steps: int, delta: float, *, replaced: bool) -> float:
    """A lower bound on ε of Poisson sampling, by dp_accounting: losses are rounded down."""
    from dp_accounting import NeighboringRelation as Relation

    single = pld.from_gaussian_mechanism(
        noise,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-5 if rate < 0.02 else 1e-4,
        sampling_prob=rate,
        neighboring_relation=Relation.REPLACE_ONE if replaced else Relation.ADD_OR_REMOVE_ONE,
    )
    return float(single.self_compose(steps).get_epsilon_for_delta(delta))


def ask(interpreters: Iterable[str], limit: int) -> dict[str, Any]:
    """What the peers installed beside each interpreter say; of a peer that is there twice, the first.

    Every answer is kept in `PARTIAL` as soon as it is there. Whoever was interrupted calls again and goes on.
    """
    lines = PARTIAL.read_text(encoding="utf-8").splitlines() if PARTIAL.exists() else []
    given = [json.loads(line) for line in lines]
    for interpreter in interpreters:
        known = [(said["peer"], said["run"]) for said in given]
        peers = subprocess.Popen(
            [interpreter, "-m", "benchmarks.oracles.peers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert peers.stdin is not None
        assert peers.stdout is not None
        with peers.stdin:
            json.dump({"known": known, "limit": limit}, peers.stdin)
        with PARTIAL.open("a", encoding="utf-8") as kept:
            for line in peers.stdout:
                kept.write(line)
                kept.flush()
                given.append(json.loads(line))
        if peers.wait():
            raise SystemExit(f"{interpreter} ended with {peers.returncode}; the answers so far are in {PARTIAL}")
    found: dict[str, Any] = {"versions": {}, "answers": {}}
    for said in given:
        found["versions"][said["module"]] = said["version"]
        if said["answer"] is not None:
            found["answers"].setdefault(said["run"], {})[said["peer"]] = said["answer"]
    return found


def rows(peers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each run."""
    found = []
    for run in SETTINGS:
        start = time.perf_counter()
        value = ours(run)
        seconds = time.perf_counter() - start
        answers = {k: v for k, v in peers["answers"].get(run.key, {}).items() if "upper" in v}
        lowers = {k: v["lower"] for k, v in answers.items() if v["lower"] is not None}
        own = proven_lower(run)
        if own is not None:
            lowers["proven"] = own
        uppers = {k: v["upper"] for k, v in answers.items()}
        best = min(uppers, key=uppers.__getitem__) if uppers else None
        found.append(
            {
                "run": run.key,
                "sampling": run.sampling,
                "adjacency": run.adjacency,
                "assay": value,
                "seconds": round(seconds, 3),
                "lower": lowers,
                "upper": uppers,
                "best": best,
                "over_best": None if best is None else value / uppers[best] - 1,
            }
        )
    return found


def summary(found: Iterable[Mapping[str, Any]]) -> str:
    """A line for each sampler and adjacency, in Markdown."""
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in found:
        kinds.setdefault((row["sampling"], row["adjacency"]), []).append(row)
    lines = [
        "| sampling | adjacency | runs | over the best peer | best peer | over a lower bound |",
        "|---|---|---|---|---|---|",
    ]
    for (sampling, adjacency), some in kinds.items():
        over = [100 * row["over_best"] for row in some if row["best"]]
        above = [100 * (row["assay"] / max(row["lower"].values()) - 1) for row in some if row["lower"]]
        best = ", ".join(sorted({row["best"] for row in some if row["best"]})) or "none"
        lines.append(f"| {sampling} | {adjacency} | {len(some)} | {_range(over)} | {best} | {_range(above)} |")
    return "\n".join(lines)


def _range(values: list[float]) -> str:
    return f"{min(values):+.1f} to {max(values):+.1f} %".replace("-0.0", "+0.0") if values else "none"


def rendered(found: Iterable[Mapping[str, Any]]) -> str:
    """A table in Markdown."""
    lines = [
        "| run | Assay | lower bound | best peer | Assay over it |",
        "|---|---|---|---|---|",
    ]
    for row in found:
        lower = max(row["lower"].values(), default=None)
        best = "none" if row["best"] is None else f"{row['upper'][row['best']]:.4g} ({row['best']})"
        over = "" if row["best"] is None else f"{100 * row['over_best']:+.2f} %"
        lines.append(
            f"| {row['run']} | {row['assay']:.5g} | {'none' if lower is None else f'{lower:.4g}'} | {best} | {over} |"
        )
    return "\n".join(lines)
