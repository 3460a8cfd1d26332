"""Budgets: several runs on the same records, any number of processes, kills, full disks and people who edit files."""

import json
import os
import resource
import signal
import stat

import numpy as np
import pytest
from dp_accounting import dp_event
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay import Adjacency, Budget, BudgetSpentError, ConfigError, DataError
from assay._util import journal, seals, signatures
from assay._util.files import NoRoomError
from assay.accounting.budget import check_lines
from assay.accounting.budget_entries import BudgetError
from assay.accounting.epsilon import epsilon
from assay.accounting.ledger import LedgerError

ADD = Adjacency.ADD_OR_REMOVE_ONE
ROWS = [b"record %d" % i for i in range(50)]


def run(noise=2.0, count=200):
    return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(noise)), count)


@pytest.fixture
def budget(tmp_path):
    return Budget.create(tmp_path / "patients", epsilon=1.5, delta=1e-5, contents=ROWS)


def fill(budget, event=None):
    """Reserve until it is refused."""
    event = run() if event is None else event
    held = []
    while True:
        try:
            held.append(budget.reserve(event))
        except BudgetSpentError:
            return held


def in_child(work):
    """The exit code of `work()`, or minus the signal that ended it, in a forked process."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_runs_reserve_until_the_ceiling_and_no_further(budget):
    held = fill(budget)
    together = dp_event.SelfComposedDpEvent(run(), len(held))
    assert epsilon(together, budget.delta, ADD) <= budget.spent() <= budget.epsilon
    assert len(held) >= 3
    assert not check_lines(budget)


def test_what_was_not_used_is_given_back_and_no_more(budget):
    first, *_ = fill(budget)
    before = budget.spent()
    budget.settle(first.token, run(count=50), steps=50)
    assert budget.spent() < before
    account = budget.state().accounts[0]
    assert not account.open
    assert account.costs == pytest.approx(budget.filter.costs(run(count=50), ADD))
    budget.settle(first.token, run(count=50), steps=50)
    assert len(budget.state().accounts[0].costs) == len(account.costs)
    assert budget.reserve(run(count=100))


def test_a_ledger_may_hold_what_was_reserved_and_no_more(budget):
    held = budget.reserve(run(count=200))
    assert held.covers(run(count=200))
    assert held.covers(dp_event.ComposedDpEvent([run(count=150), run(count=50)]))
    assert not held.covers(run(count=201))
    assert not held.covers(dp_event.ComposedDpEvent([run(count=200), dp_event.GaussianDpEvent(1000)]))
    assert not held.covers(dp_event.NonPrivateDpEvent())


def test_a_run_that_is_taken_up_again_keeps_its_reservation(budget):
    first = budget.reserve(run())
    again = budget.reserve(run(), token=first.token)
    assert again == first
    assert len(budget.state().accounts) == 1


def test_a_settled_run_gets_its_reservation_back_only_if_it_fits(budget):
    first = budget.reserve(run())
    budget.settle(first.token, run(count=20), steps=20, how="ledger")
    assert budget.reserve(run(), token=first.token).covers(run())
    budget.settle(first.token, run(count=20), steps=20, how="ledger")
    fill(budget, run(count=150))
    fill(budget, run(count=5))
    again = budget.reserve(run(), token=first.token)
    assert again.covers(run(count=20))
    assert not again.covers(run(count=200))
    assert budget.spent() <= budget.epsilon


def test_what_has_no_noise_is_refused_with_the_reason(budget):
    with pytest.raises(BudgetSpentError, match="no Rényi bound"):
        budget.check_fits(dp_event.NonPrivateDpEvent())


def test_what_a_refusal_says_would_fit_does(budget):
    budget.reserve(run(noise=1.5))

    def noisier(times):
        return run(noise=times), epsilon(run(noise=times), 1e-5, ADD)

    with pytest.raises(BudgetSpentError, match=r"would spend ε = .* of 1\.5 .* 1 so far, 1 of them not ended") as said:
        budget.check_fits(run(noise=0.8), lambda k: noisier(0.8 * k))
    assert "Nothing was trained" in str(said.value)
    offered = float(str(said.value).split("ε ≤ ")[1].split()[0])
    noise = next(k for k in np.geomspace(0.8, 20, 200) if noisier(k)[1] <= offered)
    budget.check_fits(run(noise=noise))
    assert offered > 0.5 * noisier(noise)[1]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from([0.9, 1.5, 4.0]), st.sampled_from([5, 50, 300]), st.integers(0, 100)),
        min_size=1,
        max_size=12,
    )
)
def test_no_sequence_of_runs_passes_the_ceiling(tmp_path_factory, asked):
    """Each run asks for noise and steps, takes a share of them, and ends before or after the next one begins."""
    budget = Budget.create(tmp_path_factory.mktemp("b") / "b", epsilon=1.2, delta=1e-4, contents=ROWS)
    held, released = [], []
    for noise, count, share in asked:
        try:
            held.append((budget.reserve(run(noise, count)), noise, count * share // 100))
        except BudgetSpentError:
            continue
        if share % 2 and held:
            mine, noise, taken = held.pop(0)
            event = run(noise, taken) if taken else dp_event.ComposedDpEvent([])
            released.append(event)
            budget.settle(mine.token, event, steps=taken)
        whole = [*released, *(run(noise, taken) for _, noise, taken in held if taken)]
        assert budget.spent() <= budget.epsilon * (1 + 1e-5)
        if whole:
            assert epsilon(dp_event.ComposedDpEvent(whole), 1e-4, ADD) <= budget.epsilon
    assert not check_lines(budget)


def test_of_many_processes_at_once_no_two_get_the_same_room(budget, tmp_path):
    alone = len(fill(Budget.create(tmp_path / "other" / "b", epsilon=1.5, delta=1e-5, contents=[b"x"])))
    ready, go = os.pipe()
    children = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.read(ready, 1)  # until the parent lets all of them go
            try:
                got = len(fill(Budget(budget.path)))
            except BaseException:
                got = 99
            os._exit(got)
        children.append(pid)
    os.close(go)
    got = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    os.close(ready)
    assert sum(got) == alone == len(budget.state().accounts)
    assert budget.spent() <= budget.epsilon
    assert not check_lines(budget)


def test_a_process_killed_while_it_writes_leaves_the_budget_whole(budget):
    budget.reserve(run())
    before = budget.state().heads

    def killed_within_a_line():
        with journal.alone(budget.path / "budget.jsonl") as file, (budget.path / "budget.jsonl").open("ab") as raw:
            raw.write(seals.chained({"kind": "settle", "run": "x"}, file.head)[0][:-7])
            raw.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(killed_within_a_line) == -signal.SIGKILL
    assert budget.state().heads == before
    budget.reserve(run())  # nobody holds the lock, and what was torn is gone
    assert len(budget.state().accounts) == 2
    assert not check_lines(budget)


def test_a_killed_run_keeps_all_that_it_reserved(budget):
    def killed():
        budget.reserve(run(), token="mine")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(killed) == -signal.SIGKILL
    (account,) = budget.state().accounts
    assert account.open
    assert account.costs == pytest.approx(budget.filter.costs(run(), ADD))


def test_a_full_disk_takes_nothing_and_gives_nothing_back(budget):
    first = budget.reserve(run())
    raw = (budget.path / "budget.jsonl").read_bytes()

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(raw) + 10, len(raw) + 10))
        for act in (lambda: budget.reserve(run()), lambda: budget.settle(first.token, run(count=1))):
            try:
                act()
            except NoRoomError:
                continue
            return 1
        return 0

    assert in_child(work) == 0
    assert (budget.path / "budget.jsonl").read_bytes() == raw
    budget.reserve(run())


# --- which records


def test_records_are_recognised_in_any_order_and_by_their_part(budget):
    assert budget.recognise(reversed(ROWS)).known == 50
    assert budget.check_records(ROWS[10:30]).records == 20
    assert budget.check_records(ROWS + ROWS).records == 50
    assert budget.recognise(ROWS).digest == budget.recognise(reversed(ROWS)).digest
    assert budget.recognise(ROWS).digest != budget.recognise(ROWS[1:]).digest


def test_other_records_are_refused_and_an_overlap_is_said(budget):
    with pytest.raises(DataError, match="none of these 2 records"):
        budget.check_records([b"a", b"b"])
    with pytest.raises(DataError, match="overlap: 50 of these 51 records"):
        budget.check_records([*ROWS, b"another"])
    assert budget.add_records([b"another", ROWS[0]]) == 1
    budget.check_records([*ROWS, b"another"])
    assert budget.state().records == 51


def test_records_have_one_budget_under_any_name(budget):
    with pytest.raises(ConfigError, match="are in the budget patients already"):
        Budget.create(budget.path.parent / "again", epsilon=9, delta=1e-5, contents=reversed(ROWS))
    assert not (budget.path.parent / "again.budget").exists()
    other = Budget.create(budget.path.parent / "wider", epsilon=9, delta=1e-5, contents=[*ROWS[:20], b"new"])
    (overlap,) = other.state().overlaps
    assert (overlap["name"], overlap["records"], overlap["epsilon"]) == ("patients", 20, 1.5)


def test_who_may_not_read_the_records_may_not_read_their_hashes(budget):
    assert stat.S_IMODE((budget.path / "records.bin").stat().st_mode) == 0o600
    assert stat.S_IMODE(budget.path.stat().st_mode) == 0o700
    twin = Budget.create(budget.path.parent / "elsewhere" / "patients", epsilon=1, delta=1e-5, contents=ROWS)
    assert twin.recognise(ROWS).digest != budget.recognise(ROWS).digest  # each has a key of its own


def test_a_file_of_records_that_is_not_the_budgets_is_refused(budget):
    twin = Budget.create(budget.path.parent / "elsewhere" / "patients", epsilon=1, delta=1e-5, contents=ROWS)
    (budget.path / "records.bin").write_bytes((twin.path / "records.bin").read_bytes())
    with pytest.raises(BudgetError, match="not the file that"):
        budget.check_records(ROWS)
    (budget.path / "records.bin").write_bytes(b"assay.records/1\n")
    with pytest.raises(Exception, match="damaged"):
        budget.check_records(ROWS)


# --- people who edit it


def lines_of(budget):
    return (budget.path / "budget.jsonl").read_bytes().splitlines(keepends=True)


def rechained(lines):
    """The same file written by somebody who knows how digests are made, and has no key."""
    said, before = b"", ""
    for line in lines:
        line.pop("digest", None)
        text, before = seals.chained(line, before)
        said += text + b"\n"
    return said


EDITS = {
    "a number is changed": lambda lines: [lines[0].replace(b'"epsilon": 1.5', b'"epsilon": 9.5'), *lines[1:]],
    "an entry is removed": lambda lines: [*lines[:1], *lines[2:]],
    "two entries change places": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "an entry is there twice": lambda lines: [*lines, lines[-1]],
    "an entry is emptied": lambda lines: [*lines[:1], b"\n", *lines[2:]],
    "the last line is damaged": lambda lines: [*lines[:-1], lines[-1].rstrip() + b" \n"],
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_seen(budget, edit):
    budget.settle(budget.reserve(run()).token, run(count=9), steps=9)
    budget.reserve(run())
    (budget.path / "budget.jsonl").write_bytes(b"".join(EDITS[edit](lines_of(budget))))
    with pytest.raises(journal.JournalError, match="damaged"):
        Budget(budget.path)
    with pytest.raises(journal.JournalError):
        budget.reserve(run())


@pytest.fixture
def signed(tmp_path):
    signatures.create_pair(tmp_path / "key")
    made = Budget.create(tmp_path / "signed", epsilon=1.5, delta=1e-5, contents=ROWS, key=tmp_path / "key")
    made.reserve(run())
    return made


def test_with_a_key_nobody_without_it_can_write(signed, tmp_path):
    signatures.create_pair(tmp_path / "other")
    for wrong in (None, tmp_path / "other"):
        with pytest.raises(ConfigError, match="key"):
            Budget(signed.path, key=wrong).reserve(run())
    lines = [json.loads(line) for line in lines_of(signed)]
    lines[1]["costs"] = [0.0] * len(lines[1]["costs"])
    (signed.path / "budget.jsonl").write_bytes(rechained(lines))
    with pytest.raises(BudgetError, match="entry 2 is not signed"):
        Budget(signed.path)


def test_notes_about_a_ledger_are_signed_and_are_not_missing(signed, tmp_path):
    held = signed.reserve(run(count=9), path=str(tmp_path / "run"))
    mark, notes = signed.mark(held.token), signed.path / "runs" / f"{held.token}.jsonl"
    mark.check([])
    with mark.noting("a", 1):
        pass
    signed.check_mark(held.token, ["a", "b"])
    with pytest.raises(LedgerError, match="continued elsewhere"):
        signed.check_mark(held.token, ["b"])
    line = json.loads(notes.read_bytes())
    notes.write_bytes(rechained([{**line, "head": "b"}]))
    with pytest.raises(journal.JournalError, match="not signed"):
        signed.check_mark(held.token, ["b"])
    notes.unlink()
    with pytest.raises(BudgetError, match="lacks the notes"):
        signed.check_mark(held.token, ["a"])


def test_without_a_key_costs_that_are_less_than_their_event_are_seen(budget):
    budget.reserve(run())
    lines = [json.loads(line) for line in lines_of(budget)]
    lines[1]["costs"] = [cost / 2 for cost in lines[1]["costs"]]
    (budget.path / "budget.jsonl").write_bytes(rechained(lines))
    assert "says less than its event costs" in check_lines(Budget(budget.path))[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("costs", [-1.0] * 6),
        ("costs", ["nan"] * 6),
        ("costs", [1.0]),
        ("event", {"kind": "?"}),
        ("run", 3),
        ("kind", "gift"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(budget, field, value):
    budget.reserve(run())
    lines = [json.loads(line) for line in lines_of(budget)]
    lines[1][field] = value
    (budget.path / "budget.jsonl").write_bytes(rechained(lines))
    with pytest.raises(BudgetError):
        Budget(budget.path)


@pytest.mark.parametrize(("epsilon_", "delta"), [(0, 1e-5), (-1, 1e-5), (float("inf"), 1e-5), (1, 0), (1, 1), (1, -1)])
def test_a_ceiling_that_is_none_is_refused(tmp_path, epsilon_, delta):
    with pytest.raises(ConfigError):
        Budget.create(tmp_path / "b", epsilon=epsilon_, delta=delta, contents=ROWS)
    assert not list(tmp_path.iterdir())


def test_a_budget_that_is_there_is_not_made_again(budget):
    with pytest.raises(ConfigError, match="not taken"):
        Budget.create(budget.path, epsilon=9, delta=1e-5, contents=[b"other records"])
    with pytest.raises(ConfigError, match="there is none"):
        Budget(budget.path.parent / "nowhere")


def test_unit_and_adjacency_are_those_of_the_budget(budget):
    with pytest.raises(ConfigError, match="adjacency"):
        budget.check_terms(adjacency=Adjacency.REPLACE_ONE, unit="record")
    with pytest.raises(ConfigError, match="unit"):
        budget.check_terms(adjacency=ADD, unit="patient_id")


def test_what_is_left_fits(budget):
    budget.reserve(run())
    left = budget.state().left()
    assert 0 < left < budget.epsilon
    fill(budget)
    assert budget.state().left() < left
