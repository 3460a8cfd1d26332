"""Which ledger holds a reservation: a budget notes the last line of every run's ledger beside its own file.

**What it is for.** A run's folder can be copied. Two copies that are resumed would each charge a ledger of their own
within one reservation, and together release twice what the budget counted. So the folder of a budget has a file for
each run on disk, `runs/TOKEN.jsonl`, with the digest of every line that the run's ledger was given.

**What is guaranteed.** A line is written to a ledger only while the last note is the one that this ledger knows, and is
noted before anything is released on it. Whoever takes up a reservation must have the line of the last note in its
ledger. So all lines on which something was released are in one ledger, the one that may go on: a copy that lacks one of
them, or that another copy has overtaken, may charge nothing. A process that is killed between the line and its note
leaves a ledger that says more than the note, which is safe.

The files are chained, and signed with the budget's key, as `budget.jsonl` is (`assay._util.journal`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from assay._util import journal
from assay._util.signatures import PrivateKey, PublicKey
from assay.accounting.ledger import Ledger, LedgerError

_HEAD = "head"


class Mark:
    """The notes about one run's ledger.

    Args:
        path: Their file.
        key: Signs them, for a budget that is signed.
        public: With which they must be signed; None for a budget that is not.
    """

    def __init__(self, path: Path, key: PrivateKey | None = None, public: PublicKey | None = None) -> None:
        self._path, self._key, self._public = path, key, public
        self._known = ""

    @property
    def exists(self) -> bool:
        """Whether the budget keeps notes about the run."""
        return self._path.exists()

    def create(self) -> None:
        """Begin the notes, if there are none; durable when this returns."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        with journal.alone(self._path, create=True):
            pass

    def check(self, heads: Sequence[str]) -> None:
        """Refuse a ledger that lacks the line that was noted last.

        Args:
            heads: The digests of its lines.

        Raises:
            LedgerError: It is a copy that another one has overtaken, or lines of it are missing.
            JournalError: The notes are damaged, or not signed with the budget's key.
        """
        file = journal.read(self._path)
        if self._public is not None and journal.unsigned(file, self._public):
            raise journal.JournalError(f"{self._path} is damaged: it is not signed with the budget's key")
        if (last := _last_of(file)) and last not in heads:
            raise LedgerError(
                "this run was continued elsewhere, or a part of its ledger is missing: the budget noted a charge that "
                "the ledger here does not have. A copy of a run's folder cannot be resumed beside the original; resume "
                "that one, or begin a new run"
            )
        self._known = last

    def bind(self, ledger: Ledger, heads: Sequence[str]) -> None:
        """Have a ledger note every line from now on.

        Args:
            ledger: Locked, or in memory; the latter has no lines.
            heads: The digests of lines of which the last note must be one.

        Raises:
            LedgerError: As `check`.
        """
        self.check(heads)
        ledger.witness = self

    @contextmanager
    def noting(self, head: str, lines: int) -> Iterator[None]:  # noqa: ARG002
        """Inside, the line of this digest is written to the ledger; it is noted when this ends.

        Raises:
            LedgerError: Another copy of the run has charged meanwhile.
        """
        with journal.alone(self._path) as file:
            if _last_of(file) != self._known:
                raise LedgerError(
                    "another copy of this run has charged the same reservation of its budget. No further step is taken"
                )
            yield
            file.append({_HEAD: head}, self._key)
            self._known = head


def _last_of(file: journal.Journal) -> str:
    return str(file.lines[-1][_HEAD]) if file.lines else ""
