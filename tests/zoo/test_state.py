"""Bugs of state: something that must exist once is used twice.

Each is shown by what it releases; its twin releases nothing of the kind.
"""

import contextlib
import copy
import os

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from assay import Plan, PrivateStep
from assay.data.sampling import FullBatch
from assay.errors import AssayError
from assay.gradients.clipping import Flat
from assay.randomness.streams import Blocks, OsSeeded

from . import mutants

DATA = TensorDataset(torch.eye(40))
PLAN = Plan(
    records=40, batch_size=40, steps=30, noise_multiplier=1.0, delta=1e-3, sampling=FullBatch, clip=Flat(bound=1.0)
)
NUMBERS = {"dtype": torch.float32, "device": "cpu"}


class FailsOnce(OsSeeded):
    """A source whose second draw of normal numbers fails."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        super().__init__()
        self.left = 2

    def stream(self, purpose: str, step: int):
        rest = super().stream(purpose, step)
        return _Failing(rest, self) if purpose.endswith("numbers, torch.float32, cpu") else rest


class _Failing:
    def __init__(self, rest, source: FailsOnce) -> None:
        self._rest, self._source = rest, source

    def normal(self, shape, **form):
        self._source.left -= 1
        if self._source.left == 0:
            raise MemoryError
        return self._rest.normal(shape, **form)


def repeats(values: list[torch.Tensor]) -> bool:
    """Whether two releases had the same noise: their difference has none at all."""
    return len({tuple(v.flatten().tolist()) for v in values}) < len(values)


def weight() -> nn.Linear:
    return nn.Linear(40, 1, bias=False)


def taken(step: PrivateStep, model: nn.Linear, count: int = 1) -> list[torch.Tensor]:
    """What steps release where no record has a gradient."""
    released = []
    for (x,) in step.batches(DATA, count):
        if step.backward(0 * model(x)[:, 0]):
            released.append(model.weight.grad.clone())
    return released


@pytest.mark.parametrize(("blocks", "bug"), [(mutants.AdvancesFirst, True), (Blocks, False)], ids=["bug", "twin"])
def test_noise_that_is_used_again_after_a_draw_failed(blocks, bug):
    rows = blocks(FailsOnce(), "noise")
    seen = []
    for step in range(16):  # blocks of 8 rows
        with contextlib.suppress(MemoryError):
            seen.append(rows.at(step).normal((8000,), **NUMBERS).clone())
    assert repeats(seen) is bug


@pytest.mark.parametrize(
    ("kind", "bug"), [(mutants.GoesOnAfterErrors, True), (PrivateStep, False)], ids=["bug", "twin"]
)
def test_a_step_that_goes_on_after_an_exception(kind, bug):
    """A part whose backward pass failed may count already: the batch then has it twice, and another part not at all."""
    model = weight()
    step = kind(model, PLAN, max_physical_batch=20)
    batches = step.batches(DATA)
    step.backward(model(next(batches)[0])[:, 0])
    losses = model(next(batches)[0])[:, 0].square()
    losses.sum().backward()
    with pytest.raises(RuntimeError):
        step.backward(losses)
    try:
        with contextlib.suppress(StopIteration):
            next(batches)
        went_on = True
    except AssayError as error:
        went_on = "in the middle" not in str(error)
    assert went_on is bug


@pytest.mark.parametrize(("make", "bug"), [(mutants.SharedSource, True), (OsSeeded, False)], ids=["bug", "twin"])
def test_one_source_in_two_steps(make, bug):
    source, released = make(), []
    for _ in range(2):
        model = weight()
        step = PrivateStep(model, PLAN, randomness=source)
        released += taken(step, model)
        step.close()
    assert repeats(released) is bug


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize(("make", "bug"), [(mutants.SameKeyAfterFork, True), (OsSeeded, False)], ids=["bug", "twin"])
def test_one_key_in_two_processes(make, bug):
    source = make()

    def drawn() -> bytes:
        return bytes(source.stream("noise", 0).integers(256, 32).tolist())

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, drawn())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 32)
    os.close(reading)
    os.close(writing)
    assert len(theirs) == 32
    assert (theirs == drawn()) is bug


@pytest.mark.parametrize(("kind", "bug"), [(mutants.Copyable, True), (PrivateStep, False)], ids=["bug", "twin"])
def test_a_copy_of_a_step(kind, bug):
    model = weight()
    step = kind(model, PLAN)
    released = taken(step, model)
    try:
        other = copy.copy(step)
    except TypeError:
        other = step
    released += taken(step, model)
    released += taken(other, model)
    assert repeats(released) is bug


@pytest.mark.parametrize(("kind", "bug"), [(mutants.ManyLoops, True), (PrivateStep, False)], ids=["bug", "twin"])
def test_two_loops_over_one_step(kind, bug):
    """The sum says how often each record counted.

    The noise is small beside that: 6 standard deviations, or 1e-7 for 40 numbers.
    """
    quiet = Plan(
        records=40, batch_size=40, steps=3, noise_multiplier=0.05, delta=1e-3, sampling=FullBatch, clip=Flat(bound=1.0)
    )
    model = weight()
    step = kind(model, quiet, max_physical_batch=14)  # three parts
    loops = [step.batches(DATA), step.batches(DATA)]
    next(loops[0])
    step.backward(model(next(loops[1])[0])[:, 0])
    done = False
    while not done:
        for loop in tuple(loops):
            try:
                (x,) = next(loop)
            except AssayError:  # of the older one
                loops.remove(loop)
                continue
            if done := step.backward(model(x)[:, 0]):
                break
    counted = (model.weight.grad * 40).round()
    assert bool((counted == 1).all()) is not bug


@pytest.mark.parametrize(("kind", "bug"), [(mutants.SeedsOnce, True), (PrivateStep, False)], ids=["bug", "twin"])
def test_masks_that_the_script_fixes(kind, bug):
    """A record in front of another moves that one's mask: known masks show it."""
    model = nn.Sequential(nn.Dropout(0.5), weight())
    step = kind(model, PLAN)
    seen = []
    for (x,) in step.batches(DATA, 2):
        torch.manual_seed(0)
        out = model(x)
        seen.append((out != 0).tolist())
        step.backward(out[:, 0])
    step.close()
    torch.manual_seed(0)
    known = (model(DATA[:][0]) != 0).tolist()
    assert (known in seen) is bug
