"""Runs under a budget: they reserve, keep within it, are killed, resumed, settled and replaced."""

import contextlib
import os
import shutil
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import assay
from assay import AssayError, Budget, BudgetSpentError, ConfigError, DataError
from assay._util import signatures
from assay.accounting.schedules import parse as schedule
from assay.runs import budgeted, totals
from assay.runs.callbacks import OnStep
from assay.runs.directory import RunDirectory
from assay.runs.result import InterruptedRunError
from assay.runs.statement import statement
from assay.training.settings import Training

from .conftest import network, plan, records

WIDE = plan(epsilon_limit=None)
CEILING = 4.0


def fill(budget, steps=WIDE.steps):
    """Others take what is left."""
    with contextlib.suppress(BudgetSpentError):
        while True:
            budget.reserve(WIDE.event(steps))


@pytest.fixture
def budget(tmp_path):
    return Budget.create(
        tmp_path / "b", epsilon=CEILING, delta=1e-3, contents=assay.data.contents(records()), by="the data officer"
    )


def fit(out, budget, **changed):
    given = {"plan": WIDE, "training": Training(), "budget": budget, "out": out, "names": {"data": "patients"}}
    return assay.fit(network(), records(), **given | changed)


def stopped_after(step, act):
    def look(now):
        if now.step == step:
            act()

    return [OnStep(look)]


def interrupt():
    raise InterruptedRunError("stopped")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def killed(out, budget, step=3):
    """A run that ends by kill -9 in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            fit(out, budget, callbacks=stopped_after(step, kill))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_runs_add_up_until_one_is_refused(budget, tmp_path):
    first, second = fit(tmp_path / "1", budget), fit(tmp_path / "2", budget.path)
    assert first.record["budget"]["runs"] == 1
    assert second.record["budget"]["spent"] == pytest.approx(budget.spent())
    assert first.epsilon <= first.record["budget"]["spent"] < second.record["budget"]["spent"] <= CEILING
    assert budgeted.verify(budget) == budgeted.Verdict(problems=(), compared=2, missing=())
    fill(budget)
    with pytest.raises(BudgetSpentError, match="Nothing was trained"):
        fit(tmp_path / "3", budget)
    assert not (tmp_path / "3").exists()
    assert budget.spent() <= CEILING


def test_the_statement_says_this_run_and_all_so_far(budget, tmp_path):
    fit(tmp_path / "1", budget)
    result = fit(tmp_path / "2", budget, names={"data": "patients", "operator": "A. Turing"})
    text = result.statement
    spent = assay.at_most(budget.spent())
    assert f"spent ε = {assay.at_most(result.epsilon)} at δ = 0.001" in text
    assert f"**All 2 runs on these records together spent ε ≤ {spent} so far, of at most 4 at δ = 0.001**" in text
    assert f"budget b: 2 so far, ε ≤ {spent} of 4" in text
    assert "| Operator | A. Turing |" in text
    assert result.record["files"]["model.safetensors"] in text
    assert result.record["files"]["ledger.jsonl"] in text
    assert result.record["budget"]["data"] in text
    assert statement(assay.runs.record_of(tmp_path / "2")) == text  # the record alone is enough
    assert [account.by for account in budget.state().accounts][1] == "A. Turing"


def test_without_a_budget_the_sign_off_leaves_open_what_is_not_known(finished):
    text = assay.runs.statement_of(finished)
    block = text.split("## Sign-off")[1]
    assert "| ☐ | Do all runs on these records and all settings tried count?" in block
    assert "| ✕ | Is there no seed?" in block  # this run has one
    assert "times as likely as without one record" in block
    assert "| Operator | ____" in block
    assert "| SHA-256 of the records | ____" in block


def test_settings_tried_and_not_charged_take_the_tick_away(budget, tmp_path):
    tuning = {"from": "a preset", "tried": 17, "on": "these records", "charged": False}
    text = fit(tmp_path / "1", budget, names={"data": "patients", "tuning": tuning}).statement
    assert "| ✕ | Do all runs on these records and all settings tried count? | 17 settings were tried" in text


def test_a_run_gives_back_what_it_did_not_release(budget, tmp_path):
    with pytest.raises(InterruptedRunError):
        fit(None, budget, callbacks=stopped_after(3, interrupt))
    (account,) = budget.state().accounts
    assert (account.open, account.steps, account.how) == (False, 3, "failed")
    assert budget.state().filter.costs(WIDE.event(3), WIDE.adjacency) == pytest.approx(account.costs)


def test_a_run_that_fails_before_it_released_anything_costs_nothing(budget, tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(x) + x.mean()  # mixes records

    with pytest.raises(AssayError):
        assay.fit(Odd(), records(), plan=WIDE, budget=budget, out=tmp_path / "odd")
    assert budget.spent() == 0


def test_a_killed_run_keeps_its_reservation_until_it_is_resumed(budget, tmp_path):
    killed(tmp_path / "1", budget)
    (account,) = budget.state().accounts
    whole = budget.spent()
    assert account.open
    ledger = RunDirectory.open(tmp_path / "1").open_ledger(delta=1e-3, adjacency=WIDE.adjacency, ceiling=None)
    assert 0 < ledger.total_steps <= WIDE.steps
    result = assay.resume(network(), records(), tmp_path / "1")
    (account,) = budget.state().accounts
    assert not account.open
    assert budget.spent() <= whole * (1 + 1e-6)
    assert result.record["steps_charged"] <= WIDE.steps  # lost steps stay charged, within what was reserved
    assert not budgeted.verify(budget).problems


def test_a_killed_run_is_settled_by_its_ledger_and_may_then_not_go_on_beyond_it(budget, tmp_path):
    killed(tmp_path / "1", budget)
    whole = budget.spent()
    ((_, why),) = budgeted.settle_by_ledgers(budget)
    assert why is None
    charged = budget.state().accounts[0].steps
    assert budget.spent() <= whole
    for steps in (8, 4, 2, 1):
        fill(budget, steps)
    result = assay.resume(network(), records(), tmp_path / "1")
    assert result.record["steps_charged"] == charged
    assert budget.spent() <= CEILING
    assert not budgeted.verify(budget).problems


def test_a_run_at_work_is_not_settled(budget, tmp_path):
    said = []
    fit(
        tmp_path / "1",
        budget,
        callbacks=stopped_after(2, lambda: said.extend(budgeted.settle_by_ledgers(Budget(budget.path)))),
    )
    ((_, why),) = said
    assert "still at work" in why
    assert budget.state().accounts[0].how == "finished"


def test_a_run_whose_ledger_is_gone_keeps_all_that_it_reserved(budget, tmp_path):
    killed(tmp_path / "1", budget)
    shutil.rmtree(tmp_path / "1")
    ((_, why),) = budgeted.settle_by_ledgers(budget)
    assert "was not found" in why
    assert budget.state().accounts[0].open
    assert budgeted.verify(budget).missing == (str(tmp_path / "1"),)


def test_a_run_that_was_replaced_stays_spent(budget, tmp_path):
    killed(tmp_path / "1", budget)
    fit(tmp_path / "1", budget, force=True)
    assert [account.open for account in budget.state().accounts] == [True, False]
    ((_, why),) = budgeted.settle_by_ledgers(budget)
    assert why is None
    assert budget.state().accounts[0].steps > 0
    assert not budgeted.verify(budget).problems


def test_other_records_are_not_trained_on(budget, tmp_path):
    other = TensorDataset(torch.randn(40, 2), torch.arange(40) % 2)
    with pytest.raises(DataError, match="none of these 40 records"):
        assay.fit(network(), other, plan=WIDE, budget=budget, out=tmp_path / "1")
    assert not (tmp_path / "1").exists()


def test_records_are_recognised_whatever_they_come_in(budget):
    class Listed(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, i):
            x, y = records()[39 - i]
            return x.double().tolist(), int(y)

    assert budget.check_records(assay.data.contents(Listed())).records == 40


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"adjacency": assay.Adjacency.REPLACE_ONE}, "adjacency"),
        ({"noise_schedule": schedule("banded:bands=2,momentum=0.5")}, "noise_schedule"),
        ({"noise_schedule": schedule("blt:buffers=1,separation=4,length=40"), "batch_size": 10}, "noise_schedule"),
    ],
)
def test_what_the_budget_does_not_cover_is_refused(budget, tmp_path, changed, said):
    with pytest.raises(ConfigError, match=said):
        fit(tmp_path / "1", budget, plan=plan(epsilon_limit=None, **changed))
    assert not (tmp_path / "1").exists()


def test_a_signed_budget_is_used_with_the_key_it_was_opened_with(tmp_path):
    signatures.create_pair(tmp_path / "key")
    contents = assay.data.contents(records())
    made = Budget.create(tmp_path / "s", epsilon=CEILING, delta=1e-3, contents=contents, key=tmp_path / "key")
    assert fit(tmp_path / "1", made).record["budget"]["signed_by"] == made.public_key.fingerprint


def test_without_noise_a_run_is_refused(budget, tmp_path):
    with pytest.raises(BudgetSpentError, match="no Rényi bound"):
        fit(tmp_path / "1", budget, plan=plan(noise_multiplier=0.0, epsilon_limit=None))


def test_a_loop_of_ones_own_is_under_the_budget(budget):
    with budget.ledger(WIDE, assay.data.contents(records())) as ledger:
        model = network()
        step = assay.PrivateStep(model, WIDE, ledger=ledger)
        batches = step.batches(records())
        for _ in range(3):
            x, y = next(batches)
            step.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
        step.close()
    (account,) = budget.state().accounts
    assert (account.open, account.steps) == (False, 3)
    with pytest.raises(BudgetSpentError):
        ledger.pay(WIDE.event(1))


# --- a budget against its runs


def test_an_earlier_copy_of_the_budget_is_seen_by_its_runs(budget, tmp_path, monkeypatch):
    fit(tmp_path / "1", budget)
    earlier = (budget.path / "budget.jsonl").read_bytes()
    fit(tmp_path / "2", budget)
    (budget.path / "budget.jsonl").write_bytes(earlier)
    (problem,) = budgeted.verify(Budget(budget.path)).problems
    assert "remembers" in problem
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "on another machine"))
    assert not budgeted.verify(Budget(budget.path)).problems  # the runs that it knows agree with it
    (problem,) = budgeted.verify(Budget(budget.path), [tmp_path]).problems
    assert "has no entry of it" in problem
    # and cut off within a run's own entries
    (budget.path / "budget.jsonl").write_bytes(b"".join(earlier.splitlines(keepends=True)[:-1]))
    said = budgeted.verify(Budget(budget.path)).problems
    assert any("Entries were removed or changed" in one for one in said)


def test_a_ledger_that_holds_more_than_was_charged_is_seen(budget, tmp_path):
    fit(tmp_path / "1", budget)
    (account,) = budget.state().accounts
    budget.settle(account.token, WIDE.event(2), steps=2)
    (problem,) = budgeted.verify(budget).problems
    assert "holds more than the budget was charged with" in problem


# --- totals without a budget


def test_a_total_covers_runs_that_were_chosen_after_each_other(tmp_path):
    for i in range(3):
        fit(tmp_path / str(i), None)
    paths = [tmp_path / str(i) for i in range(3)]
    found = assay.runs.total(paths)
    one = totals.total(paths[:1])
    assert one.epsilon == pytest.approx(assay.runs.record_of(paths[0])["epsilon"]["verified"], rel=0.01)
    assert one.epsilon < found.fixed < found.epsilon < 3 * one.epsilon
    assert found.same_records
    assert assay.runs.total(paths, delta=1e-5).epsilon > found.epsilon


def test_a_total_counts_unfinished_and_replaced_runs(tmp_path):
    with pytest.raises(InterruptedRunError):
        fit(tmp_path / "1", None, callbacks=stopped_after(3, interrupt))
    started = totals.total([tmp_path / "1"])
    assert 0 < started.epsilon < WIDE.epsilon()
    fit(tmp_path / "1", None, force=True)
    both = totals.total([tmp_path / "1"])
    assert both.epsilon > WIDE.epsilon()
    assert both.parts[0].replaced == 1


def test_runs_that_have_no_common_total_are_refused(tmp_path):
    fit(tmp_path / "1", None)
    fit(tmp_path / "2", None, plan=plan(delta=1e-4, epsilon_limit=None))
    with pytest.raises(ConfigError, match="delta"):
        totals.total([tmp_path / "1", tmp_path / "2"])
    assert totals.total([tmp_path / "1", tmp_path / "2"], delta=1e-4).epsilon > 0
    with pytest.raises(ConfigError, match="each run once"):
        totals.total([tmp_path / "1", tmp_path / "1"])
    with pytest.raises(ConfigError, match="at least one run"):
        totals.total([])
    fit(tmp_path / "3", None, plan=plan(adjacency=assay.Adjacency.REPLACE_ONE, epsilon_limit=None))
    with pytest.raises(ConfigError, match="adjacency"):
        totals.total([tmp_path / "1", tmp_path / "3"])


def test_a_statement_says_that_a_budget_of_persons_has_some_of_the_rows(tmp_path):
    records = TensorDataset(torch.arange(80.0).reshape(40, 2), torch.arange(40) % 2)
    some = TensorDataset(*(part[:20] for part in records.tensors))
    more = TensorDataset(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
    rows = [*assay.data.contents(some), *assay.data.contents(more)]
    made = [(f"person {i}".encode() for i in range(5)), assay.data.contents(records)]
    assay.Budget.create(tmp_path / "ward", epsilon=9.0, delta=1e-5, contents=made[0], unit="patient", rows=rows)
    own = assay.Budget.create(tmp_path / "own", epsilon=9.0, delta=1e-5, contents=made[1])
    assert own.state().overlaps[0]["records"] == 20
    few = assay.Plan(records=40, batch_size=10, steps=1, noise_multiplier=9.0, delta=1e-5)
    said = assay.fit(nn.Linear(2, 2), records, plan=few, budget=own).statement
    assert "Some rows are also in the budget ward, whose ε is that of each patient: neither budget counts" in said
