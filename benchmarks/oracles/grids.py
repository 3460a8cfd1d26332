"""PLD_accounting's bounds on random allocation on finer and finer grids: `peers/bin/python -m benchmarks.oracles.grids`.

Its upper and lower bounds close in on the exact ε, and both errors halve with the grid. So the exact ε lies near the
upper bound minus what the last refinement changed, and Assay's must lie between the bounds on every grid. It imports
nothing of Assay and prints JSON, which `grids.json` keeps. Each halving takes some ten times as long: 40 minutes in all.
"""

from __future__ import annotations

import argparse
import json
import time

from benchmarks.oracles.peers import allocation_bounds
from benchmarks.oracles.settings import ADDED, Setting

RUN = Setting("shuffle", ADDED, 4.0, 1000, 100, 200)
GRIDS = (0.02, 0.01, 0.005)


def main() -> None:
    """The command line."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = []
    for grid in GRIDS:
        start = time.process_time()
        upper, lower = allocation_bounds(RUN, grid)
        rows.append({"grid": grid, "upper": upper, "lower": lower, "seconds": round(time.process_time() - start)})
    print(json.dumps({"run": RUN.key, "rows": rows}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
