"""Count how far a command walks through the source: the files it enters, and the returns into a file already on the
stack.

    python tools/walk.py train --data digits --model logistic --epsilon 3 --epochs 1 --out DIRECTORY

A return is a pair of files: code of the first calls into the second while the second waits further down the stack.
A reader who follows the run goes back to that file to understand the call.

Imports are not counted: only calls are. Whatever runs while a module is being imported belongs to its import: the
bodies of its classes, its constants, its registries. (Otherwise a module that is imported when it is first needed would
count, and the same module imported at the start would not.) `--imports` before the command counts these too.
`--files` before the command lists the files, with the number of functions entered in each and a few of their names.

A call that torch makes (a hook on a module or a gradient) is no return: a reader follows the file that set the hook.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import assay

TORCH = str(Path(torch.__file__).parent) + "/"
ROOT = str(Path(assay.__file__).parent) + "/"


class Walk:
    """What a profile function sees: the files on the stack, the files entered, the returns."""

    def __init__(self, *, imports: bool = False) -> None:
        self.imports = imports
        self.stack: list[str | None] = []
        self.importing: list[int] = []
        """How deep the stack was where each import began that goes on."""
        self.files: dict[str, dict[str, None]] = {}
        """The functions entered in each file, in the order of their first call."""
        self.returns: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Follow one call or return of a Python function."""
        if event == "call":
            self._enter(frame)
        elif event == "return" and self.stack:
            self.stack.pop()
            if self.importing and self.importing[-1] == len(self.stack):
                self.importing.pop()

    def _enter(self, frame: FrameType) -> None:
        name = frame.f_code.co_filename
        ours, module = name.startswith(ROOT), frame.f_code.co_name == "<module>"
        if ours and module and not self.imports:
            self.importing.append(len(self.stack))
        own = name.removeprefix(ROOT) if ours and not module and not self.importing else None
        if own is not None:
            self.files.setdefault(own, {})[frame.f_code.co_qualname] = None
            before = [file for file in self.stack if file is not None]
            hooked = frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(TORCH)
            if not hooked and before and before[-1] != own and own in before:
                self.returns.add((before[-1], own))
        self.stack.append(own)


def main() -> None:
    """Run the command line under the profile function and print the counts, then the returns."""
    from assay.cli import main as run

    own = list(itertools.takewhile(lambda word: word in ("--imports", "--files"), sys.argv[1:]))
    walk = Walk(imports="--imports" in own)
    sys.argv = ["assay", *sys.argv[1 + len(own) :]]
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
    if "--files" in own:
        for file, functions in sorted(walk.files.items(), key=lambda entry: (len(entry[1]), entry[0])):
            print(f"  {file} {len(functions)}: {', '.join(list(functions)[:4])}")


if __name__ == "__main__":
    main()
