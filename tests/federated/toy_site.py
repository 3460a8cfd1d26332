"""A site that computes bytes from bytes, so that what carries them can be tested alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToySite:
    salt: str
    failing: tuple[int, ...]

    def answer(self, client: int, task: bytes) -> bytes:
        if client in self.failing:
            raise RuntimeError("this client always fails")
        return hashlib.sha256(f"{self.salt} {client} ".encode() + task).digest() + task[::-1]


def open_site(settings: Mapping[str, Any]) -> ToySite:
    return ToySite(settings["salt"], tuple(settings.get("failing", ())))
