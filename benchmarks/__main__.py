"""`python -m benchmarks` prints every table; `python -m benchmarks engine` (or another name) one of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import cliffs, coverage, engine, epoch, exact, growth, memory, report, upkeep
from benchmarks.timing import effort_of

Section = Callable[[argparse.Namespace], tuple[Any, str]]


def _engine(options: argparse.Namespace) -> tuple[Any, str]:
    found = engine.run(effort_of(options), options.model)
    return [timing.to_json() for timing in found], engine.rendered(found)


def _memory(options: argparse.Namespace) -> tuple[Any, str]:  # noqa: ARG001
    found = memory.run()
    return [peaks.to_json() for peaks in found], memory.rendered(found)


def _epoch(options: argparse.Namespace) -> tuple[Any, str]:
    found = epoch.run(2 if options.quick else 8)
    return [one.to_json() for one in found], epoch.rendered(found)


def _upkeep(options: argparse.Namespace) -> tuple[Any, str]:  # noqa: ARG001
    found = upkeep.run()
    return upkeep.to_json(found), upkeep.rendered(found)


def _growth(options: argparse.Namespace) -> tuple[Any, str]:
    found = growth.run(growth.QUICK if options.quick else growth.FULL)
    return [vars(grown) for grown in found], growth.rendered(found)


def _exact(options: argparse.Namespace) -> tuple[Any, str]:
    found = exact.run(effort_of(options))
    return [price.to_json() for price in found], exact.rendered(found)


def _cliffs(options: argparse.Namespace) -> tuple[Any, str]:
    found = cliffs.run(effort_of(options))
    return [cliff.to_json() for cliff in found], cliffs.rendered(found)


def _coverage(options: argparse.Namespace) -> tuple[Any, str]:  # noqa: ARG001
    found = coverage.run()
    return [vars(outcome) for outcome in found], coverage.rendered(found)


SECTIONS: dict[str, Section] = {
    "engine": _engine,
    "memory": _memory,
    "epoch": _epoch,
    "upkeep": _upkeep,
    "growth": _growth,
    "exact": _exact,
    "cliffs": _cliffs,
    "coverage": _coverage,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Assay against plain training and Opacus")
    parser.add_argument("which", nargs="?", choices=list(SECTIONS), help="one table only")
    engine.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    torch.set_num_threads(report.THREADS)
    found: dict[str, Any] = {"machine": report.machine()}
    text = [report.described()]
    for name, section in SECTIONS.items():
        if options.which in (None, name):
            found[name], words = section(options)
            text.append(words)
    print(json.dumps(found, indent=2) if options.json else "\n\n".join(text))


if __name__ == "__main__":
    main()
