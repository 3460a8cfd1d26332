"""A federation small enough to look at: a linear model with a counter, a few clients with random records."""

import json

import torch
from torch import nn

from assay.federated import methods, wire
from assay.federated.client import Site
from assay.federated.layout import Layout
from assay.federated.local import Training
from assay.federated.plan import FederatedPlan
from assay.federated.server import federate
from assay.federated.transport.serial import Serial

NAMES = {
    "model": "tiny",
    "circulant": None,
    "data": "random",
    "data_dir": None,
    "records": 60,
    "unit": "one record",
    "notes": "",
    "partition": "iid",
    "partition_seed": 0,
}


class Counting(nn.Module):
    """A linear layer; a float buffer and a whole-number buffer beside it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("seen", torch.tensor(0, dtype=torch.int64))
        self.register_buffer("shift", torch.zeros(2))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.linear(x) + self.shift.sum()


def model(seed=0):
    torch.manual_seed(seed)
    return Counting()


def records(clients, each=10, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [(torch.randn(each, 4, generator=rng), torch.randint(3, (each,), generator=rng)) for _ in range(clients)]


def plan(method="fedavg", options=None, **settings):
    known = {
        "clients": 6,
        "per_round": 3,
        "rounds": 4,
        "size": Layout.of(model()).size,
        "noise_multiplier": 1.0,
        "delta": 1e-2,
    }
    return FederatedPlan(method=methods.get(method, **(options or {})), **{**known, **settings})


def site(a_plan, training, held=None, **kwargs):
    return Site(a_plan, training, model(), held or records(a_plan.clients), **kwargs)


def run(a_plan, training, carrier=None, directory=None, callbacks=(), **kwargs):
    carrier = carrier or Serial(site(a_plan, training, **kwargs))
    return federate(
        model(), carrier, plan=a_plan, training=training, names=NAMES, directory=directory, callbacks=callbacks
    )


def seeded(**settings):
    return Training(**{"seed": 5, "batch_size": 4, "lr": 0.2, **settings})


def directory(path, a_plan, training):
    from assay.federated.server import run_spec
    from assay.runs.directory import RunDirectory

    return RunDirectory.create(path, run_spec(a_plan, training, NAMES, "serial", {}))


def kind_of(data):
    """The kind of a message, read from its header."""
    start = len(wire.MAGIC) + 4
    length = int.from_bytes(data[len(wire.MAGIC) : start], "little")
    return json.loads(data[start : start + length])["kind"]
