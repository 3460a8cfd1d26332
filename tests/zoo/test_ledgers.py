"""Bugs that make a ledger show less than was spent: each does, and its correct twin refuses."""

import json

import pytest

from assay import Plan
from assay.accounting.ledger import Ledger, LedgerError

from . import mutants

PLAN = Plan(records=1000, batch_size=20, steps=400, noise_multiplier=0.8, delta=1e-5)


def opened(kind, path):
    return kind(path, delta=PLAN.delta, adjacency=PLAN.adjacency, ceiling=None)


def one_bit(path, _ledger):
    """The noise multiplier 0.8 of the last line becomes 8.8 or the like: one bit of its first digit."""
    text = bytearray(path.read_bytes())
    text[text.rindex(b'"noise_multiplier": 0.8') + len(b'"noise_multiplier": ')] ^= 0x08  # "0" becomes "8"
    path.write_bytes(text)


def moved_away(path, ledger):
    """A file of its name that knows of the first step only takes its place, and the run goes on."""
    known = b"".join(path.read_bytes().splitlines(keepends=True)[:2])
    path.rename(path.with_name("away"))
    path.write_bytes(known)
    ledger.charge(200)


def other_noise(path, _ledger):
    """An older file, without digests, says ten times the noise."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.pop("digest")
    lines[0]["schema"] = "assay.ledger/1"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines).replace(": 0.8", ": 8.0"))


ZOO = {
    "a flipped bit is believed": (mutants.BelievesItsLines, one_bit),
    "a ledger that was replaced is charged": (mutants.ForgetsItsPath, moved_away),
    "the noise of an entry is not that of the plan": (mutants.BelievesItsNoise, other_noise),
}


def spent_after(kind, harm, path):
    """ε by the file, after 100 steps and the harm done to it."""
    ledger = opened(kind, path)
    segment = ledger.begin(PLAN.steps_event, PLAN.steps)
    segment.charge(1)
    segment.charge(100)
    harm(path, segment)
    ledger.close()
    again = opened(kind, path)
    again.check_fits(PLAN.fits)
    return again.epsilon()


@pytest.mark.parametrize("bug", ZOO)
def test_the_bug_shows_less_than_was_spent(tmp_path, bug):
    kind, harm = ZOO[bug]
    assert spent_after(kind, harm, tmp_path / "ledger.jsonl") < 0.9 * PLAN.epsilon(steps=100)


@pytest.mark.parametrize("bug", ZOO)
def test_the_twin_refuses(tmp_path, bug):
    with pytest.raises(LedgerError):
        spent_after(Ledger, ZOO[bug][1], tmp_path / "ledger.jsonl")


def test_the_twin_leaves_an_unharmed_ledger_alone(tmp_path):
    found = spent_after(Ledger, lambda *_: None, tmp_path / "ledger.jsonl")
    assert found == pytest.approx(PLAN.epsilon(steps=100), rel=0.01)
