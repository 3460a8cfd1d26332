"""The ledger: durable, never below what was spent, and a hard ceiling."""

import json
import math
import subprocess
import sys

import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from assay import Adjacency, BudgetSpentError
from assay.accounting.epsilon import epsilon
from assay.accounting.ledger import Ledger, LedgerError
from assay.randomness.streams import Seeded

DELTA = 1e-5
BEFORE = LaplaceDpEvent(10.0)  # ε = 0.1


def cost(steps):
    return SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), steps)


def book(path, ceiling=None):
    return Ledger(path, delta=DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE, ceiling=ceiling)


def spent(*counts):
    return epsilon(cost(sum(counts)), DELTA, Adjacency.ADD_OR_REMOVE_ONE)


def test_what_was_charged_is_on_disk_when_charge_returns(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = book(path)
    ledger.begin(cost, 1000).charge(40)
    again = book(path)  # as another process would see it after a kill
    assert again.total_steps == 40
    assert again.epsilon() == pytest.approx(spent(40), rel=0.01)


def test_a_killed_process_keeps_what_was_charged_ahead_and_an_orderly_one_settles(tmp_path):
    path = tmp_path / "ledger.jsonl"
    segment = book(path).begin(cost, 1000)
    segment.charge(64)
    assert book(path).total_steps == 64
    segment.settle(50)
    assert book(path).total_steps == 50
    with pytest.raises(LedgerError, match="51 steps were taken but only 50"):
        segment.settle(51)


def test_lost_steps_stay_charged_in_their_segment(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = book(path)
    first.begin(cost, 100).charge(30)
    first.close()
    second = book(path)
    second.begin(cost, 100).charge(20)
    assert second.total_steps == 50
    assert second.epsilon() == pytest.approx(spent(30, 20), rel=0.01)
    assert second.epsilon() > spent(30)


def test_repeating_the_same_draws_is_not_charged_twice(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = book(path)
    first.begin(cost, 100, draws="seed 1").charge(30)
    first.close()
    again = book(path)
    segment = again.begin(cost, 100, draws="seed 1")
    assert segment.charged == 30
    segment.settle(10)
    assert again.total_steps == 30, (
        "the killed process may have taken all thirty: repeating ten of them takes nothing back"
    )
    assert segment.epsilon_after(10) == pytest.approx(spent(10), rel=0.01)
    segment.charge(64)
    segment.settle(40)
    assert again.total_steps == 40


def quiet(steps):
    return SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(2.0)), steps)


@pytest.mark.parametrize(
    ("begun", "draws", "then"),
    [(cost, "seed 2", cost), (cost, None, cost), (cost, "seed 1", quiet), (quiet, "seed 1", cost)],
    ids=["another seed", "fresh randomness", "less noise before", "more noise before"],
)
def test_other_draws_or_another_cost_are_no_repetition(tmp_path, begun, draws, then):
    """Taken for one, the steps that came first would be gone from ε."""
    path = tmp_path / "ledger.jsonl"
    first = book(path)
    first.begin(begun, 100, draws="seed 1").charge(30)
    first.close()
    again = book(path)
    again.begin(then, 100, draws=draws).charge(20)
    assert again.total_steps == 50
    assert epsilon(again.event(), DELTA, Adjacency.ADD_OR_REMOVE_ONE) == pytest.approx(
        epsilon(ComposedDpEvent([begun(30), then(20)]), DELTA, Adjacency.ADD_OR_REMOVE_ONE), rel=0.01
    )


@pytest.mark.parametrize(
    ("began", "begins", "charged"),
    [("a", "a", 30), ("a", "b", 50), ("a", None, 30), (None, "b", 30)],
    ids=["the same model", "another model", "taken up later", "an older file"],
)
def test_another_start_is_no_repetition_where_both_are_known(tmp_path, began, begins, charged):
    path = tmp_path / "ledger.jsonl"
    first = book(path)
    first.begin(cost, 100, draws="seed 1", start=began).charge(30)
    first.close()
    again = book(path)
    segment = again.begin(cost, 100, draws="seed 1", start=begins)
    segment.charge(max(20, segment.charged))
    assert again.total_steps == book(path).total_steps == charged


def test_a_start_stays_known_whoever_goes_on(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for start, steps in (("a", 30), (None, 40), ("b", 20)):
        ledger = book(path)
        ledger.begin(cost, 100, draws="seed 1", start=start).charge(steps)
        ledger.close()
    assert [(e.steps, e.start) for e in book(path).charges()] == [(40, "a"), (20, "b")]


def test_no_two_segments_have_the_same_random_numbers(tmp_path):
    """ε adds up what independent noise costs: the same seed for other steps must not give the same noise."""
    path, seed = tmp_path / "ledger.jsonl", Seeded(1)

    def drawn(start, cost=cost, steps=10):
        ledger = book(path)
        segment = ledger.begin(cost, 100, draws=seed.fingerprint, start=start)
        segment.charge(max(steps, segment.charged))
        ledger.close()
        return segment.own(seed).stream("noise", 0).uniform(3).tolist()

    seen = [drawn("a"), drawn("b"), drawn("b", quiet), drawn("a")]
    assert seen[0] == seed.stream("noise", 0).uniform(3).tolist(), "a ledger of its own changes nothing"
    assert len({tuple(numbers) for numbers in seen}) == 4
    assert drawn("a") == drawn(None, steps=20) == seen[3], "going on repeats"


def test_one_at_a_time_charges_a_file(tmp_path):
    """Two that did not know of each other would leave each other's steps out."""
    path = tmp_path / "ledger.jsonl"
    first, second = book(path), book(path)  # both see an empty ledger
    first.begin(cost, 100).charge(30)
    with pytest.raises(LedgerError, match="in use"):
        second.begin(cost, 100)
    with pytest.raises(LedgerError, match="in use"):
        second.pay(BEFORE)
    assert book(path).total_steps == 30, "reading needs no claim"
    first.close()
    second.begin(cost, 100).charge(20)
    assert second.total_steps == book(path).total_steps == 50, "what was charged since is in it"


def test_a_process_that_ends_gives_the_file_back(tmp_path):
    code = (
        "import sys, os; from pathlib import Path\n"
        "from assay.accounting.ledger import Ledger; from assay import Adjacency\n"
        "from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent as S\n"
        "ledger = Ledger(Path(sys.argv[1]), delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE, ceiling=None)\n"
        "ledger.begin(lambda n: S(GaussianDpEvent(9.0), n), 9).charge(3); os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "ledger.jsonl"
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == -9
    ledger = book(path)
    ledger.begin(cost, 100).charge(1)
    assert ledger.total_steps == 4


def test_segments_that_are_open_together_are_all_charged_and_share_the_ceiling(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = book(path, spent(100))
    first, second = ledger.begin(cost, 60), ledger.begin(cost, 60)
    second.charge(50)  # the first has no line of its own yet
    first.charge(40)
    assert ledger.total_steps == book(path, spent(100)).total_steps == 90
    assert ledger.epsilon() == pytest.approx(spent(90), rel=0.01)
    with pytest.raises(BudgetSpentError, match="budget is spent"):
        first.charge(60)
    second.settle(10)
    first.charge(60)
    first.settle(55)
    assert book(path, spent(100)).total_steps == 65


def test_what_was_begun_before_a_ledger_was_closed_charges_nothing_after_it(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = book(path)
    segment = ledger.begin(cost, 60)
    segment.charge(10)
    ledger.close()
    with pytest.raises(LedgerError, match="begin another"):
        segment.charge(20)
    assert ledger.epsilon() == pytest.approx(spent(10), rel=0.01)


def test_reading_changes_nothing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    assert book(path).epsilon() == 0
    assert not path.exists()
    ledger = book(path)
    ledger.begin(cost, 100).charge(10)
    with path.open("ab") as file:
        file.write(b'{"segment": 0, "st')  # an entry that its writer is in the middle of
    before = path.read_bytes()
    assert book(path).total_steps == 10
    assert path.read_bytes() == before


def test_the_ceiling_holds_over_segments(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ceiling = spent(100)
    first = book(path, ceiling)
    segment = first.begin(cost, 100)
    assert segment.allowed == 100
    segment.charge(60)
    first.close()
    second = book(path, ceiling)
    segment = second.begin(cost, 100)
    assert 35 <= segment.allowed <= 40, "60 of about 100 steps are gone, whatever they were used for"
    segment.charge(segment.allowed)
    with pytest.raises(BudgetSpentError, match="budget is spent"):
        segment.charge(segment.allowed + 1)
    assert second.epsilon() <= ceiling
    second.close()
    third = book(path, ceiling)
    assert third.begin(cost, 100).allowed == 0


def test_a_torn_last_line_was_never_paid_for(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = book(path)
    ledger.begin(cost, 100).charge(10)
    ledger.close()
    with path.open("ab") as file:
        file.write(b'{"segment": 0, "steps": 20, "eve')
    again = book(path)
    assert again.total_steps == 10
    again.begin(cost, 100).charge(5)
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
    ledger.begin(cost, 100).charge(10)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(damage(lines)) + "\n")
    with pytest.raises(LedgerError):
        book(path)


def test_a_release_without_noise_costs_everything():
    from dp_accounting.dp_event import NonPrivateDpEvent

    ledger = book(None)
    ledger.begin(lambda n: SelfComposedDpEvent(NonPrivateDpEvent(), n), 5).charge(1)
    assert ledger.epsilon() == math.inf


def test_a_full_disk_stops_the_charge(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    segment = book(path).begin(cost, 100)

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            segment.charge(1)
    assert segment.charged == 0, "what could not be written down was not charged, and its step is not taken"
    segment.charge(2)
    assert book(path).total_steps == 2, "and what was half written is gone"


def with_before(steps, times=1):
    whole = ComposedDpEvent([*[BEFORE] * times, cost(steps)])
    return epsilon(whole, DELTA, Adjacency.ADD_OR_REMOVE_ONE)


def test_a_release_before_the_steps_is_on_disk_when_pay_returns_and_counts_for_good(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = book(path)
    ledger.pay(BEFORE)
    assert book(path).epsilon() == pytest.approx(0.1, rel=1e-3)
    segment = ledger.begin(cost, 1000)
    segment.charge(40)
    segment.settle(30)
    for seen in (ledger, book(path)):
        assert seen.total_steps == 30
        assert seen.epsilon() == pytest.approx(with_before(30), rel=0.01)


@pytest.mark.parametrize("repeat", [True, False])
def test_steps_never_take_the_place_of_what_was_paid_before_them(tmp_path, repeat):
    path = tmp_path / "ledger.jsonl"
    draws = "seed 1" if repeat else None
    first = book(path)
    first.pay(BEFORE, draws=draws)
    first.close()  # the process is killed
    again = book(path)
    again.pay(BEFORE, draws=draws)
    again.begin(cost, 100, draws=draws).charge(10)
    assert book(path).epsilon() == pytest.approx(with_before(10, times=1 if repeat else 2), rel=0.01)


def test_a_release_before_the_steps_counts_against_the_ceiling(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ceiling = with_before(100)
    ledger = book(path, ceiling=ceiling)
    ledger.pay(BEFORE)
    assert 97 <= ledger.begin(cost, 1000).allowed <= 100
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
    with pytest.raises(LedgerError, match="line 3 is not what its digest was made of"):
        book(path)
