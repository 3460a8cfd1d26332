"""The ledger: durable, never below what was spent, and a hard ceiling."""

import json
import math

import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from assay import Adjacency, BudgetSpentError
from assay.privacy.accounting import epsilon
from assay.privacy.ledger import Ledger, LedgerError

DELTA = 1e-5


def cost(steps):
    return SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), steps)


def book(path, ceiling=None):
    return Ledger(path, delta=DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE, ceiling=ceiling)


def spent(*counts):
    return epsilon(cost(sum(counts)), DELTA, Adjacency.ADD_OR_REMOVE_ONE)


def test_what_was_charged_is_on_disk_when_charge_returns(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = book(path)
    ledger.begin(cost, 1000)
    ledger.charge(40)
    again = book(path)  # as another process would see it after a kill
    assert again.total_steps == 40
    assert again.epsilon() == pytest.approx(spent(40), rel=0.01)


def test_a_killed_process_keeps_what_was_charged_ahead_and_an_orderly_one_settles(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = book(path)
    ledger.begin(cost, 1000)
    ledger.charge(64)
    assert book(path).total_steps == 64
    ledger.settle(50)
    assert book(path).total_steps == 50
    with pytest.raises(LedgerError, match="51 steps were taken but only 50"):
        ledger.settle(51)


def test_lost_steps_stay_charged_in_their_segment(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = book(path)
    first.begin(cost, 100)
    first.charge(30)
    second = book(path)
    second.begin(cost, 100)
    second.charge(20)
    assert second.total_steps == 50
    assert second.epsilon() == pytest.approx(spent(30, 20), rel=0.01)
    assert second.epsilon() > spent(30)


def test_repeating_the_same_draws_is_not_charged_twice(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = book(path)
    first.begin(cost, 100)
    first.charge(30)
    again = book(path)
    again.begin(cost, 100, repeat=True)
    assert again.charged == 30
    again.settle(10)
    assert again.total_steps == 30, (
        "the killed process may have taken all thirty: repeating ten of them takes nothing back"
    )
    assert again.epsilon_after(10) == pytest.approx(spent(10), rel=0.01)
    again.charge(64)
    again.settle(40)
    assert again.total_steps == 40


def test_the_ceiling_holds_over_segments(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ceiling = spent(100)
    first = book(path, ceiling)
    assert first.begin(cost, 100) == 100
    first.charge(60)
    second = book(path, ceiling)
    allowed = second.begin(cost, 100)
    assert 35 <= allowed <= 40, "60 of about 100 steps are gone, whatever they were used for"
    second.charge(allowed)
    with pytest.raises(BudgetSpentError, match="budget is spent"):
        second.charge(allowed + 1)
    assert second.epsilon() <= ceiling
    third = book(path, ceiling)
    assert third.begin(cost, 100) == 0


def test_a_torn_last_line_was_never_paid_for(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = book(path)
    ledger.begin(cost, 100)
    ledger.charge(10)
    with path.open("ab") as file:
        file.write(b'{"segment": 0, "steps": 20, "eve')
    again = book(path)
    assert again.total_steps == 10
    again.begin(cost, 100)
    again.charge(5)
    assert book(path).total_steps == 15


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [lines[0], "{broken", *lines[1:]],
        lambda lines: [json.dumps({**json.loads(lines[0]), "delta": 0.1}), *lines[1:]],
        lambda lines: [lines[0], lines[1].replace('"noise_multiplier": 1.0', '"noise_multiplier": -1.0')],
        lambda lines: [lines[0], lines[1].replace('"segment": 0', '"segment": -1')],
        lambda lines: [lines[0], lines[1].replace('"steps": 10', '"steps": -10')],
        lambda lines: [lines[0], json.dumps({"segment": 0})],
    ],
    ids=["not json", "another run", "negative noise", "negative segment", "negative steps", "missing fields"],
)
def test_damage_is_an_error_and_never_a_smaller_epsilon(tmp_path, damage):
    path = tmp_path / "ledger.jsonl"
    ledger = book(path)
    ledger.begin(cost, 100)
    ledger.charge(10)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(damage(lines)) + "\n")
    with pytest.raises(LedgerError):
        book(path)


def test_a_release_without_noise_costs_everything():
    from dp_accounting.dp_event import NonPrivateDpEvent

    ledger = book(None)
    ledger.begin(lambda n: SelfComposedDpEvent(NonPrivateDpEvent(), n), 5)
    ledger.charge(1)
    assert ledger.epsilon() == math.inf


def test_a_full_disk_stops_the_charge(tmp_path, monkeypatch):
    ledger = book(tmp_path / "ledger.jsonl")
    ledger.begin(cost, 100)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        ledger.charge(1)
    assert ledger.charged == 0, "what could not be written down was not charged, and its step is not taken"


BEFORE = LaplaceDpEvent(10.0)  # ε = 0.1


def with_before(steps, times=1):
    whole = ComposedDpEvent([*[BEFORE] * times, cost(steps)])
    return epsilon(whole, DELTA, Adjacency.ADD_OR_REMOVE_ONE)


def test_a_release_before_the_steps_is_on_disk_when_pay_returns_and_counts_for_good(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = book(path)
    ledger.pay(BEFORE)
    assert book(path).epsilon() == pytest.approx(0.1, rel=1e-3)
    ledger.begin(cost, 1000)
    ledger.charge(40)
    ledger.settle(30)
    for seen in (ledger, book(path)):
        assert seen.total_steps == 30
        assert seen.epsilon() == pytest.approx(with_before(30), rel=0.01)


@pytest.mark.parametrize("repeat", [True, False])
def test_steps_never_take_the_place_of_what_was_paid_before_them(tmp_path, repeat):
    path = tmp_path / "ledger.jsonl"
    book(path).pay(BEFORE)  # and the process is killed
    again = book(path)
    again.pay(BEFORE, repeat=repeat)
    again.begin(cost, 100, repeat=repeat)
    again.charge(10)
    assert book(path).epsilon() == pytest.approx(with_before(10, times=1 if repeat else 2), rel=0.01)


def test_a_release_before_the_steps_counts_against_the_ceiling(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ceiling = with_before(100)
    ledger = book(path, ceiling=ceiling)
    ledger.pay(BEFORE)
    assert 97 <= ledger.begin(cost, 1000) <= 100
    lost = book(tmp_path / "other.jsonl", ceiling=0.15)
    lost.pay(BEFORE)
    with pytest.raises(BudgetSpentError, match="a release before training"):
        lost.pay(BEFORE)
    assert lost.epsilon() == pytest.approx(0.1, rel=1e-3)


def test_a_release_that_was_charged_twice_in_one_segment_is_damage(tmp_path):
    path = tmp_path / "ledger.jsonl"
    book(path).pay(BEFORE)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1]]) + "\n")
    with pytest.raises(LedgerError, match="once and for all"):
        book(path)
