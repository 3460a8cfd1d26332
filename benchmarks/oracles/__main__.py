"""`python -m benchmarks.oracles --python peers/bin/python` asks all peers and writes `results.json`.

It takes some five minutes of one processor. Interrupted, it goes on where it was when called again. A throw-away
environment for the peers, which would change packages here:

    python -m venv peers
    peers/bin/pip install PLD_accounting==2.0 random-allocation==1.0.5 pandas matplotlib prv_accountant==0.2.0 \
        jax_privacy==2.0.0 dp_accounting==0.6.0
"""

from __future__ import annotations

import argparse
import json
import sys

from assay._util.process import commit
from benchmarks.oracles import table


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.oracles", description=__doc__)
    parser.add_argument("--python", action="append", default=[], help="an interpreter that has further peers")
    parser.add_argument("--limit", type=int, default=60, help="seconds of the processor for an answer of a peer")
    parser.add_argument("--stored", action="store_true", help="ask no peer: compare with the stored answers")
    given = parser.parse_args()
    if given.stored:
        peers = json.loads(table.RESULTS.read_text(encoding="utf-8"))["peers"]
    else:
        peers = {"commit": commit(), "limit": given.limit, **table.ask([*given.python, sys.executable], given.limit)}
    found = table.rows(peers)
    written = {"reasons": table.REASONS, "commit": commit(), "rows": found, "peers": peers}
    table.RESULTS.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if not given.stored:
        table.PARTIAL.unlink(missing_ok=True)
    print(table.rendered(found), table.summary(found), sep="\n\n")


if __name__ == "__main__":
    main()
