"""ε of many runs by Assay and by other accountants, side by side: `python -m benchmarks.oracles`.

- `settings.py`: the runs.
- `peers.py`: what the other packages say. It imports nothing of Assay, so it runs in an environment without it.
- `table.py`: the comparison, and the written reasons where Assay is above the best peer.
- `results.json`: what was printed last.
"""
