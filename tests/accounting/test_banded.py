"""Correlated noise by bands: what is charged is what the released steps tell, whoever takes part when the sampler lets
them.
"""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from assay import ConfigError, Plan, PrivateStep, methods
from assay.accounting import schedules
from assay.accounting.epsilon import gaussian_epsilon
from assay.accounting.ledger import Ledger
from assay.accounting.schedules import Banded
from assay.cli import app
from assay.data.sampling import Cyclic, FullBatch, Shuffled
from assay.mechanisms.banded import BandedGaussian
from assay.mechanisms.types import Bounded
from assay.methods import encode
from assay.randomness.streams import OsSeeded, Seeded

BANDS = st.integers(2, 12)
MOMENTUM = st.sampled_from([0.0, 0.5, 0.9])


def plan(**settings) -> Plan:
    return Plan(
        **{"records": 1000, "batch_size": 100, "steps": 40, "noise_multiplier": 2.0, "delta": 1e-5}
        | {"noise_schedule": Banded(bands=4, momentum=0.9)}
        | settings
    )


def strategy_matrix(coefficients: tuple[float, ...], steps: int) -> torch.Tensor:
    matrix = torch.zeros(steps, steps, dtype=torch.float64)
    for j, c in enumerate(coefficients[:steps]):
        matrix += torch.diag(torch.full((steps - j,), c, dtype=torch.float64), -j)
    return matrix


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_strategy_is_the_square_root_of_what_momentum_does(momentum):
    # C² = what SGD with momentum makes of its gradients, as far as the bands go
    coefficients = Banded(bands=16, momentum=momentum).strategy
    root = strategy_matrix(coefficients, 16) / coefficients[0]
    velocity = [sum(momentum**i for i in range(k + 1)) for k in range(16)]
    torch.testing.assert_close(root @ root, strategy_matrix(tuple(velocity), 16), rtol=1e-12, atol=0)


@given(bands=BANDS, momentum=MOMENTUM, steps=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_the_noise_times_the_strategy_is_white(bands, momentum, steps, seed):
    """C w = z to rounding, step by step, for whatever order the gradients come in."""
    coefficients = Banded(bands=bands, momentum=momentum).strategy
    mechanism = BandedGaussian(multiplier=3.0, strategy=coefficients)
    shapes = {"b": (2,), "a": (3, 2)}
    seen, spreads = [], []
    for t in range(steps):
        names = ["a", "b"] if t % 2 else ["b", "a"]
        zeros = {name: torch.zeros(shapes[name], dtype=torch.float64) for name in names}
        private = mechanism.release(Bounded(zeros, 0.5), Seeded(seed).stream("noise", t))
        assert private.event == dp_event.GaussianDpEvent(3.0)
        seen.append(torch.cat([private.value[name].flatten() for name in ("a", "b")]) / 1.5)
        spreads.append(private.noise_std / 1.5)
    kind = {"dtype": torch.float64, "device": torch.device("cpu")}
    fresh = torch.stack([Seeded(seed).stream("noise", t).normal((8,), **kind) for t in range(steps)])
    matrix = strategy_matrix(coefficients, steps)
    torch.testing.assert_close(matrix @ torch.stack(seen), fresh, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.tensor(spreads, dtype=torch.float64), matrix.inverse().norm(dim=1))


@given(bands=BANDS, momentum=MOMENTUM, steps=st.integers(1, 60), first=st.integers(0, 11), signs=st.integers(0, 2**60))
def test_a_record_in_every_batch_of_its_group_tells_as_much_as_was_charged(bands, momentum, steps, first, signs):
    """The whole run is one Gaussian release of C g: the distance between neighbours is at most √(times taken
    part) / σ.
    """
    matrix = strategy_matrix(Banded(bands=bands, momentum=momentum).strategy, steps)
    moved = torch.zeros(steps, dtype=torch.float64)
    for i, t in enumerate(range(first % bands, steps, bands)):
        moved[t] = 1.0 if signs >> i & 1 else -1.0
    turns = Cyclic(1000, 10, bands).compose(dp_event.GaussianDpEvent(1.0), steps).count
    assert float((matrix @ moved).norm()) <= math.sqrt(turns) * (1 + 1e-12)


def test_a_record_in_consecutive_batches_would_tell_more():
    # why the sampler must keep batches apart: four consecutive steps are charged as one, and would move C g by nearly 3
    moved = strategy_matrix(Banded(bands=4).strategy, 8) @ torch.tensor([1.0] * 4 + [0.0] * 4, dtype=torch.float64)
    assert float(moved.norm()) > 2.9


@given(bands=BANDS, seed=st.integers(0, 2**32))
def test_no_record_is_in_two_batches_of_a_cycle(bands, seed):
    sampler, randomness = Cyclic(120, 10, bands), Seeded(seed)
    batches = [set(sampler.draw(t, randomness).tolist()) for t in range(3 * bands)]
    for t in range(len(batches)):
        for s in range(t + 1, min(t + bands, len(batches))):
            assert not batches[t] & batches[s]


def test_batches_are_as_large_as_they_should_be():
    sampler, randomness = Cyclic(20_000, 1000, 8), OsSeeded()
    drawn = sum(len(sampler.draw(t, randomness)) for t in range(80))
    # Σ over records of Binomial(10, 0.4): mean 80000, standard deviation 219; 6 of those are missed by one run in 5e8
    assert drawn == pytest.approx(80_000, abs=6 * math.sqrt(20_000 * 10 * 0.4 * 0.6))


@pytest.mark.parametrize(
    ("noise", "steps", "bands", "rate", "theirs"),
    [(2.0, 200, 4, 0.4, 7.409653), (1.0, 101, 8, 0.05, 1.766702), (4.0, 50, 5, 1.0, 3.341410)],
)
def test_the_cost_is_that_of_jax_privacy(noise, steps, bands, rate, theirs):
    """`theirs`: amplified_bandmf_event of jax_privacy 2.0.0, by dp_accounting's PLD accountant with steps of 1e-4 at δ
    = 1e-5.
    """
    p = plan(
        noise_multiplier=noise,
        steps=steps,
        records=20_000,
        batch_size=20_000 * rate / bands,
        noise_schedule=Banded(bands=bands),
    )
    assert p.event() == dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), math.ceil(steps / bands)
    )
    assert p.epsilon() == pytest.approx(theirs, rel=0.01)
    if rate == 1:
        assert p.epsilon() >= gaussian_epsilon(noise / math.sqrt(10), 1e-5) * (1 - 1e-9)


def test_calibration_meets_the_target_and_the_plan_is_kept_whole():
    found = Plan.calibrated(
        epsilon=2.0, delta=1e-5, records=1000, batch_size=100, epochs=4, noise_schedule=Banded(bands=5)
    )
    assert 0.999 * 2 <= found.epsilon() <= 2
    assert Plan.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_refused_where_the_bands_would_not_hold():
    for field, settings in (
        ("noise_schedule", {"method": methods.get("lssgd")}),
        ("noise_schedule", {"sampling": Shuffled}),
        ("noise_schedule", {"sampling": FullBatch, "batch_size": 1000}),
        ("noise_schedule", {"encode": encode.parse_all(["spectral"])}),
        ("batch_size", {"batch_size": 251}),
    ):
        with pytest.raises(ConfigError, match=field):
            plan(**settings)
    for text in ("banded:bands=1", "banded:momentum=1"):
        with pytest.raises(ConfigError, match="noise_schedule"):
            schedules.parse(text)


def test_what_the_step_writes_is_the_banded_noise(records):
    # inputs are zero, so gradients are: what is written is noise, 6000 coordinates a step
    model = nn.Sequential(nn.Linear(3, 2000, bias=False), nn.Linear(2000, 2))
    model[1].requires_grad_(False)
    p = plan(steps=12)
    step = PrivateStep(model, p, randomness=Seeded(1))
    written = []
    for x, y in step.batches(records):
        assert step.backward(F.cross_entropy(model(x), y, reduction="none"))
        written.append(model[0].weight.grad.flatten().double() * 100)
    fresh = strategy_matrix(p.noise_schedule.strategy, 12) @ torch.stack(written) / (2.0 * p.clip.l2)
    # 72,000 independent standard normals: their mean square is 1 ± 6 · √(2/72000), and each correlation of two steps 0
    # ± 6/√6000; with 67 such statements a correct step fails once in 1e7 times
    assert float(fresh.square().mean()) == pytest.approx(1, abs=6 * math.sqrt(2 / fresh.numel()))
    correlation = fresh @ fresh.T / 6000
    assert float((correlation - torch.diag(correlation.diag())).abs().max()) < 6 / math.sqrt(6000)
    assert float((torch.stack(written)[0] @ torch.stack(written)[1]) / 6000) < -0.5  # taken back
    assert step.epsilon() == pytest.approx(p.epsilon())
    step.close()


def test_fresh_randomness_begins_the_bands_anew_and_is_charged_for_it(take, tmp_path):
    p = plan(steps=10)
    ledger = Ledger(tmp_path / "ledger.jsonl", delta=p.delta, adjacency=p.adjacency, ceiling=None)
    take(PrivateStep(nn.Linear(3, 2), p, ledger=ledger, randomness=OsSeeded()), steps=5)
    take(PrivateStep(nn.Linear(3, 2), p, ledger=ledger, randomness=OsSeeded(), taken=5))
    once = dp_event.PoissonSampledDpEvent(0.4, p.step_event)
    # five steps of four bands: two turns each, four in all where ten steps in one go are three
    assert ledger.event() == dp_event.ComposedDpEvent([dp_event.SelfComposedDpEvent(once, 2)] * 2)
    assert ledger.epsilon() > p.epsilon()


def test_a_seeded_run_that_was_stopped_ends_where_the_other_ends(stopped_and_resumed):
    second = stopped_and_resumed(plan(steps=20), at=13)
    assert "takes back some of the noise of the 3 steps before it" in second.statement
    assert "one of 4 groups" in second.statement


def test_from_the_command_line(tmp_path):
    given = ["--data", "digits", "--model", "logistic", "--epochs", "3", "--batch-size", "300", "--epsilon", "3"]
    given += ["--noise-schedule", "banded:bands=4,momentum=0.9", "--momentum", "0.9", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, ["train", *given])
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["noise_schedule"] == "banded:bands=4,momentum=0.9"
    assert 2.9 < float(record["epsilon"]["verified"]) <= 3
