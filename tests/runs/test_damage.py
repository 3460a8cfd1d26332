"""Damage to any file of a run is refused, or changes nothing: a flipped bit never makes ε smaller."""

import json
import shutil

import pytest
import torch

import assay
from assay import Adjacency, AssayError
from assay._util import seals
from assay.accounting.ledger import Ledger, LedgerError
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory

from .conftest import flipped, network, records

DELTA, CEILING = 1e-3, 9.0


def terms():
    return {"delta": DELTA, "adjacency": Adjacency.ADD_OR_REMOVE_ONE, "ceiling": CEILING}


def outcomes(path, read):
    """What `read` makes of the file with one bit flipped, for every bit: None where it is refused in words."""
    with flipped(path) as flip:
        for bit in range(8 * path.stat().st_size):
            flip(bit)
            try:
                yield bit, read()
            except AssayError:
                yield bit, None


@pytest.fixture
def done(finished, tmp_path):
    return RunDirectory(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def stopped(unfinished, tmp_path):
    return RunDirectory(shutil.copytree(unfinished, tmp_path / "run"))


def test_no_flipped_bit_of_a_ledger_lowers_what_was_spent(stopped):
    run = stopped.digest()
    for _, found in outcomes(stopped.ledger, lambda: Ledger(stopped.ledger, **terms(), run=run)):
        assert found is None, "each line is covered by its digest"


@pytest.mark.parametrize("name", ["run.json", "record.json", "statement.md"])
def test_no_flipped_bit_of_a_finished_run_is_believed(done, name):
    record = done.read_record()
    read = {
        "run.json": done.read_spec,
        "record.json": done.read_record,
        "statement.md": lambda: done.read_statement(record),
    }[name]
    as_it_is, refused, tried = read(), 0, 0
    for _, found in outcomes(done.path / name, read):
        assert found in (None, as_it_is), "another way to write the same content does no harm"
        refused, tried = refused + (found is None), tried + 1
    assert refused > 0.99 * tried


def test_no_flipped_bit_of_a_model_is_believed(done):
    record = done.read_record()
    for _, found in outcomes(done.model, lambda: done.read_model(record)):
        assert found is None


def test_no_flipped_bit_of_a_checkpoint_is_believed(stopped):
    run = stopped.digest()
    tensors, state = checkpoint.load(stopped.checkpoint, run)

    def read():
        found, known = checkpoint.load(stopped.checkpoint, run)
        same = found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
        return same and known == state

    found = [value for _, value in outcomes(stopped.checkpoint, read)]
    assert set(found) <= {None, True}
    assert found.count(None) > 0.9 * len(found)


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: (
            lines[:1] + [json.dumps({k: v for k, v in json.loads(line).items() if k != "digest"}) for line in lines[1:]]
        ),
        lambda lines: [json.dumps({k: v for k, v in json.loads(line).items() if k != "digest"}) for line in lines],
        lambda lines: [json.dumps(old(json.loads(line))) for line in lines],
        lambda lines: [*lines[:1], *lines[2:]],
        lambda lines: [lines[0], *reversed(lines[1:])],
        lambda lines: [*lines, lines[-1]],
    ],
    ids=["entries stripped", "all stripped", "made old", "an entry left out", "another order", "one twice"],
)
def test_a_ledger_without_its_digests_is_not_taken_for_an_old_one(stopped, damage):
    lines = stopped.ledger.read_text().splitlines()
    assert len(lines) > 2
    stopped.ledger.write_text("\n".join(damage(lines)) + "\n")
    with pytest.raises(LedgerError, match=str(stopped.ledger)):
        stopped.open_ledger(**terms())


def old(line):
    """A line as an earlier version has written it."""
    line = {key: value for key, value in line.items() if key not in ("digest", "run", "origin")}
    return {**line, "schema": "assay.ledger/1"} if "schema" in line else line


def made_old(directory):
    """The run as an earlier version has left it."""
    lines = [json.dumps(old(json.loads(line))) for line in directory.ledger.read_text().splitlines()]
    directory.ledger.write_text("\n".join(lines) + "\n")
    for path, schema in ((directory.spec, "assay.run/1"), (directory.record, "assay.record/1")):
        if path.exists():
            data = json.loads(path.read_text())
            path.write_text(
                json.dumps({k: v for k, v in data.items() if k not in ("digest", "files")} | {"schema": schema})
            )


def test_runs_of_earlier_versions_are_read(done):
    made_old(done)
    assert done.read_record()["schema"] == "assay.record/1"
    assert done.read_statement().startswith("# Privacy statement")
    assert done.read_model().keys() == {"weight", "bias"}


def test_an_unfinished_run_of_an_earlier_version_goes_on(stopped):
    from safetensors.torch import save_file

    spent = stopped.open_ledger(**terms()).total_steps
    tensors, state = checkpoint.load(stopped.checkpoint, stopped.digest())
    save_file(tensors, stopped.checkpoint, metadata={"schema": "assay.checkpoint/1", "state": json.dumps(state)})
    made_old(stopped)
    result = assay.resume(network(), records(), stopped.path)
    assert result.record["steps"] == 8
    assert result.record["steps_charged"] == spent + 8 - state["step"]
    assert stopped.read_record() == result.record
    assert '"digest"' not in stopped.ledger.read_text()


@pytest.mark.parametrize("name", ["run.json", "record.json"])
def test_a_file_whose_digest_was_taken_away_is_refused(done, name):
    path = done.path / name
    data = json.loads(path.read_text())
    del data["digest"]
    path.write_text(json.dumps(data))
    with pytest.raises(AssayError, match=f"{name} is damaged: its field digest is missing"):
        done.read_record()
    path.write_text(json.dumps({**data, "schema": data["schema"].replace("/2", "/1")}))
    with pytest.raises(AssayError, match="not of one run"):
        done.read_record()


def test_a_run_json_that_was_made_old_does_not_free_its_ledger(stopped):
    data = json.loads(stopped.spec.read_text())
    del data["digest"]
    data["schema"] = "assay.run/1"
    stopped.spec.write_text(json.dumps(data))
    with pytest.raises(LedgerError, match=r"another run\.json"):
        assay.resume(network(), records(), stopped.path)


def test_a_segment_that_the_plan_does_not_give_is_refused(stopped):
    """The digests agree, but the noise is not that of run.json."""
    made_old(stopped)
    text = stopped.ledger.read_text()
    stopped.ledger.write_text(text.replace('"noise_multiplier": 2.0', '"noise_multiplier": 6.0'))
    with pytest.raises(LedgerError, match="not what the plan of the run gives"):
        assay.resume(network(), records(), stopped.path)
    lines = text.splitlines()
    last = json.loads(lines[-1])
    stopped.ledger.write_text("\n".join([*lines[:-1], json.dumps({**last, "steps": last["steps"] + 1})]) + "\n")
    with pytest.raises(LedgerError, match="not what the plan of the run gives"):
        assay.resume(network(), records(), stopped.path)


def test_a_checkpoint_of_another_run_is_refused(stopped):
    tensors, state = checkpoint.load(stopped.checkpoint, stopped.digest())
    checkpoint.save(stopped.checkpoint, tensors, state, "0" * 32)
    with pytest.raises(AssayError, match="belongs to another run"):
        assay.resume(network(), records(), stopped.path)


def test_a_whole_last_line_without_its_end_counts(stopped):
    ledger = stopped.open_ledger(**terms())
    whole = stopped.ledger.read_bytes()
    stopped.ledger.write_bytes(whole[:-1])
    assert stopped.open_ledger(**terms()).total_steps == ledger.total_steps
    again = stopped.open_ledger(**terms())
    again.lock()
    again.close()
    assert stopped.ledger.read_bytes() == whole


WRONG = ["[]", "null", "3", '"text"', "{}", '{"schema": 3}', "{", "\xff"]


@pytest.mark.parametrize("content", WRONG)
@pytest.mark.parametrize("name", ["run.json", "record.json"])
def test_json_of_another_shape_is_an_error_that_names_the_file(assay, done, name, content):
    (done.path / name).write_bytes(content.encode("latin-1"))
    for command in (("show", done.path), ("resume", done.path), ("audit", done.path), ("attack", done.path)):
        code, out, err = assay(*command)
        assert code == 1, command
        assert name in err
        assert "Privacy statement" not in out


MISSING = [
    ("run.json", ("plan",), None, "plan"),
    ("run.json", ("plan", "noise_multiplier"), None, r"plan\.noise_multiplier"),
    ("run.json", ("plan", "steps"), "8", r"plan\.steps"),
    ("run.json", ("plan", "clip"), 3, r"plan\.clip"),
    ("run.json", ("names",), [], "names"),
    ("run.json", ("training",), "x", "training"),
    ("record.json", ("epsilon",), None, "epsilon"),
    ("record.json", ("epsilon", "verified"), "little", r"epsilon\.verified"),
    ("record.json", ("epsilon", "delta"), None, r"epsilon\.delta"),
    ("record.json", ("status",), 1, "status"),
    ("record.json", ("history",), {"a": 1}, "history"),
    ("record.json", ("audits",), [{"epsilon": 1}], r"audits\[0\]\.confidence"),
]


@pytest.mark.parametrize(("name", "where", "value", "named"), MISSING)
def test_a_field_that_is_missing_or_of_another_type_is_named(done, name, where, value, named):
    """In a file whose digest agrees: one that another version, or a person, has written."""
    made_old(done)
    path = done.path / name
    data = json.loads(path.read_text())
    inner = data
    for key in where[:-1]:
        inner = inner[key]
    if value is None:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    path.write_text(json.dumps(data))
    with pytest.raises(AssayError, match=f"{name} is damaged: its field {named}"):
        (done.read_spec if name == "run.json" else done.read_record)()


@pytest.mark.parametrize("state", [[], {}, {"step": "2"}, {"step": 2, "optimizer": {"state": [], "groups": []}}])
def test_the_state_of_a_checkpoint_is_checked(assay, stopped, state):
    tensors, _ = checkpoint.load(stopped.checkpoint, stopped.digest())
    checkpoint.save(stopped.checkpoint, tensors, state, stopped.digest())
    code, _, err = assay("show", stopped.path)
    assert code == 1
    assert "checkpoint.safetensors" in err
    assert "state" in err


def test_a_checkpoint_of_another_model_is_named(stopped):
    with pytest.raises(AssayError, match=r"checkpoint\.safetensors is not one of this model"):
        assay.resume(torch.nn.Linear(3, 2), records(), stopped.path)


def test_a_statement_that_is_no_text_is_named(assay, done):
    made_old(done)
    done.statement.write_bytes(b"\xff\xfe")
    code, out, err = assay("show", done.path)
    assert code == 1
    assert "statement.md is damaged" in err
    assert not out


@pytest.mark.parametrize("name", ["record.json", "statement.md", "ledger.jsonl", "run.json"])
def test_show_says_nothing_of_a_finished_run_that_is_damaged(assay, done, name):
    assert assay("show", done.path)[0] == 0
    path = done.path / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    code, out, err = assay("show", done.path)
    assert code == 1
    assert name in err
    assert not out


def test_a_ledger_of_100_000_lines_is_read_in_two_seconds(tmp_path):
    import time

    from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    def cost(steps):
        return SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), steps)

    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, delta=DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE, ceiling=None)
    ledger.begin(cost, 10).charge(1)
    ledger.close()
    header, entry = path.read_bytes().splitlines()
    line = {key: value for key, value in json.loads(entry).items() if key != "digest"}
    chain, lines = json.loads(header)["digest"], [header]
    for steps in range(1, 100_001):
        line["steps"] = line["event"]["count"] = steps
        text, chain = seals.chained(line, chain)
        lines.append(text)
    path.write_bytes(b"\n".join(lines) + b"\n")
    begun = time.process_time()
    again = Ledger(path, delta=DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE, ceiling=None)
    assert time.process_time() - begun < 2
    assert again.total_steps == 100_000
