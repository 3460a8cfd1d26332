"""A site that makes bytes of bytes, so that what carries them can be tested alone.

For a run's settings, the site of that run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.federated import client as site
from assay.federated.client import Site

SALT = "a setting that reaches the site"


@dataclass(frozen=True)
class ToySite:
    salt: str
    failing: tuple[int, ...] = ()

    def answer(self, client: int, task: bytes) -> bytes:
        if client in self.failing:
            raise RuntimeError("a text that must not leave the node")
        return hashlib.sha256(f"{self.salt} {client} ".encode() + task).digest() + task[::-1]


def open_site(settings: Mapping[str, Any]) -> ToySite | Site:
    if "plan" in settings:
        return site.open_site(settings)
    return ToySite(settings["salt"], tuple(settings.get("failing", ())))


def serially(tasks: Mapping[int, bytes], failing: tuple[int, ...] = ()) -> dict[int, bytes]:
    """What the same site answers in this process."""
    site = ToySite(SALT)
    return {client: site.answer(client, task) for client, task in tasks.items() if client not in failing}
