"""How long the questions take that a run or a reader asks about its ledger: `python -m benchmarks.oracles.questions`

Asked is about the longest of the compared runs of each sampler and adjacency (`settings.py`). Answers are cached, so
each question is asked about a run with slightly other noise, whose answer nobody knows yet. Counted is the time of the
processor: the machine may be busy. The faster of two askings counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from assay.accounting.epsilon import Adjacency, bound, delta_for, epsilon, epsilon_after, epsilon_curve, rdp_epsilon
from assay.accounting.tradeoff import tradeoff
from benchmarks.oracles import table
from benchmarks.oracles.settings import SETTINGS, Setting

MOST, MOST_ALLOCATED = 1.0, 10.0  # seconds
_ASKED = 2
_DELTAS = (1e-4, 1e-5, 1e-6, 1e-7)

QUESTIONS: dict[str, Callable[[Any, float, Adjacency], object]] = {
    "ε": epsilon,
    "which bound": bound,
    "ε by Rényi": rdp_epsilon,
    "ε at other δ": lambda event, _delta, adjacency: epsilon_curve(event, _DELTAS, adjacency),
    "δ at ε = 3": lambda event, _delta, adjacency: delta_for(event, 3.0, adjacency),
    "ε after each tenth": lambda event, delta, adjacency: epsilon_after(
        event.event, delta, adjacency, [max(1, event.count * i // 10) for i in range(1, 11)]
    ),
    "trade-off": tradeoff,
}


def run() -> list[dict[str, Any]]:
    """For each question the slower adjacency of each sampler."""
    settings = {(one.sampling, one.adjacency): one for one in sorted(SETTINGS, key=lambda one: one.steps)}.values()
    slowest: dict[tuple[str, str], dict[str, Any]] = {}
    for question, ask in QUESTIONS.items():
        for setting in settings:
            seconds = min(_seconds(ask, setting, question, i) for i in range(_ASKED))
            key = (question, setting.sampling)
            if key not in slowest or seconds > slowest[key]["seconds"]:
                slowest[key] = {
                    "question": question,
                    "sampling": setting.sampling,
                    "run": setting.key,
                    "seconds": round(seconds, 3),
                    "most": MOST_ALLOCATED if setting.sampling == "shuffle" else MOST,
                }
    return list(slowest.values())


def _seconds(ask: Callable[[Any, float, Adjacency], object], setting: Setting, question: str, i: int) -> float:
    other = replace(setting, noise=setting.noise * (1 + 1e-6 * (1 + i + _ASKED * list(QUESTIONS).index(question))))
    event = table.event_of(other)
    start = time.process_time()
    ask(event, other.delta, Adjacency(other.adjacency))
    return time.process_time() - start


def rendered(found: list[dict[str, Any]]) -> str:
    """A table in Markdown: questions down, samplers across."""
    samplers = list(dict.fromkeys(row["sampling"] for row in found))
    seconds = {(row["question"], row["sampling"]): row["seconds"] for row in found}
    lines = ["| seconds | " + " | ".join(samplers) + " |", "|---" * (1 + len(samplers)) + "|"]
    lines += [f"| {q} | " + " | ".join(f"{seconds[q, s]:.2f}" for s in samplers) + " |" for q in QUESTIONS]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    found = run()
    print(json.dumps(found, indent=1, ensure_ascii=False) if parser.parse_args().json else rendered(found))
    if any(row["seconds"] > row["most"] for row in found):
        raise SystemExit("some questions take longer than they may")


if __name__ == "__main__":
    main()
