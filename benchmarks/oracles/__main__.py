"""`python -m benchmarks.oracles --python peers/bin/python` asks all peers again and writes `results.json`.

Without `--python` it asks the peers of this environment only, and keeps the stored answers of all others. A throw-away
environment for the others, which would change packages here:

    python -m venv peers
    peers/bin/pip install PLD_accounting==2.0 random-allocation==1.0.5 pandas matplotlib prv_accountant==0.2.0 \
        jax_privacy==2.0.0 dp_accounting==0.6.0
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.oracles import table


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.oracles", description=__doc__)
    parser.add_argument("--python", action="append", default=[], help="an interpreter that has further peers")
    parser.add_argument("--stored", action="store_true", help="ask no peer: compare with the stored answers")
    given = parser.parse_args()
    peers = (
        json.loads(table.RESULTS.read_text())["peers"] if table.RESULTS.exists() else {"versions": {}, "answers": {}}
    )
    if not given.stored:
        table.merge(peers, table.asked([sys.executable, *given.python]))
    found = table.rows(peers)
    written = {"reasons": table.REASONS, "rows": found, "peers": peers}
    table.RESULTS.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    print(table.rendered(found), table.summary(found), sep="\n\n")


if __name__ == "__main__":
    main()
