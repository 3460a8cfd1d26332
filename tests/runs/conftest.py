"""A small finished run and a small unfinished one, made once; and their files with one bit flipped."""

import os
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import assay
from assay.runs.callbacks import OnStep
from assay.runs.result import InterruptedRunError
from assay.training.settings import Training


def network():
    torch.manual_seed(3)
    return nn.Linear(2, 2)


def records():
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(40, 2, generator=generator), torch.arange(40) % 2)


def plan(**changed):
    given = {"records": 40, "batch_size": 10, "steps": 8, "noise_multiplier": 2.0, "delta": 1e-3, "epsilon_limit": 9.0}
    return assay.Plan(**given | changed)


@contextmanager
def flipped(path):
    """A call that flips one bit of the file in place. To rewrite the file each time would wait for the disk."""
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        at = 0

        def flip(bit):
            nonlocal at
            os.pwrite(file.fileno(), whole[at : at + 1], at)
            at = bit // 8
            os.pwrite(file.fileno(), bytes([whole[at] ^ 1 << bit % 8]), at)

        yield flip
        os.pwrite(file.fileno(), whole[at : at + 1], at)


NAMES = {"data": "digits", "model": "logistic"}


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    assay.fit(network(), records(), plan=plan(), out=path, names=NAMES, training=Training(seed=1))
    return path


@pytest.fixture(scope="session")
def unfinished(tmp_path_factory):
    """Stopped after its first epoch, as by a scheduler."""
    path = tmp_path_factory.mktemp("unfinished") / "run"

    def stop(now):
        if now.epoch_end:
            raise InterruptedRunError("stopped")

    with pytest.raises(InterruptedRunError):
        assay.fit(network(), records(), plan=plan(), out=path, names=NAMES, callbacks=[OnStep(stop)])
    return path
