"""All clients in this process, one after another: the default, and the reference for other carriers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.federated.client import Site, open_site
from assay.federated.transport import Reach


class Serial:
    """A carrier over one site."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def exchange(self, tasks: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """Each client's answer, in order."""
        for client, task in tasks.items():
            yield client, self.site.answer(client, task)

    def close(self) -> None:
        """Nothing to let go of."""


def check(reach: Reach) -> None:
    """There is nothing to reach."""


def open_carrier(settings: Mapping[str, Any], directory: Path, reach: Reach) -> Serial:  # noqa: ARG001
    """A carrier over a site in this process."""
    return Serial(open_site(settings))
