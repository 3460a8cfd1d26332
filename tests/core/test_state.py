"""State: no exception, copy, fork or second loop makes a step use its noise twice, or leave a charge out."""

import copy
import math
import os
import pickle
import signal
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from assay import Adjacency, Plan, PrivateStep
from assay.accounting.ledger import Ledger, LedgerError
from assay.data.sampling import FullBatch
from assay.errors import AssayError, UnsupportedModelError
from assay.gradients.clipping import Flat
from assay.randomness.streams import Blocks, OsSeeded, Secure, Seeded

SIZE = 90  # Linear(90, 90) has 8190 numbers: a block of noise lasts for 8 steps
DATA = TensorDataset(torch.zeros(40, SIZE))
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def plan_of(steps: int, **more) -> Plan:
    return Plan(records=40, batch_size=40, steps=steps, noise_multiplier=1.0, delta=1e-3, sampling=FullBatch, **more)


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(SIZE, SIZE)


def noise(step: PrivateStep, model: nn.Linear, batches) -> torch.Tensor | None:
    """What one step releases where no record has a gradient: its noise. None at the end."""
    for (x,) in batches:
        if step.backward(0 * model(x).sum(1)):
            return model.weight.grad[0].clone()
    return None


def some_twice(released: list[torch.Tensor]) -> bool:
    return len({tuple(values.tolist()) for values in released}) < len(released)


class FailsOnce(OsSeeded):
    """A source whose third draw of normal numbers fails, as an allocation may."""

    __slots__ = ("drawn",)

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0

    def stream(self, purpose: str, step: int):
        return _Failing(super().stream(purpose, step), self)


class _Failing:
    def __init__(self, rest, source: FailsOnce) -> None:
        self._rest, self._source = rest, source

    def __getattr__(self, name: str):
        return getattr(self._rest, name)

    def normal(self, shape, *, dtype, device):
        self._source.drawn += 1
        if self._source.drawn == 3:
            raise MemoryError
        return self._rest.normal(shape, dtype=dtype, device=device)


def test_numbers_are_the_same_after_a_draw_that_failed():
    source = FailsOnce()
    blocks, again = Blocks(source, "noise"), Blocks(source, "noise")
    seen = []
    for step in range(40):
        asked = ((8190,), {"dtype": torch.float32, "device": "cpu"})
        try:
            seen.append(blocks.at(step).normal(*asked[0:1], **asked[1]).clone())
        except MemoryError:
            seen.append(blocks.at(step).normal(*asked[0:1], **asked[1]).clone())
    assert source.drawn > 3
    assert not some_twice(seen)
    for step, numbers in enumerate(seen):
        assert torch.equal(numbers, again.at(step).normal((8190,), dtype=torch.float32, device="cpu"))


def test_a_step_that_failed_in_the_middle_is_refused_and_a_new_one_goes_on():
    model, plan = layer(), plan_of(40)
    step = PrivateStep(model, plan, randomness=FailsOnce())
    batches = step.batches(DATA)
    released = [noise(step, model, batches) for _ in range(16)]
    with pytest.raises(MemoryError):
        noise(step, model, batches)
    for refused in (lambda: next(step.batches(DATA)), lambda: step.backward(0 * model(DATA[:][0]).sum(1))):
        with pytest.raises(AssayError, match="make a new one on the same ledger"):
            refused()
    step.close()
    assert step.taken == step.ledger.total_steps == len(released) + 1, "the step that failed stays charged"
    new = PrivateStep(model, plan, ledger=step.ledger, taken=step.taken)
    batches = new.batches(DATA)
    while (values := noise(new, model, batches)) is not None:
        released.append(values)
    new.close()
    assert len(released) == 39
    assert not some_twice(released)
    assert new.ledger.total_steps == 40


def test_a_batch_whose_part_failed_is_not_gone_on_with():
    """Some parts are in the sum, and nobody knows whether this one is."""
    plan = plan_of(3, clip=Flat(bound=1.0))
    model, records = nn.Linear(40, 1, bias=False), TensorDataset(torch.eye(40))
    step = PrivateStep(model, plan, max_physical_batch=10)
    batches = step.batches(records)
    step.backward(model(next(batches)[0])[:, 0])
    (x,) = next(batches)
    losses = model(x)[:, 0].square()
    losses.sum().backward()  # and with it the graph is gone
    with pytest.raises(RuntimeError, match="second time"):
        step.backward(losses)
    with pytest.raises(AssayError, match="in the middle"):
        next(batches)


def test_a_refusal_before_anything_is_computed_costs_nothing():
    model = layer()
    step = PrivateStep(model, plan_of(3))
    batches = step.batches(DATA)
    (x,) = next(batches)
    for wrong in (model(x).sum(), model(x).sum(1).detach(), model(x[:5]).sum(1)):
        with pytest.raises(AssayError):
            step.backward(wrong)
    assert step.backward(model(x).sum(1))
    assert noise(step, model, batches) is not None


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT as POSIX has it")
def test_real_interrupts_never_lead_to_the_same_noise_twice():
    """Ctrl-C thirty times at random moments, by somebody whose loop goes on."""
    model, plan, released = layer(), plan_of(100_000), []
    step, pressed, armed, done = PrivateStep(model, plan), 0, False, threading.Event()

    def interrupt(*_) -> None:
        nonlocal armed, pressed
        if armed:
            armed, pressed = False, pressed + 1
            raise KeyboardInterrupt

    def press() -> None:
        for pause in Seeded(1).stream("pauses", 0).uniform(30).tolist():
            if not done.wait(0.06 * pause):
                os.kill(os.getpid(), signal.SIGINT)

    before, keys = signal.signal(signal.SIGINT, interrupt), threading.Thread(target=press)
    keys.start()
    try:
        while keys.is_alive() or not released:
            try:
                armed = True
                batches = step.batches(DATA, 20)
                while (values := noise(step, model, batches)) is not None:
                    released.append(values)
            except KeyboardInterrupt:
                pass
            except AssayError:  # it was in the middle of a step
                armed = False
                step.close()
                step = PrivateStep(model, plan, ledger=step.ledger, taken=step.taken)
            armed = False
    finally:
        done.set()
        keys.join()
        signal.signal(signal.SIGINT, before)
    assert pressed > 3
    assert len(released) <= step.taken <= step.ledger.total_steps
    assert not some_twice(released)


@pytest.mark.parametrize("make", [OsSeeded, Secure])
def test_one_source_gives_two_steps_noise_and_batches_of_their_own(make):
    source = make()
    seen = []
    for _ in range(2):
        model = nn.Linear(4, 3)
        step = PrivateStep(
            model, Plan(records=60, batch_size=30, steps=1, noise_multiplier=1.0, delta=1e-3), randomness=source
        )
        for x, y in step.batches(TensorDataset(torch.zeros(60, 4), torch.arange(60))):
            step.backward(0 * model(x).sum(1))
            seen.append((model.weight.grad.clone(), y.tolist()))
        step.close()
    (one, first), (other, second) = seen
    assert not torch.isin(one, other).any()
    assert first != second, "equal with probability below 2**-50"


def in_child(work) -> bytes:
    """What `work` returns in a forked process; the error's name where it fails."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}".encode()
        os.write(writing, answer[:4000])
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as file:
        return file.read()


@forks
@pytest.mark.parametrize("make", [OsSeeded, Secure])
def test_a_forked_process_draws_other_numbers_from_the_same_source(make):
    source = make()

    def drawn() -> bytes:
        return bytes(source.stream("noise", 0).integers(256, 32).tolist())

    assert len({in_child(drawn), in_child(drawn), drawn()}) == 3
    stream = source.stream("noise", 1)
    assert b"fork" in in_child(lambda: bytes(stream.integers(256, 32).tolist()))
    assert len(stream.integers(256, 32)) == 32


@forks
def test_a_forked_process_takes_no_step_of_its_parent(tmp_path):
    model, plan = layer(), plan_of(20)
    step = PrivateStep(model, plan, ledger=tmp_path / "ledger.jsonl")
    batches = step.batches(DATA)
    first = noise(step, model, batches)
    (x,) = next(batches)
    losses = model(x).sum(1)
    segment = step.ledger.begin(plan.event, 20)
    for attempt in (
        lambda: step.backward(losses),
        lambda: next(batches),
        lambda: next(step.batches(DATA)),
        lambda: step.ledger.begin(plan.event, 20).charge(1),
        lambda: step.ledger.pay(plan.event()),
        lambda: segment.charge(1),
    ):
        assert b"fork" in in_child(attempt)
    assert in_child(lambda: step.close() or b"closed") == b"closed"
    assert step.backward(losses)
    assert not torch.equal(first, model.weight.grad[0])
    step.close()


@forks
def test_only_the_process_that_locked_a_ledger_has_it(tmp_path):
    """A child must not keep the file from others, nor charge it beside its parent."""
    path = tmp_path / "ledger.jsonl"

    def book() -> Ledger:
        return Ledger(path, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE, ceiling=None)

    first = book()
    first.lock()
    assert b"in use" in in_child(lambda: book().lock() or b"claimed")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # lives on, as a worker does
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        first.close()
        second = book()
        second.lock()
        with pytest.raises(LedgerError, match="in use"):
            book().lock()
        second.close()
    finally:
        os.close(reading)
        os.close(writing)
        os.waitpid(child, 0)


@forks
def test_forked_loaders_of_records_go_on_working():
    step = PrivateStep(layer(), plan_of(2))
    loader = DataLoader(DATA, batch_size=10, num_workers=1, multiprocessing_context="fork")
    assert sum(len(x) for (x,) in loader) == 40
    step.close()


@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy, pickle.dumps])
def test_nothing_that_draws_or_charges_can_be_copied(attempt):
    model, plan = layer(), plan_of(3)
    step = PrivateStep(model, plan)
    ledger = step.ledger
    source = Secure()
    for one in (step, ledger, ledger.begin(plan.event, 3), Blocks(source, "noise"), source.stream("noise", 0)):
        with pytest.raises(TypeError, match="cannot be copied"):
            attempt(one)
    copied = copy.deepcopy(model)  # the model itself can be: averages of weights are made so
    assert torch.equal(copied(DATA[:][0]), model(DATA[:][0]))
    step.close()


@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 1)])
def test_of_two_loops_over_one_step_the_newer_goes_on(order):
    """With parts of batches, each would count its parts in the other's sum."""
    plan = plan_of(3, clip=Flat(bound=1.0))
    model, records = nn.Linear(40, 1, bias=False), TensorDataset(torch.eye(40))
    step = PrivateStep(model, plan, max_physical_batch=10, randomness=Seeded(0))
    loops = [step.batches(records), step.batches(records)]
    for which in order[:2]:
        (x,) = next(loops[which])
        assert not step.backward(model(x)[:, 0])
    with pytest.raises(AssayError, match="another loop"):
        next(loops[order[2]])
    for (x,) in loops[order[1]]:
        if step.backward(model(x)[:, 0]):
            break
    spread = plan.noise_multiplier * plan.clip.l2
    assert float((model.weight.grad * 40 - 1).abs().max()) < 6 * spread
    assert step.taken == 1


class Drawing(nn.Module):
    """Keeps what it drew."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.linear, self.seed, self.drawn = nn.Linear(4, 3), seed, []

    def forward(self, x):
        if self.seed is not None:
            torch.manual_seed(self.seed)
        mask = torch.rand(len(x), 1)
        if torch.is_grad_enabled():
            self.drawn.append(tuple(mask[:5, 0].tolist()))
        return self.linear(x) * (mask > 0.5)


def masks(records, how, randomness=None, steps: int = 3) -> list[tuple[float, ...]]:
    plan = Plan(records=len(records), batch_size=20, steps=steps, noise_multiplier=1.0, delta=1e-3)
    model = Drawing()
    step = PrivateStep(model, plan, randomness=randomness)
    for x, y in step.batches(records):
        step.backward(F.cross_entropy(how(model, x), y, reduction="none"))
    step.close()
    return model.drawn


def seeds_first(model, x):
    torch.manual_seed(0)
    return model(x)


def old_state(model, x):
    torch.set_rng_state(torch.Generator().manual_seed(3).get_state())
    return model(x)


def twice(model, x):
    torch.manual_seed(0)
    model(x)
    torch.manual_seed(0)
    return model(x)


@pytest.mark.parametrize("how", [seeds_first, old_state, twice])
def test_masks_are_secret_whatever_seeds_a_loop_sets(records, how):
    seen = masks(records, how) + masks(records, how)
    assert len(set(seen)) == len(seen)
    for seed in (0, 3):
        torch.manual_seed(seed)
        assert tuple(torch.rand(5).tolist()) not in seen


def test_a_seeded_run_draws_the_masks_of_its_seed(records):
    assert masks(records, seeds_first, Seeded(1)) == masks(records, seeds_first, Seeded(1))
    assert len(set(masks(records, seeds_first, Seeded(1)))) == 1


def test_masks_that_the_model_or_the_loop_makes_known_are_refused(records, plan):
    model = Drawing(seed=0)
    step = PrivateStep(model, plan)
    x, _ = next(step.batches(records))
    with pytest.raises(UnsupportedModelError, match="seeds torch's generators"):
        model(x)
    step.close()
    model = Drawing()
    step = PrivateStep(model, plan)
    x, y = next(step.batches(records))
    losses = F.cross_entropy(model(x), y, reduction="none")
    torch.manual_seed(0)
    with pytest.raises(AssayError, match="between model"):
        step.backward(losses)
    assert step.backward(F.cross_entropy(model(x), y, reduction="none")), "nothing was computed, so it goes on"


def test_activation_checkpointing_draws_the_same_masks_again(records, plan):
    """The recomputed pass must be the one that the losses came from."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    quiet = Plan(
        records=120, batch_size=120, steps=4, noise_multiplier=0.0, delta=1e-3, sampling=FullBatch, clip=Flat(bound=1e6)
    )
    step = PrivateStep(model, quiet)
    for x, y in step.batches(records):
        masks = torch.get_rng_state()
        losses = F.cross_entropy(checkpoint(model, x, use_reentrant=False), y, reduction="none")
        step.backward(losses)
        got = model[2].weight.grad.clone()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(masks)
            hidden = model[1](F.linear(x, model[0].weight, model[0].bias))
            expected = torch.autograd.grad(
                F.cross_entropy(F.linear(hidden, model[2].weight, model[2].bias), y), model[2].weight
            )[0]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    step.close()
    assert math.isfinite(float(got.norm()))
