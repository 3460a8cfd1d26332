"""`python -m experiments PAPER/TABLE [--runs DIR] [--workers N]`: run a table, write its results, print it.

With `--print` nothing is run: the results that are there are printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments import grid, markdown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("tables", nargs="+", help="e.g. dp-lssgd/table2")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run directories go")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--print", action="store_true", dest="only_print", help="run nothing")
    asked = parser.parse_args()
    for name in asked.tables:
        table = grid.Table.read(name)
        if not asked.only_print:
            grid.run(table, asked.runs, asked.workers)
        print(f"{table.title}\n\n{markdown.render(table)}\n")


if __name__ == "__main__":
    main()
