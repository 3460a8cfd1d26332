"""Files that are either whole or not there: written to a temporary name, flushed to disk, renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """`write` a temporary sibling, flush it to disk and rename it to `path`. A crash leaves the old file or the new
    one.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        with part.open("rb+") as handle:
            os.fsync(handle.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Write a text file whole."""
    replace_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def replace_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON file whole. Infinite and undefined numbers are refused: the caller says "inf" where it means it."""
    replace_text(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in this folder durable, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a system that does not open folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
