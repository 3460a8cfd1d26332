"""A site that makes bytes of bytes, so that what carries them can be tested alone."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SALT = "a setting that reaches the site"


@dataclass(frozen=True)
class ToySite:
    salt: str
    failing: tuple[int, ...] = ()
    began: Path | None = None  # where a task that says "sleep" leaves word that it has begun

    def answer(self, client: int, task: bytes) -> bytes:
        if client in self.failing:
            raise RuntimeError("a text that must not leave the node")
        if task == b"sleep" and self.began is not None:
            (self.began / str(client)).touch()
            time.sleep(300)
        return hashlib.sha256(f"{self.salt} {client} ".encode() + task).digest() + task[::-1]


def open_site(settings: Mapping[str, Any]) -> ToySite:
    began = settings.get("began")
    return ToySite(settings["salt"], tuple(settings.get("failing", ())), None if began is None else Path(began))


def serially(tasks: Mapping[int, bytes], failing: tuple[int, ...] = ()) -> dict[int, bytes]:
    """What the same site answers in this process."""
    site = ToySite(SALT)
    return {client: site.answer(client, task) for client, task in tasks.items() if client not in failing}
