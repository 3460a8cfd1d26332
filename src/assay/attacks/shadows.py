"""Shadow models of a run of the command line: its own procedure, noise included, on other records.

The attacker knows the run's description (`run.json`) and has records of the same population, usually fewer. So that a shadow is
trained as long as the target was, a centralised one draws batches at the same rate for as many steps, and a client of a federated one takes as
many steps in a turn as the run's clients take on average.
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
from assay.training.loop import train_again
from assay.training.settings import training_from_json

Build = Callable[[int], nn.Module]
"""A new model of the run's architecture, from a seed."""


def centralised(spec: Mapping[str, Any], build: Build, seed: int) -> Train:
    """As `assay train` did."""
    plan, seeds = Plan.from_json(spec["plan"]), itertools.count(seed)

    def train(records: TensorDataset) -> nn.Module:
        own = next(seeds)
        size = len(records) if plan.sampling.whole else max(1.0, plan.batch_size * len(records) / plan.records)
        smaller = replace(plan, records=len(records), batch_size=size, epsilon_limit=None, exact=False)
        training = training_from_json({**spec["training"], "seed": own, "secure_rng": False})
        used = training.at_batch(plan.batch_size)  # what the run itself used, at the smaller batch too
        return train_again(build(own), records, plan=smaller, training=used)

    return train


def federated(spec: Mapping[str, Any], build: Build, seed: int) -> Train:
    """As `assay federate` did, its partition included; all clients in this process."""
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
        own = next(seeds)
        training = replace(known, steps=each, seed=own, secure_rng=False, keep_models=0)
        model = build(own)
        site = Site(smaller, training, copy.deepcopy(model), held)
        return federate(model, Serial(site), plan=smaller, training=training, names={**names, "sizes": None}).model

    return train


MAKERS: Mapping[str, Callable[[Mapping[str, Any], Build, int], Train]] = {
    "central": centralised,
    "federated": federated,
}
"""How shadow models are trained, by the kind of the run (`assay.federated.kinds`)."""
