"""What stands between the server's rounds and its clients: bytes out, bytes back, and nothing promised about who answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol


class Carrier(Protocol):
    """Carries one round's tasks to clients and brings their answers. Knows nothing of models or privacy."""

    def exchange(self, tasks: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """Hand each client its task; yield answers (client, bytes) as they come. A client that drops out yields nothing; one may answer twice or with rubbish."""

    def close(self) -> None:
        """Stop whatever was started for the exchanges. Safe to call more than once."""
