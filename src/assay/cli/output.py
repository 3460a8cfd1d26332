"""What commands print: consoles, standard output and error that cannot fail a command, and the outcome of a run.

A run that has spent its budget must not end because a terminal has no Greek letters, or because nobody reads its
progress any more. Inside `unfailing`, characters that an encoding lacks are spelt out in ASCII, and what cannot be
written at all is dropped.

Consoles here print text without markup, so that a path such as `m[x]` appears as it is.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.text import Text

from assay.errors import BudgetSpentError

if TYPE_CHECKING:
    from assay.distributed.world import World
    from assay.runs.result import Result
    from assay.training.options import Settings

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


def _between_words(text: str, out: Console, indent: str) -> str:
    """A line as a terminal shows it without cutting words; elsewhere, and of several lines, as it is."""
    if not out.is_terminal or "\n" in text:
        return text
    width = max(40, out.width - 1)
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def say(text: str) -> None:
    """A line on standard error."""
    console(stderr=True).print(text)


def note(text: str) -> None:
    """A remark on standard error."""
    _prefixed("note:", "yellow", text)


def fail(text: str) -> None:
    """An error on standard error."""
    _prefixed("error:", "bold red", text)


def _prefixed(what: str, style: str, text: str) -> None:
    out = console(stderr=True)
    words = _between_words(f"{what} {text}", out, " " * (len(what) + 1))
    out.print(Text.assemble((what, style), words.removeprefix(what)))


def note_delta(delta: float, units: int) -> None:
    """Say it where δ is too large for this number of records or clients."""
    from assay.runs.statement import large_delta

    if (said := large_delta(delta, units)) is not None:
        note(said)


def note_unit(settings: Settings) -> None:
    """Say of a table whose unit is a row that a person may have several."""
    if settings.target is not None and settings.unit is None:
        note("ε protects one row of the table. If a person can have several, --unit COLUMN protects all of them")


def print_json(data: Mapping[str, Any]) -> None:
    """JSON on standard output, nothing else."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def outcome(result: Result) -> None:
    """The end of a run: accuracy, the three ε, and where everything is."""
    from assay._util.figures import shown
    from assay.runs.metrics import shown as shown_figures
    from assay.runs.statement import choices, initial_weights, scored
    from assay.training.trials import in_words

    record = result.record
    eps = record["epsilon"]
    accuracy = record["result"]["test_accuracy"]
    asked = {"verified": "", "claimed": ""}
    if eps["target"]:
        asked[eps["target_is"]] = f" ({'allowed' if eps['target_is'] == 'verified' else 'asked for'} {eps['target']:g})"
    tuning = record.get("tuning") or {}
    rows = {
        f"{scored(record)} accuracy": None if accuracy is None else f"{accuracy:.2%}",
        "figures": ", ".join(f"{name} {value}" for name, value in shown_figures(record["result"]).items()) or None,
        "ε verified": f"{shown(eps['verified'])} at δ = {eps['delta']:g}{asked['verified']}",
        "ε claimed": f"{shown(eps['claimed'])}{asked['claimed']} (what the paper's accountant would report"
        f"{': it finds no finite ε' if eps['claimed'] == 'inf' else ''})",
        "steps": f"{record['steps']}" + (", the budget is spent" if result.budget_spent else ""),
        "chosen": in_words(tuning["chosen"]) if "chosen" in tuning else None,
        "settings": "; then ".join(choices(record.get("tuning"))) or None,
        "weights": initial_weights(record),
        "note": None if record["seed"] is None else "fixed seed: reproducible, not private",
    }
    out = console()
    for name, value in rows.items():
        if value is not None:
            out.print(_between_words(f"{name:<14} {value}", out, " " * 15))
    if result.directory is not None:  # paths stay whole, however narrow the terminal
        for name in ("statement", "record", "model"):
            out.print(f"{name:<14} {getattr(result.directory, name)}")


def end(
    result: Result,
    as_json: bool,
    *,
    steps: str = "steps",
    ranks: World | None = None,
    quiet: bool = False,
) -> None:
    """Print the outcome of a run or its record, and end with an error if the budget ended it early.

    With several ranks the leader prints, and none ends with an error: a launcher would take that for a failure and
    start them again.

    Args:
        result: The run's.
        as_json: Print the record.
        steps: What advances are called.
        ranks: The processes that trained, if there are several.
        quiet: Do not print the outcome.

    Raises:
        BudgetSpentError: The budget ended the run early.
    """
    if ranks is not None and not ranks.leader:
        return
    if as_json:
        print_json(result.record)
    elif not quiet:
        outcome(result)
    if result.budget_spent:
        when = f"after {result.record['steps']} {steps}, before its planned end"
        early = f"the budget ended the run {when}; its record is complete"
        if ranks is None or ranks.size == 1:
            raise BudgetSpentError(early)
        note(early)
