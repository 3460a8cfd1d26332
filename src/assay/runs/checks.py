"""What a verification of a run found: every check, and the ε that follows from the ledger alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay._util.signatures import PublicKey


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What it is about.
        holds: Whether all is well; None where there was nothing to compare.
        said: What was found, in words.
    """

    name: str
    holds: bool | None
    said: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What `verify` found.

    Attributes:
        run: The run's directory.
        checks: Everything that was looked at, in order.
        epsilon: ε recomputed from the ledger alone; None where the ledger cannot be read.
        delta: The δ that it is for.
        signer: The key of a signature that holds; None without one.
    """

    run: Path
    checks: tuple[Check, ...]
    epsilon: float | None
    delta: float | None
    signer: PublicKey | None

    @property
    def holds(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.holds is False)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        infinite = self.epsilon is not None and math.isinf(self.epsilon)
        return {
            "schema": "assay.verification/1",
            "run": str(self.run),
            "holds": self.holds,
            "epsilon": "inf" if infinite else self.epsilon,
            "delta": self.delta,
            "signer": None if self.signer is None else self.signer.fingerprint,
            "checks": [{"name": c.name, "holds": c.holds, "said": c.said} for c in self.checks],
        }
