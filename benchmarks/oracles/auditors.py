"""Lower bounds on ε by Assay and by other auditors, from the same scores: `python -m benchmarks.oracles.auditors`.

Scores are N(0, 1) for excluded and N(μ, 1) for included canaries, so the exact ε is known. Nobody is told where the
threshold should be: Assay tries eight numbers of guesses, or ranks of a side, or lets half of the canaries choose;
jax_privacy does the latter, or tries all thresholds. Every bound holds with 95 % confidence. Bootstrap intervals are
left out, because no theorem says how often they hold.

It needs jax_privacy 2.0.0 and privacyguard-platform 0.0.2 beside Assay, and writes `auditors.json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay._util.process import commit
from assay.audit import bounds, from_scores, independent, one_run
from assay.audit.scores import guessed

RESULTS = Path(__file__).with_name("auditors.json")
DELTA, CANARIES, SEEDS, CONFIDENCE = 1e-5, 1000, 5, 0.95
SHIFTS = (1.0, 2.0, 4.0)
Scores = NDArray[np.float64]
Bound = Callable[[Scores, Scores], float]


def ours() -> dict[str, Bound]:
    """Assay's bounds, by what they assume."""
    return {
        "guesses": _scored(),
        "f-DP": _scored(assume="gaussian"),
        "independent": _scored(independent=True),
        "sums": lambda ins, outs: bounds.epsilon_of_mu(
            independent.shift_lower(ins, outs, significance=1 - CONFIDENCE), DELTA
        ),
    }


def _scored(**how: Any) -> Bound:
    return lambda ins, outs: from_scores(ins, outs, delta=DELTA, confidence=CONFIDENCE, **how).epsilon


def theirs() -> dict[str, dict[str, Bound]]:
    """The bounds of other libraries beside which each of Assay's stands."""
    from jax_privacy import auditing
    from privacy_guard.analysis.mia.fdp_analysis_node import FDPAnalysisNode

    def jax(name: str, strategy: Any, **how: Any) -> Bound:
        def bound(ins: Scores, outs: Scores) -> float:
            ask = getattr(auditing.CanaryScoreAuditor(ins, outs), name)
            return float(ask(1 - CONFIDENCE, DELTA, threshold_strategy=strategy, **how))

        return bound

    # privacyguard is told how many guesses are made: the number with the most promise beforehand, for μ = 2
    made = one_run.most_guesses(
        bounds.epsilon_of_mu(2.0, DELTA),
        DELTA,
        CANARIES,
        lambda one: one_run.epsilon_lower_gaussian(one, delta=DELTA, significance=1 - CONFIDENCE),
    )

    def privacyguard(ins: Scores, outs: Scores) -> float:
        found = guessed(ins, outs, made)
        node = FDPAnalysisNode(m=found.canaries, c=found.right, c_cap=found.made, threshold=1 - CONFIDENCE, delta=DELTA)
        return float(node.run_analysis().eps)

    split, every = auditing.Split(seed=0), auditing.Bonferroni()
    return {
        "guesses": {
            "Assay, split": _scored(split=True),
            "jax_privacy, split": jax("epsilon_one_run", split),
            "jax_privacy, all thresholds": jax("epsilon_one_run", every),
        },
        "f-DP": {
            "Assay, split": _scored(assume="gaussian", split=True),
            "jax_privacy, split": jax("epsilon_one_run_fdp", split),
            "privacyguard, number of guesses given": privacyguard,
            "Assay, number of guesses given": _scored(assume="gaussian", guesses=made),
        },
        "independent": {
            "Assay, split": _scored(independent=True, split=True),
            "jax_privacy, split": jax("epsilon_clopper_pearson", split),
            "jax_privacy, all thresholds": jax("epsilon_clopper_pearson", every),
        },
        "sums": {},
    }


def run() -> list[dict[str, Any]]:
    """For each shift and kind of bound the mean over seeds."""
    rows = []
    peers = theirs()
    for shift in SHIFTS:
        for kind, bound in ours().items():
            asked = {"assay": bound, **peers[kind]}
            means = {name: round(mean_bound(shift, ask), 3) for name, ask in asked.items()}
            rows.append({"exact": round(bounds.epsilon_of_mu(shift, DELTA), 3), "kind": kind, **means})
    return rows


def mean_bound(shift: float, ask: Bound) -> float:
    """The mean of a bound over the seeds, for this shift between excluded and included canaries."""
    found = []
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        included = random.random(CANARIES) < 0.5
        scores = random.standard_normal(CANARIES) + shift * included
        found.append(ask(scores[included], scores[~included]))
    return float(np.mean(found))


def rendered(rows: list[dict[str, Any]]) -> str:
    """A table in Markdown."""
    lines = ["| exact ε | bound | Assay | others |", "|---|---|---|---|"]
    for row in rows:
        others = "; ".join(f"{k} {v:.3g}" for k, v in row.items() if k not in ("exact", "kind", "assay")) or "none"
        lines.append(f"| {row['exact']:.3g} | {row['kind']} | {row['assay']:.3g} | {others} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    versions = {name: metadata.version(name) for name in ("jax_privacy", "privacyguard-platform")}
    settings = {"delta": DELTA, "canaries": CANARIES, "seeds": SEEDS, "confidence": CONFIDENCE}
    rows = run()
    written = {"commit": commit(), "versions": versions, "settings": settings, "rows": rows}
    RESULTS.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(rendered(rows))


if __name__ == "__main__":
    main()
