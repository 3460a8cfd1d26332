"""Bugs by which several runs spend more than their budget: each does, and its correct twin does not."""

import contextlib

import pytest
from dp_accounting.dp_event import ComposedDpEvent, SelfComposedDpEvent

from assay import Budget, BudgetSpentError, Plan
from assay.accounting.budget import check_lines
from assay.accounting.epsilon import epsilon
from assay.accounting.ledger import Ledger

from . import mutants

PLAN = Plan(records=1000, batch_size=20, steps=400, noise_multiplier=3.0, delta=1e-5)


@pytest.fixture
def where(tmp_path):
    return Budget.create(tmp_path / "b", epsilon=2.0, delta=1e-5, contents=[b"1", b"2"]).path


def spent_by(count):
    return epsilon(SelfComposedDpEvent(PLAN.event(), count), 1e-5, PLAN.adjacency)


def race(kind, where):
    """How many of 40 processes start a run that opened the budget at the same time."""
    started = 0
    for one in [kind(where) for _ in range(40)]:
        with contextlib.suppress(BudgetSpentError):
            one.reserve(PLAN.event())
            started += 1
    return started


def test_reservations_that_race_pass_the_ceiling(where):
    assert spent_by(race(mutants.LooksBeforeItsTurn, where)) > 2.0
    assert check_lines(Budget(where))  # and the file shows it


def test_the_twin_of_the_race_does_not(where):
    assert spent_by(race(Budget, where)) <= 2.0
    assert not check_lines(Budget(where))


def released(kind, where):
    """Runs that each end after three quarters of their steps, one after the other, until one is refused."""
    budget, events = kind(where), []
    while len(events) < 50:
        try:
            mine = budget.reserve(PLAN.event())
        except BudgetSpentError:
            break
        events.append(PLAN.event(300))
        budget.settle(mine.token, events[-1], steps=300)
    return epsilon(ComposedDpEvent(events), 1e-5, PLAN.adjacency)


def test_what_is_given_back_twice_is_spent_twice(where):
    assert released(mutants.GivesBackTwice, where) > 2.0
    assert any("less than its event costs" in said for said in check_lines(Budget(where)))


def test_the_twin_gives_back_once(where):
    assert 1.2 < released(Budget, where) <= 2.0


def charged(kind, where):
    """Steps that a run charges which was killed and resumed, under a ceiling of its own that is wide."""
    held = Budget(where).reserve(PLAN.event())
    ledger = kind(None, delta=PLAN.delta, adjacency=PLAN.adjacency, ceiling=9.0)
    ledger.covers = held.covers
    ledger.begin(PLAN.steps_event, PLAN.steps).charge(300)  # and killed
    again = ledger.begin(PLAN.steps_event, PLAN.steps)
    again.charge(again.allowed)
    return ledger.total_steps


def test_a_ledger_that_does_not_ask_charges_more_than_was_reserved(where):
    assert charged(mutants.ChargesBeyondItsReservation, where) == 700


def test_the_twin_charges_what_was_reserved(where):
    assert charged(Ledger, where) == 400
