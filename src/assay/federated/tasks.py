"""Which tasks a client with a seed has answered: with one noise it answers one.

With a seed a turn has its noise for good. Two tasks about one turn would get two updates under the same noise, whose
difference is bare. So the digest of each task is kept, in a file beside the client's ledger where there is one, and it
is durable before the answer leaves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from assay._util import journal
from assay._util.journal import Journal

SUFFIX = ".tasks"


class Tasks:
    """The tasks that the clients of a site have answered.

    Args:
        folder: Where the clients' ledgers are; None keeps the digests in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._kept: dict[int, Journal] = {}

    def differ(self, client: int, turns: Iterable[tuple[str, int]], task: bytes) -> str | None:
        """Which of these turns the client has taken with another task, in words; None if it may take all of them now.

        Args:
            client: The client's number.
            turns: What its noise follows from, such as ("round", 3).
            task: What the server sent.

        Raises:
            JournalError: The file of the client is damaged.
        """
        digest = hashlib.sha256(task).hexdigest()
        with self._alone(client) as file:
            known = {(line["what"], line["which"]): line["task"] for line in file.lines}
            fresh = []
            for what, which in turns:
                if known.get((what, which), digest) != digest:
                    return f"{what} {which}"
                fresh += [] if (what, which) in known else [{"what": what, "which": which, "task": digest}]
            for line in fresh:
                if self._folder is None:
                    file.lines.append(line)
                else:
                    file.append(line)
        return None

    @contextmanager
    def _alone(self, client: int) -> Iterator[Journal]:
        if self._folder is None:
            yield self._kept.setdefault(client, Journal(Path()))
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with journal.alone(self._folder / f"client-{client}{SUFFIX}", create=True) as file:
            yield file
