"""A run that is trained again for its audit: with canaries, or many times in two worlds."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.audit import clients
from assay.audit.trained import TrainingAudit
from assay.audit.training import black_box, mislabelled, white_box
from assay.audit.worlds import trained_in_two_worlds
from assay.audit.worst_case import worst_case
from assay.errors import ConfigError
from assay.federated.client import open_site
from assay.federated.local import Training
from assay.federated.plan import FederatedPlan
from assay.federated.server import site_settings
from assay.methods.plan import Plan
from assay.training.inputs import check_classes
from assay.training.inputs import of_run as rebuilt
from assay.training.settings import training_from_json

_RECORDS_OF_A_CANARY = 20  # in a canary client that is seen by its loss


@dataclass(frozen=True, kw_only=True)
class Again:
    """How a run is trained again: with canaries, or many times in two worlds."""

    canaries: int | None
    worlds: int | None
    black_box: bool
    worst_case: bool
    seed: int | None
    data_dir: Path | None

    @property
    def coins(self) -> int:
        """The seed of coins and coordinates."""
        return secrets.randbits(62) if self.seed is None else self.seed


def chosen(
    canaries: int | None, worlds: int | None, black: bool, worst: bool, seed: int | None, data_dir: Path | None
) -> Again | None:
    """How to train again, by the options of an audit; None for the audit of one step."""
    if canaries is not None and worlds is not None:
        raise ConfigError("worlds", worlds, "--canaries or --worlds, not both")
    if black and canaries is None:
        raise ConfigError("black_box", black, "--black-box together with --canaries")
    if worst and worlds is None:
        raise ConfigError("worst_case", worst, "--worst-case together with --worlds")
    if canaries is None and worlds is None:
        return None
    return Again(canaries=canaries, worlds=worlds, black_box=black, worst_case=worst, seed=seed, data_dir=data_dir)


def train_central_again(
    spec: dict[str, Any], plan: Plan, steps: int | None, how: Again, confidence: float
) -> TrainingAudit:
    """Train a run once more with canaries, or many times in two worlds."""
    check_classes(spec)
    bundle, network = rebuilt(spec, how.data_dir, how.seed, instead="see assay.audit.training for others")
    settings: dict[str, Any] = {
        "training": training_from_json({**spec["training"], "seed": how.seed}),
        "confidence": confidence,
        "steps": steps,
        "units": bundle.train_units,
    }
    if how.worlds is not None:
        if how.worst_case:
            network, canary = worst_case(network, bundle.test, bundle.classes, seed=how.coins % 2**32)
        else:
            x, y = mislabelled(bundle.test, 1, bundle.classes).tensors
            canary = x[0], y[0]
        return trained_in_two_worlds(network, bundle.train, plan, canary, runs=how.worlds, **settings)
    assert how.canaries is not None
    if not how.black_box:
        return white_box(network, bundle.train, plan, canaries=how.canaries, seed=how.coins, **settings)
    canaries = mislabelled(bundle.test, how.canaries, bundle.classes)
    return black_box(network, bundle.train, plan, canaries, seed=how.coins, **settings)


def play_again(spec: dict[str, Any], plan: FederatedPlan, how: Again, confidence: float) -> TrainingAudit:
    """Do the same for a federated run, with all its clients in this process."""
    if how.worst_case:
        raise ConfigError("worst_case", how.worst_case, "a central run: a federated one is played as it was")
    bundle, network = rebuilt(spec, how.data_dir, how.seed, instead="see assay.audit.clients for others")
    if how.data_dir is not None:
        spec["names"] = {**spec["names"], "data_dir": str(how.data_dir)}
    spec["training"] = {**spec["training"], "seed": how.seed}
    held = open_site(site_settings(spec, None)).records
    settings: dict[str, Any] = {"training": Training(**spec["training"]), "confidence": confidence}
    if how.canaries is not None and not how.black_box:
        return clients.white_box(network, held, plan, canaries=how.canaries, seed=how.coins, **settings)
    count = 1 if how.canaries is None else how.canaries
    each = 1 if plan.unit == "record" else max(1, min(_RECORDS_OF_A_CANARY, len(bundle.test) // count))
    canaries = clients.mislabelled_clients(bundle.test, count, bundle.classes, each)
    if how.worlds is not None:
        return clients.played_in_two_worlds(network, held, plan, canaries[0], runs=how.worlds, **settings)
    return clients.black_box(network, held, plan, canaries, seed=how.coins, **settings)
