"""`python -m benchmarks` prints every table; `python -m benchmarks engine` or `memory` one of them."""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from benchmarks import engine, memory, report


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Assay against plain training and Opacus")
    parser.add_argument("which", nargs="?", choices=["engine", "memory"], help="one table only")
    engine.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    torch.set_num_threads(report.THREADS)
    found: dict[str, Any] = {"machine": report.machine()}
    text = [report.described()]
    if options.which != "memory":
        timings = engine.run(engine.effort_of(options), options.model)
        found["engine"] = [timing.to_json() for timing in timings]
        text.append(engine.rendered(timings))
    if options.which != "engine":
        peaks = memory.run()
        found["memory"] = peaks.to_json()
        text.append(memory.rendered(peaks))
    print(json.dumps(found, indent=2) if options.json else "\n\n".join(text))


if __name__ == "__main__":
    main()
