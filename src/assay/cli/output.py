"""Standard output and standard error that cannot fail a command, and the consoles that print to them.

A run that has spent its budget must not end because a terminal has no Greek letters, or because nobody reads its
progress any more. Inside `unfailing`, characters that an encoding lacks are spelt out in ASCII, and what cannot be
written at all is dropped.

Consoles here print text without markup, so that a path such as `m[x]` appears as it is.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from rich.console import Console
from rich.text import Text

_SPELT = {
    "ε": "epsilon", "δ": "delta", "σ": "sigma", "μ": "mu", "γ": "gamma", "ρ": "rho", "κ": "kappa", "∞": "inf",
    "≤": "<=", "≥": ">=", "×": "x", "·": "*", "–": "-", "—": "-", "…": "...", "±": "+-", "√": "sqrt", "→": "->",
    "’": "'", "“": '"', "”": '"', "•": "*", "−": "-", "━": "-", "╸": "-", "╺": "-", "─": "-", "│": "|", "é": "e",
}  # fmt: skip


def _spell(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks by a word if there is one, or by their code."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wanted = error.object[error.start : error.end]
    return "".join(_SPELT.get(c, c.encode("ascii", "backslashreplace").decode()) for c in wanted), error.end


codecs.register_error("assay.spell", _spell)


class _Unfailing:
    """A text stream whose `write` and `flush` never raise; everything else is the stream's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding or "ascii"
                self._stream.write(text.encode(encoding, "assay.spell").decode(encoding))
        except (OSError, ValueError):  # nobody reads it any more, or it was closed
            self._give_up()
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def _give_up(self) -> None:
        """Send what is still in the stream's buffer nowhere: otherwise the interpreter would fail on it at its end."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nowhere, self._stream.fileno())
            finally:
                os.close(nowhere)


@contextlib.contextmanager
def unfailing() -> Iterator[None]:
    """Let no output fail inside this context."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (None if s is None else cast(TextIO, _Unfailing(s)) for s in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before


def console(*, stderr: bool = False, wrap: bool = False) -> Console:
    """A console that prints text as it is; lines stay whole unless they are to `wrap`."""
    return Console(stderr=stderr, soft_wrap=not wrap, highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    """A line on standard error."""
    console(stderr=True).print(text)


def note(text: str) -> None:
    """A remark on standard error."""
    console(stderr=True).print(Text.assemble(("note:", "yellow"), " ", text))


def fail(text: str) -> None:
    """An error on standard error."""
    console(stderr=True).print(Text.assemble(("error:", "bold red"), " ", text))


def note_delta(delta: float, units: int) -> None:
    """Say it where δ is too large for this number of records or clients."""
    from assay.runs.statement import large_delta

    if (said := large_delta(delta, units)) is not None:
        note(said)
