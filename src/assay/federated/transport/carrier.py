"""What carries bytes between the server and the clients. Carriers know nothing of learning or of privacy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol


class Carrier(Protocol):
    """Hands tasks to clients and brings their answers back."""

    def exchange(self, tasks: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """Hand each client its task; yield answers (client, bytes) as they come.

        A client that drops out yields nothing. One may answer twice or with rubbish: the server checks. The carrier
        must know whose answer it is: authentication is its task.
        """
        ...

    def close(self) -> None:
        """Let go of processes and connections."""
        ...
