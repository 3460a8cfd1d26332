"""Which commit of Assay runs, where it runs from a checkout of its sources."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

_PATIENCE = 10.0  # seconds; a repository on a slow disk must not hold up a record


@functools.cache
def commit() -> str | None:
    """The commit of the sources that this process runs.

    Returns:
        Its 40 digits, followed by `-modified` if a file below `src` differs from it. None for an installed package, or
        where git does not answer.
    """
    root = Path(__file__).resolve().parents[3]
    # A package installed into a folder of somebody else's repository is not a checkout of Assay.
    if not ((root / ".git").exists() and (root / "src" / "assay").is_dir()):
        return None
    head = _answer(root, "rev-parse", "HEAD")
    changed = _answer(root, "status", "--porcelain", "--", "src")
    if not head or changed is None:
        return None
    return f"{head}-modified" if changed else head


def _answer(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
