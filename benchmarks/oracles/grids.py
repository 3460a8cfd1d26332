"""PLD_accounting on random allocation with finer and finer grids: `peers/bin/python -m benchmarks.oracles.grids`.

Its upper and lower bounds close in on the exact ε, and both errors halve with the grid. So the exact ε lies near the
upper bound minus what the last refinement changed, and Assay's must lie between the bounds on every grid. It imports
nothing of Assay and prints JSON, which `grids.json` keeps. Each halving takes some ten times as long.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.oracles.peers import allocation_bounds
from benchmarks.oracles.settings import ADDED, Setting

RUN = Setting("shuffle", ADDED, 4.0, 1000, 100, 200)
GRIDS = (0.02, 0.01, 0.005)


def main() -> None:
    """The command line."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = []
    for grid in GRIDS:
        upper, lower = allocation_bounds(RUN, grid)
        rows.append({"grid": grid, "upper": upper, "lower": lower})
    print(json.dumps({"run": RUN.key, "rows": rows}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
