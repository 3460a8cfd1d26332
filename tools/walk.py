"""Count how far a command walks through the source: the files it enters, and the returns into a file already on the
stack.

    python tools/walk.py train --data digits --model logistic --epsilon 3 --epochs 1 --out DIRECTORY

A return is a pair of files: code of the first calls into the second while the second waits further down the stack.
A reader who follows the run goes back to that file to understand the call. Imports are not counted: only calls are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import assay

ROOT = str(Path(assay.__file__).parent) + "/"


class Walk:
    """What a profile function sees: the files on the stack, the files entered, the returns."""

    def __init__(self) -> None:
        self.stack: list[str | None] = []
        self.files: set[str] = set()
        self.returns: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Follow one call or return of a Python function."""
        if event == "call":
            self._enter(frame)
        elif event == "return" and self.stack:
            self.stack.pop()

    def _enter(self, frame: FrameType) -> None:
        name = frame.f_code.co_filename
        own = name.removeprefix(ROOT) if name.startswith(ROOT) and frame.f_code.co_name != "<module>" else None
        if own is not None:
            self.files.add(own)
            before = [file for file in self.stack if file is not None]
            if before and before[-1] != own and own in before:
                self.returns.add((before[-1], own))
        self.stack.append(own)


def main() -> None:
    """Run the command line under the profile function and print the counts, then the returns."""
    from assay.cli import main as run

    walk = Walk()
    sys.argv = ["assay", *sys.argv[1:]]
    sys.setprofile(walk)
    try:
        run()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
    print(f"{len(walk.files)} files, {len(walk.returns)} returns into a file already on the stack")
    for caller, callee in sorted(walk.returns):
        print(f"  {caller} -> {callee}")


if __name__ == "__main__":
    main()
