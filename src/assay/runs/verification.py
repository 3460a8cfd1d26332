"""Whether a finished run's files agree with each other, with its ledger and with its signature.

ε is recomputed from the ledger alone: from what was charged, by the accountant of this installation. The figures of
record and statement are compared with it and used for nothing else. So the check can be made on a copy of the run's
directory, on a machine that the one that trained cannot touch.

What it can show: that the files belong together, that ε follows from the ledger and, with a signature, that nobody
changed anything since the holder of the key signed. What it cannot show: that the ledger says what the training did.
For that one trusts whoever signed, or trains again.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from assay._util import seals
from assay._util.figures import at_most, shown
from assay._util.process import commit
from assay._util.signatures import PublicKey, read_public
from assay.accounting.epsilon import epsilon_curve
from assay.accounting.ledger import Ledger, LedgerError, read_ledger
from assay.accounting.tradeoff import tradeoff
from assay.errors import AssayError, ConfigError
from assay.runs import signing
from assay.runs.card import card
from assay.runs.checks import Check, Verification
from assay.runs.directory import RunDirectory, no_run
from assay.runs.signoff import percent
from assay.runs.statement import statement

_TOLERANCE = 1e-4  # relative: accountants on other processors round differently, by far less than this
_HEADLINE = re.compile(r"spent ε = (∞|[0-9.e+-]+)[^*]*? at δ = ([0-9.e+-]+)\*\*")


def verify(
    run: Path | str, *, key: PublicKey | Path | str | None = None, signature: Path | str | None = None
) -> Verification:
    """Check a finished run: its files, its ε against the ledger, its statement and its signature.

        found = assay.runs.verify("runs/mnist", key="officer.pub")
        assert found.holds, found.failed

    Nothing is changed, and a copy of the directory will do. A disagreement raises nothing: it is a check that fails.

    Args:
        run: The run's directory.
        key: The public key (or its file) that must have signed the run. Without one, a signature that is there is
            checked with the key that it names. That shows that nobody changed the run since, but not who signed.
        signature: The signature's file, if it is not the `signature.json` in the directory.

    Returns:
        Every check by name, and ε recomputed.

    Raises:
        ConfigError: The directory is not a run's, or the key or signature file is not one.
    """
    directory = RunDirectory(Path(run))
    if not (directory.spec.exists() or directory.record.exists()):
        raise no_run(directory.path)
    if signature is not None and not Path(signature).is_file():
        raise ConfigError("signature", str(signature), "a file that assay sign has written")
    wanted = key if key is None or isinstance(key, PublicKey) else read_public(key)
    checker = _Checker(directory)
    checker.look()
    signer = checker.look_at_signature(wanted, None if signature is None else Path(signature))
    spent = checker.epsilon
    return Verification(
        run=directory.path,
        checks=tuple(checker.checks),
        epsilon=spent,
        delta=None if checker.ledger is None else float(checker.ledger.delta),
        signer=signer,
    )


def check_epsilon(directory: RunDirectory, record: Mapping[str, Any]) -> bool:
    """Recompute ε from the ledger beside a record, which must not show less.

    Args:
        directory: A finished run's.
        record: Its record.

    Returns:
        False where there is no ledger to recompute it from.

    Raises:
        AssayError: The ledger gives a larger ε, or is about another δ. Names the files and both figures.
        LedgerError: The ledger is damaged.
    """
    ledger = read_ledger(directory.ledger, directory.digest() if directory.spec.exists() else None)
    if ledger is None:
        return False
    _check_figures(directory, record, ledger)
    return True


def check_statement(directory: RunDirectory, record: Mapping[str, Any], text: str) -> None:
    """Compare the ε and δ that a statement begins with to those of the record.

    Args:
        directory: A finished run's.
        record: Its record.
        text: Its statement.

    Raises:
        AssayError: They are others. Names the files.
    """
    facts = record["epsilon"]
    found = _HEADLINE.search(text)
    if found is not None:
        said, spent = (math.inf if found[1] == "∞" else float(found[1])), float(facts["verified"])
        rounded_up = spent * (1 - 1e-9) <= said and (said <= 1.02 * spent + 1e-9 or math.isinf(spent))
        if rounded_up and math.isclose(float(found[2]), facts["delta"], rel_tol=1e-3):
            return
    raise AssayError(
        f"{directory.statement} does not say the ε of {directory.record}, which is {shown(facts['verified'])} "
        f"at δ = {facts['delta']:g}: do not rely on it"
    )


class _Checker:
    """Makes the checks one after the other. What a failed one would have read is None for those that follow."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.checks: list[Check] = []
        self.record: dict[str, Any] | None = None
        self.spec: dict[str, Any] | None = None
        self.ledger: Ledger | None = None
        self.epsilon: float | None = None

    def look(self) -> None:
        """Everything but the signature."""
        self._check("record", self._read_record)
        self._check("run.json", self._read_spec)
        self._check("ledger", self._read_ledger)
        for name in sorted(self.record.get("files", {}) if self.record is not None else ()):
            self._check(f"file {name}", functools.partial(self._file, name))
        self._check("plan", self._plan)
        self._check("epsilon", self._epsilon)
        self._check("statement", self._statement)
        self._check("model card", self._card, otherwise="an earlier version of Assay wrote the run, without one")
        if (self.directory.path / signing.CLIENTS).is_dir():
            self._check("clients", self._clients)
        if self.directory.earlier.is_dir():
            self._check("earlier runs", self._earlier)

    def look_at_signature(self, key: PublicKey | None, path: Path | None) -> PublicKey | None:
        """Who signed, if the signature holds."""
        found: list[PublicKey] = []

        def check() -> str | None:
            there = path or self.directory.path / signing.FILE
            if not there.exists():
                if key is None:
                    return None
                raise AssayError(f"{there} is missing: the run is not signed, and a key was given")
            signed = signing.read_signature(there)
            signed.check(self.directory, key)
            if self.epsilon is not None and not _same(float(signed.epsilon), self.epsilon):
                raise AssayError(f"it was signed for ε = {signed.epsilon}, and the ledger gives {self.epsilon:.6g}")
            found.append(signed.public)
            known = "the key that was given" if key is not None else "a key that this check does not know"
            return f"signed on {signed.when} by {known}, {signed.public.fingerprint}, and unchanged since"

        self._check("signature", check, otherwise="the run is not signed")
        return found[0] if found else None

    def _check(self, name: str, check: Callable[[], str | None], otherwise: str = "not checked: see above") -> None:
        """Make one check: it says what holds, answers None where there is nothing to compare, or raises."""
        try:
            said = check()
        except (AssayError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            plain = str(error) if isinstance(error, AssayError | OSError) else f"a file has another form: {error!r}"
            self.checks.append(Check(name=name, holds=False, said=plain))
            return
        self.checks.append(
            Check(name=name, holds=None if said is None else True, said=otherwise if said is None else said)
        )

    def _read_record(self) -> str:
        self.record = self.directory.read_record()
        made = self.record.get("environment", {}).get("assay", "?")
        sealed = (
            "whole, by its digest" if "files" in self.record else "read; an earlier version wrote it, without digests"
        )
        return f"{sealed}; written by Assay {made}"

    def _read_spec(self) -> str:
        self.spec = self.directory.read_spec()
        return (
            "whole, by its digest" if seals.FIELD in self.spec else "read; an earlier version wrote it, without digests"
        )

    def _read_ledger(self) -> str:
        path = self.directory.ledger
        if not path.exists():
            raise LedgerError(f"{path} is missing: without it ε is not known")
        digest = None if self.spec is None else self.spec.get(seals.FIELD)
        ledger = read_ledger(path, digest)
        if ledger is None:
            raise LedgerError(f"{path} is damaged: it holds no line")
        if self.spec is not None and ledger.run != digest:
            raise LedgerError(f"{path} was written for another run.json")
        self.epsilon = ledger.epsilon()
        self.ledger = ledger
        return f"whole; {ledger.total_steps} steps are charged, ε = {_said(self.epsilon)} at δ = {ledger.delta:g}"

    def _file(self, name: str) -> str:
        assert self.record is not None
        path = self.directory.path / name
        if not path.resolve().is_relative_to(self.directory.path.resolve()):
            raise AssayError(f"{name} is outside of the run's directory")
        self.directory.check_files(self.record, name)
        return "has the SHA-256 that the record lists"

    def _plan(self) -> str | None:
        """That each entry of the ledger costs what the plan gives."""
        if self.spec is None or self.ledger is None:
            return None
        if self._is_choice():
            return "a choice among settings, charged as a whole"
        plan = _kinds().kind_of(self.spec).plan(self.spec["plan"])
        if (plan.delta, plan.adjacency) != (self.ledger.delta, self.ledger.adjacency):
            raise AssayError(f"the ledger is for δ = {self.ledger.delta:g}, the plan in run.json for {plan.delta:g}")
        if self.record is not None and self.record.get("noise_multiplier") != plan.noise_multiplier:
            raise AssayError(
                f"record.json says noise of multiplier {self.record.get('noise_multiplier')}, "
                f"the plan in run.json {plan.noise_multiplier}"
            )
        self.ledger.check_fits(plan.fits)
        return "the ledger charges what the plan in run.json costs"

    def _is_choice(self) -> bool:
        """Whether this is a choice of `assay tune`: its ledger has one entry for all trials, whose number is secret."""
        return self.spec is not None and bool(importlib.import_module("assay.training.inputs").is_choice(self.spec))

    def _epsilon(self) -> str | None:
        if self.record is None or self.ledger is None:
            return None
        _check_figures(self.directory, self.record, self.ledger)
        facts, said = self.record["epsilon"], float(self.record["epsilon"]["verified"])
        spent = self.ledger.epsilon()
        if not _same(said, spent) and _same_versions(self.record):
            raise AssayError(f"record.json says ε = {_said(said)}; the ledger gives {_said(spent)}, which is less")
        charged = self.record.get("steps_charged")
        if charged not in (None, self.ledger.total_steps) and not self._is_choice():
            raise AssayError(
                f"record.json says that {charged} steps were charged, the ledger {self.ledger.total_steps}"
            )
        points = facts.get("curve", ())
        # all at once, as the record was made: the bound at one δ depends a little on the others asked for
        gives = epsilon_curve(self.ledger.event(), [point["delta"] for point in points], self.ledger.adjacency)
        for point, (delta, least) in zip(points, gives, strict=True):
            if not float(point["epsilon"]) >= least * (1 - _TOLERANCE):
                raise AssayError(
                    f"record.json says ε = {point['epsilon']} at δ = {delta:g}; the ledger gives {_said(least)}"
                )
        _check_tradeoff(facts, self.ledger, _TOLERANCE)
        return f"the record's {_said(said)} is what the ledger gives: {_said(spent)} at δ = {self.ledger.delta:g}"

    def _statement(self) -> str | None:
        if self.record is None:
            return None
        text = self.directory.read_statement(self.record)
        check_statement(self.directory, self.record, text)
        return self._same_text(self.directory.statement, text, statement(_kinds().complete_record(self.directory)))

    def _card(self) -> str | None:
        """That the model card says what record and statement say."""
        if self.record is None or self.directory.card.name not in self.record.get("files", {}):
            return None
        text = self.directory.read_card(self.record)
        return self._same_text(self.directory.card, text, card(_kinds().complete_record(self.directory)))

    def _same_text(self, path: Path, text: str, whole: str) -> str:
        """That a text of the run is what its record gives. Other sources of Assay may have chosen other words."""
        assert self.record is not None
        if text == whole:
            return "says what the record says, word for word"
        if _figures(text) != _figures(whole):
            raise AssayError(f"{path} says other figures than {self.directory.record}")
        if _same_versions(self.record) and self.record["environment"].get("commit") == commit():
            raise AssayError(f"{path} does not say what {self.directory.record} gives: somebody has changed its words")
        return "has the figures of the record; the words differ from those that this version of Assay writes"

    def _clients(self) -> str | None:
        """That no client's own ledger has spent more than the run says."""
        if self.epsilon is None:
            return None
        paths = sorted((self.directory.path / signing.CLIENTS).glob("*.jsonl"))
        most = 0.0
        for path in paths:
            ledger = read_ledger(path)
            most = max(most, 0.0 if ledger is None else ledger.epsilon())
            if most > self.epsilon * (1 + _TOLERANCE):
                raise AssayError(f"{path} has spent ε = {_said(most)}, more than the run's {_said(self.epsilon)}")
        return f"{len(paths)} ledgers of clients are whole; the largest ε among them is {_said(most)}"

    def _earlier(self) -> str:
        """What replaced runs spent. It decides nothing about this run, and is shown beside it."""
        spent = []
        for path in sorted(self.directory.earlier.glob("*.jsonl")):
            ledger = read_ledger(path)
            if ledger is not None:
                spent.append(f"ε = {_said(ledger.epsilon())} at δ = {ledger.delta:g}")
        return f"{len(spent)} earlier runs here stay spent: {', '.join(spent)}" if spent else "none has spent anything"


def _kinds() -> Any:
    """The kinds of runs.

    They stand in a package that builds on this one, and are found when a run is read, as methods are.
    """
    return importlib.import_module("assay.federated.kinds")


def _check_figures(directory: RunDirectory, record: Mapping[str, Any], ledger: Ledger) -> None:
    """`AssayError` where the record's ε is smaller than the ledger's, or is for another δ or other neighbours."""
    facts = record["epsilon"]
    if facts["delta"] != ledger.delta or facts.get("adjacency", ledger.adjacency.value) != ledger.adjacency.value:
        raise AssayError(
            f"{directory.record} is about δ = {facts['delta']:g}, {facts.get('adjacency')}; "
            f"{directory.ledger} about δ = {ledger.delta:g}, {ledger.adjacency.value}"
        )
    said, spent = float(facts["verified"]), ledger.epsilon()
    if not said >= spent * (1 - _TOLERANCE):
        raise AssayError(
            f"{directory.record} says ε = {_said(said)}, but {directory.ledger} gives ε = {_said(spent)} at "
            f"δ = {ledger.delta:g}: do not rely on this record or its statement"
        )


def _figures(text: str) -> list[str]:
    """The lines of a statement that hold its ε: the headline and the tables."""
    return [line for line in text.splitlines() if line.startswith("|") or _HEADLINE.search(line)]


def _same_versions(record: Mapping[str, Any]) -> bool:
    """Whether the record was made by the accountant that is installed here."""
    made = record.get("environment", {})
    return bool(made.get("assay") == version("assay-dp") and made.get("dp_accounting") == version("dp-accounting"))


def _same(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-9)


def _said(value: float) -> str:
    return "∞" if math.isinf(value) else at_most(value)


def _check_tradeoff(facts: Mapping[str, Any], ledger: Ledger, tolerance: float) -> None:
    """Recompute the trade-off curve from the ledger, which must not give more than the record says.

    Args:
        facts: The record's `epsilon`. Records of earlier versions have no `tradeoff`, and nothing is compared.
        ledger: What was charged.
        tolerance: How far figures may differ by rounding, relative.

    Raises:
        AssayError: The ledger gives more.
    """
    said = facts.get("tradeoff")
    if not said:
        return
    rates = [float(row["false_positives"]) for row in said["rates"]]
    gives = tradeoff(ledger.event(), ledger.delta, ledger.adjacency, rates)
    for row, (rate, least) in zip(said["rates"], gives.rates, strict=True):
        if not float(row["true_positives"]) >= least * (1 - tolerance):
            raise AssayError(
                f"record.json says that an attacker with {percent(rate)} false alarms finds at most "
                f"{percent(float(row['true_positives']))}; the ledger gives {percent(least)}"
            )
    if said["mu"] is not None and not (gives.mu is not None and float(said["mu"]) >= gives.mu * (1 - tolerance)):
        raise AssayError(f"record.json says μ = {said['mu']}; the ledger gives {gives.mu}")
