"""Which names of data are paths of tables. It imports nothing, so that help does not wait for it."""

from __future__ import annotations

from pathlib import Path

CSV, PARQUET = (".csv", ".tsv"), (".parquet", ".pq")
SUFFIXES = (*CSV, *PARQUET)


def is_table(name: str | Path) -> bool:
    """Whether it is the path of a table."""
    return Path(name).suffix.lower() in SUFFIXES
