"""Runs on records whose gradients are zero: all that they release is noise."""

import os
import signal

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from assay import Training, fit, resume
from assay.runs.callbacks import OnStep
from assay.runs.result import InterruptedRunError


@pytest.fixture
def records() -> TensorDataset:
    return TensorDataset(torch.zeros(1000, 3), torch.zeros(1000, dtype=torch.int64))


@pytest.fixture
def take(records):
    """Steps of a private step on the records, all that are left or so many."""

    def take(step, steps=None):
        for x, y in step.batches(records, steps=steps):
            step.backward(F.cross_entropy(step.engine.model(x), y, reduction="none"))
        step.close()

    return take


@pytest.fixture
def stopped_and_resumed(records, tmp_path):
    """The result of a seeded run that was stopped at a step and resumed: the same as that of one which was not."""

    def run(plan, at):
        training = Training(seed=4)
        torch.manual_seed(0)
        whole, stopped = nn.Linear(3, 2), nn.Linear(3, 2)
        stopped.load_state_dict(whole.state_dict())
        first = fit(whole, records, plan=plan, training=training, out=tmp_path / "whole")

        def stop(now):
            if now.step == at:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(InterruptedRunError):
            fit(stopped, records, plan=plan, training=training, out=tmp_path / "stopped", callbacks=[OnStep(stop)])
        second = resume(stopped, records, tmp_path / "stopped")
        assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), stopped.parameters(), strict=True))
        assert first.epsilon == second.epsilon
        return second

    return run
