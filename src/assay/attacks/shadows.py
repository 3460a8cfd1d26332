"""Shadow models of a run: trained as the run was, noise included, on other records.

The attacker knows the run's description (`run.json`) and has records of the same population, usually fewer. A shadow is
trained as long as the target was. A central one draws batches at the same rate for as many steps. In a federated one,
each client takes as many steps in a turn as the run's clients take on average.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay.attacks.setting import Train
from assay.errors import ConfigError
from assay.federated import partition
from assay.federated.client import Site
from assay.federated.local import Training
from assay.federated.plan import FederatedPlan
from assay.federated.server import federate
from assay.federated.transport.serial import Serial
from assay.methods.plan import Plan
from assay.runs.schema import CENTRAL, FEDERATED
from assay.training.loop import train_again
from assay.training.settings import training_from_json

Build = Callable[[int], nn.Module]
"""A new model of the run's architecture, from a seed."""


def central(spec: Mapping[str, Any], build: Build, seed: int) -> Train:
    """Trains as `assay train` did."""
    plan, seeds = Plan.from_json(spec["plan"]), itertools.count(seed)

    def train(records: TensorDataset) -> nn.Module:
        next_seed = next(seeds)
        size = len(records) if plan.sampling.whole else max(1.0, plan.batch_size * len(records) / plan.records)
        smaller = replace(plan, records=len(records), batch_size=size, epsilon_limit=None, exact=False)
        training = training_from_json({**spec["training"], "seed": next_seed, "secure_rng": False})
        used = training.at_batch(plan.batch_size)  # what the run itself used, also for the smaller batch
        return train_again(build(next_seed), records, plan=smaller, training=used)

    return train


def federated(spec: Mapping[str, Any], build: Build, seed: int) -> Train:
    """Trains as `assay federate` did, with its partition; all clients are in this process."""
    plan, names, seeds = FederatedPlan.from_json(spec["plan"]), spec["names"], itertools.count(seed)
    known = Training(**spec["training"])
    each = known.steps or max(1, round(known.epochs * names["records"] / plan.clients / known.batch_size))

    def train(records: TensorDataset) -> nn.Module:
        x, y = records.tensors
        if len(x) < plan.clients:
            raise ConfigError("records", len(x), f"at least one for each of the run's {plan.clients} clients")
        parts = partition.parse(names["partition"]).divide(y.numpy(), plan.clients, names["partition_seed"])
        held = [(x[part], y[part]) for part in map(torch.from_numpy, parts)]
        sizes = [len(part) for part in parts if len(part)]
        silo = None if plan.silo is None else replace(plan.silo, records=min(sizes))
        smaller = replace(plan, silo=silo, epsilon_limit=None)
        next_seed = next(seeds)
        training = replace(known, steps=each, seed=next_seed, secure_rng=False, keep_models=0)
        model = build(next_seed)
        site = Site(smaller, training, copy.deepcopy(model), held)
        return federate(model, Serial(site), plan=smaller, training=training, names={**names, "sizes": None}).model

    return train


MAKERS: Mapping[str, Callable[[Mapping[str, Any], Build, int], Train]] = {
    CENTRAL: central,
    FEDERATED: federated,
}
"""How shadow models are trained, by the kind of the run."""
