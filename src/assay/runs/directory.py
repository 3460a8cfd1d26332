"""The directory of a run.

    run.json            what was asked for; enough to resume
    ledger.jsonl        what has been spent; written first, never deleted
    stage.safetensors   what was released before training, if the method does that (and relevance.png, a picture of it)
    records.safetensors while unfinished: what of that release only training needs, such as noisy records
    checkpoint.safetensors   while unfinished: model, optimizer, step, history
    UNFINISHED.txt      while unfinished: says so, and how to resume
    estimate.jsonl, schema.json   before run.json is there: what an estimate of a table's columns has spent, and showed
    ledgers/            if --force replaced earlier runs here: what those had spent and were asked for; never deleted
    audits.json         if asked for: audits that trained on the records again; for their holder, covered by no ε
    rounds/             of a federated run, if asked for: the models after some of its rounds
    model.safetensors, statement.md, record.json   when finished
    README.md           when finished: the model card; .gitignore keeps back what is for the holder of the records only

`record.json` is written last: a directory that has it is complete.

Every file shows damage when it is read. `run.json` and `record.json` have a digest of their content, and so has each
line of the ledger. The header of the ledger and the checkpoint name the digest of `run.json`, and the record has the
SHA-256 of all other files. Earlier versions wrote no digest into `run.json`; their runs are read without.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._util import seals
from assay._util.files import (
    alone_in,
    create_json,
    is_abandoned,
    lock,
    make_folder,
    remove_abandoned,
    replace_json,
    replace_text,
    sync_folder,
)
from assay.accounting.epsilon import Adjacency
from assay.accounting.ledger import Ledger, LedgerError, read_ledger
from assay.accounting.remembered import Remembered, of_run
from assay.errors import AssayError, ConfigError, nearest
from assay.runs import schema

if TYPE_CHECKING:
    from torch import Tensor


ROWS = "rows"
"""A digest of the rows of an estimate, until its run is finished. Nobody else may see it: it has no key, and would tell
whoever can guess a row whether the guess is right."""


class _File:
    """A file or a folder of a run, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunDirectory, _: type[RunDirectory]) -> Path:
        return run.path / self._name


def no_run(path: Path) -> ConfigError:
    """The error about a path at which there is no run: it names the runs that are near."""
    inside = sorted(str(spec.parent) for spec in path.glob("*/run.json"))
    hint = nearest(path.name, (spec.parent.name for spec in path.parent.glob("*/run.json")))
    below = f"; below it are {', '.join(inside[:8])}{' and others' if len(inside) > 8 else ''}" if inside else ""
    return ConfigError("run", str(path), f"{hint}the directory of a run (it holds a run.json){below}")


@dataclass(frozen=True)
class RunDirectory:
    """Names and states of a run's files."""

    path: Path

    spec = _File("run.json")
    """What was asked for."""
    ledger = _File("ledger.jsonl")
    """What has been spent."""
    stage = _File("stage.safetensors")
    """What the method's stage released before training, if it has one."""
    records = _File("records.safetensors")
    """What only an unfinished run needs of that release."""
    checkpoint = _File("checkpoint.safetensors")
    """Where to continue."""
    record = _File("record.json")
    """The finished run, for programs."""
    statement = _File("statement.md")
    """The finished run, for people."""
    card = _File("README.md")
    """The finished run as a model card, with its statement."""
    ignored = _File(".gitignore")
    """What must stay here when the directory is pushed somewhere."""
    model = _File("model.safetensors")
    """The trained parameters."""
    kept_models = _File("rounds")
    """Intermediate models by round, of a federated run that was asked to keep some."""
    aside = _File("audits.json")
    """Audits that trained on the records again: for their holder, covered by no ε."""
    earlier = _File("ledgers")
    """The ledgers of runs that were replaced here, numbered from 1: what they spent stays spent."""
    estimate_ledger = _File("estimate.jsonl")
    """What an estimate of a table's columns has spent, until the run's own ledger holds it."""
    estimate = _File("schema.json")
    """What that estimate showed, until `run.json` holds it."""
    notice = _File("UNFINISHED.txt")
    """Says that the run is unfinished."""

    @property
    def finished(self) -> bool:
        """Whether everything is there."""
        return self.record.exists()

    @property
    def texts(self) -> tuple[Path, Path]:
        """What is made from the record, and written again whenever the record is."""
        return self.statement, self.card

    def next_of(self, text: Path) -> Path:
        """Where one of `texts` is written before the record that it belongs to; it takes its place after it."""
        return self.path / f".{text.name}.next"

    @property
    def resume_command(self) -> str:
        """What continues the run: a shell command, or a call in Python for a run that was made there."""
        with contextlib.suppress(AssayError, OSError):  # a damaged run.json is reported by whoever resumes
            spec = self.read_spec()
            if "resume_with" in spec:
                return str(spec["resume_with"])
            if not schema.is_by_name(spec):
                if spec.get("kind") == schema.FEDERATED:
                    return f"assay.federated.server.resume(model, carrier, {str(self.path)!r}) from Python"
                return f"assay.resume(model, train, {str(self.path)!r}) from Python"
        return f"assay resume {shlex.quote(str(self.path))}"

    @classmethod
    def create(cls, path: Path, spec: dict[str, Any], *, force: bool = False) -> RunDirectory:
        """Make a new run's directory. Of several callers at the same time, one gets it.

        Args:
            path: A directory that is new or empty.
            spec: What `run.json` will hold.
            force: Replace an earlier *run*; nothing else is ever deleted. Its ledger stays, in `earlier`.

        Returns:
            The directory.

        Raises:
            ConfigError: The directory is not free for a new run.
            AssayError: A run is at work there.
        """
        run = cls(path)
        if not path.is_file():
            make_folder(path.absolute().parent)
        with alone_in(path.absolute().parent):  # nobody else may come between looking and writing run.json
            if run._replaces(force=force):
                run._clear()
            make_folder(path)
            remove_abandoned(path)
            columns = (spec.get("plan") or {}).get("columns")
            if columns is None:  # the run does not pay for an estimate that was made here
                run.set_estimate_aside()
            wanted = seals.sealed(
                {"schema": schema.SPEC_SCHEMA, **spec, "made_by": "names" if schema.is_by_name(spec) else "python"}
            )
            create_json(run.spec, wanted)
            if run.read_spec() != wanted:  # where folders cannot be locked
                raise ConfigError("out", str(path), "a new or empty directory; another run has just begun there")
            run.forget()
        replace_text(
            run.notice,
            f"This run is unfinished. Resume it with\n\n    {run.resume_command}\n\n"
            "Until then it has no statement. If it is never resumed, it has spent the ε of its whole plan;\n"
            "assay show says how much.\n",
        )
        return run

    @classmethod
    def begin(cls, path: Path, spec: dict[str, Any], *, force: bool, again: bool) -> tuple[RunDirectory, bool]:
        """The directory of a run that begins, and whether that run is finished.

        Args:
            path: As for `create`.
            spec: As for `create`.
            force: As for `create`.
            again: Ranks were started again: the directory may be that of the run that they began.
        """
        found = cls(path)
        if again and found.spec.exists():
            there = found.read_spec()
            if {key: there.get(key) for key in spec} == json.loads(json.dumps(spec)):
                return found, found.finished
        return cls.create(path, spec, force=force), False

    def _replaces(self, *, force: bool) -> bool:
        """Refuse a directory that is not free for a new run; say whether there is an earlier one to replace."""
        path = self.path
        if path.is_file():
            raise ConfigError("out", str(path), "a directory; there is a file of that name")
        free = (self.earlier, self.estimate_ledger, self.estimate)
        if not path.exists() or all(is_abandoned(entry) or entry in free for entry in path.iterdir()):
            return False
        if not self.spec.exists():
            raise ConfigError("out", str(path), "a new or empty directory; this one holds other files")
        if not force:
            hint = (
                "finished; use another name, or --force to replace it"
                if self.finished
                else f"unfinished; {self.resume_command}, or --force to replace it"
            )
            raise ConfigError("out", str(path), f"a new or empty directory; a run is there already, {hint}")
        self._check_idle(self.ledger)
        return True

    def check_free(self, *, force: bool) -> None:
        """Refuse a directory that `create` would refuse.

        Raises:
            ConfigError: It is not free for a new run.
            AssayError: A run is at work there.
        """
        self._replaces(force=force)

    def set_estimate_aside(self) -> None:
        """Put the ledger of an estimate among those of earlier runs: what it spent stays spent.

        Raises:
            AssayError: The estimate is being made.
        """
        if self.estimate_ledger.exists():
            self._check_idle(self.estimate_ledger)
            made = read_ledger(self.estimate_ledger)
            if made is None or made.is_empty:
                self.estimate_ledger.unlink()
            else:
                name = self._next_earlier(".jsonl")
                with contextlib.suppress(AssayError):  # what is damaged says nothing
                    if (asked := self.read_estimate()) is not None:
                        known = {key: asked[key] for key in asked if key not in (ROWS, seals.FIELD)}
                        replace_json(name.with_suffix(".json"), seals.sealed(known))
                self.estimate_ledger.rename(name)
                sync_folder(self.earlier)
        self.estimate.unlink(missing_ok=True)

    def unpaid_estimate(self) -> Ledger | None:
        """The ledger of an estimate of which the run's own ledger does not hold every charge; None if it does.

        Raises:
            LedgerError: One of them is damaged.
        """
        made = read_ledger(self.estimate_ledger)
        if made is None or made.is_empty:
            return None
        own = read_ledger(self.ledger, self.digest() if self.spec.exists() else None)
        charges = made.charges()
        return None if own is not None and len(charges) == 1 and own.paid(charges[0].event) else made

    def read_estimate(self) -> dict[str, Any] | None:
        """What an estimate of columns has showed, and for which records; None where there is none, or no longer.

        Raises:
            AssayError: The file is damaged.
        """
        return _read_sealed(self.estimate) if self.estimate.exists() else None

    def replaced(self) -> dict[str, dict[str, Any]]:
        """What runs and estimates that were replaced here were asked for, by the digest that their ledgers name.

        Left out are those whose file is damaged, or was not kept by an earlier version.
        """
        found = {}
        for path in sorted(self.earlier.glob("*.json")):
            with contextlib.suppress(AssayError, OSError):
                asked = _read_sealed(path)
                found[str(asked.get("request", asked[seals.FIELD]))] = asked
        return found

    def _next_earlier(self, suffix: str) -> Path:
        """A name for one more ledger of an earlier run."""
        self.earlier.mkdir(exist_ok=True)
        numbers = [path.name.partition(".")[0] for path in self.earlier.iterdir()]
        taken = [int(number) for number in numbers if number.isdecimal()]
        return self.earlier / f"{max(taken, default=0) + 1:03d}{suffix}"

    def _clear(self) -> None:
        """Delete the run that is here, except for its ledgers and those of runs before it.

        At every moment the directory is a run's, or holds ledgers only, and every ledger has its name.
        """
        clients = self.path / "clients"  # of a federated run: a ledger for each client
        for path in self.path.iterdir():
            if path in (self.spec, self.ledger, self.earlier, self.estimate_ledger, self.estimate, clients):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        kinds = {clients: ".clients", self.ledger: ".jsonl", self.spec: ".json"}
        for path, name in [(path, self._next_earlier(suffix)) for path, suffix in kinds.items()]:
            if path.exists():
                path.rename(name)
        sync_folder(self.earlier)

    def _check_idle(self, ledger: Path) -> None:
        """Refuse to replace a run that is at work: it would keep charging a ledger that nobody reads."""
        if ledger.exists():
            with ledger.open("rb") as file:
                if not lock(file):
                    raise AssayError(f"a run is at work in {self.path}: stop it first, or use another name")

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open an existing run.

        Raises:
            ConfigError: There is none in this directory.
        """
        run = cls(path)
        if not run.spec.exists():
            raise no_run(path)
        return run

    def read_spec(self) -> dict[str, Any]:
        """What was asked for.

        Raises:
            AssayError: `run.json` is damaged or of another version. Names the field.
        """
        return schema.read_spec(self.spec)

    def digest(self) -> str | None:
        """The digest of `run.json`, which the other files of the run name; None for a run of an earlier version."""
        found = self.read_spec().get(seals.FIELD)
        return None if found is None else str(found)

    def open_ledger(self, *, delta: float, adjacency: Adjacency, ceiling: float | None) -> Ledger:
        """The ledger of this run.

        Raises:
            LedgerError: It is damaged, or it is not the ledger of this `run.json`.
        """
        run = self.digest()
        ledger = Ledger(self.ledger, delta=delta, adjacency=adjacency, ceiling=ceiling, run=run)
        if ledger.run != run:
            raise LedgerError(f"{self.ledger} was written for another run.json than {self.spec}, which has no digest")
        return ledger

    def lock(self, ledger: Ledger) -> None:
        """Lock the directory, by its ledger, until that is closed, and remove what killed processes left behind.

        Raises:
            LedgerError: Another process has it, or another run has begun here meanwhile.
        """
        ledger.lock()
        if ledger.run != self.digest():
            raise LedgerError(f"{self.spec} was replaced: another run has begun in {self.path}")
        for folder in (self.path, self.kept_models):
            remove_abandoned(folder)
        if (known := self._remembered()) is not None:
            known.check(ledger.heads, known.note())
            ledger.witness = known

    def _remembered(self) -> Remembered | None:
        """What the user's own state knows of the ledger; None for a run of an earlier version."""
        digest = self.digest()
        return None if digest is None else of_run(self.path, digest, self.ledger)

    def forget(self) -> None:
        """Forget how far the ledger had got: the run is finished, or begins."""
        if (known := self._remembered()) is not None:
            known.forget()

    def read_record(self) -> dict[str, Any]:
        """The record of a finished run.

        Raises:
            AssayError: There is none yet, it is damaged, or it belongs to another `run.json`. Names the field.
        """
        if not self.finished:
            raise AssayError(f"{self.path} is unfinished: it has no record yet. Resume it with: {self.resume_command}")
        record = schema.read_record(self.record)
        sealed = record["schema"] == schema.RECORD_SCHEMA
        if self.spec.exists() and (self.digest() is not None) != sealed:
            raise AssayError(f"{self.record} and {self.spec} are not of one run: only one of them has a digest")
        return record

    def check_files(self, record: Mapping[str, Any], *names: str) -> None:
        """Compare files of a finished run with its record.

        Args:
            record: The record.
            *names: The files; all that the record lists if none is named.

        Raises:
            AssayError: A file is missing or damaged.
        """
        listed = record.get("files", {})
        for name in names or listed:
            if name not in listed:
                continue  # a run of an earlier version, or one without this file
            path = self.path / name
            if not path.is_file():
                raise AssayError(f"{path} is missing: {self.record} lists it")
            if path in self.texts:
                self._read_text(path, listed[name])
            elif seals.of_file(path) != listed[name]:
                raise AssayError(f"{path} is damaged: its SHA-256 is not the one in {self.record}")

    def read_statement(self, record: Mapping[str, Any] | None = None) -> str:
        """The statement that belongs to the record of a finished run.

        Raises:
            AssayError: It is missing, not text, or not the one that the record was written with.
        """
        record = self.read_record() if record is None else record
        return self._read_text(self.statement, record.get("files", {}).get(self.statement.name))

    def read_card(self, record: Mapping[str, Any] | None = None) -> str:
        """The model card that belongs to the record of a finished run.

        Raises:
            AssayError: It is missing, not text, or not the one that the record was written with.
        """
        record = self.read_record() if record is None else record
        return self._read_text(self.card, record.get("files", {}).get(self.card.name))

    def _read_text(self, path: Path, listed: str | None) -> str:
        """One of `texts`, of which the record lists this digest; earlier versions listed none."""
        following = self.next_of(path)
        if listed is not None and following.exists() and seals.of_file(following) == listed:
            return following.read_text(encoding="utf-8")  # its writer was killed after it wrote the record
        try:
            text = path.read_bytes().decode("utf-8")
        except FileNotFoundError as error:
            raise AssayError(f"{path} is missing: the record is there without it") from error
        except UnicodeDecodeError as error:
            raise AssayError(f"{path} is damaged: {error}") from error
        if listed is not None and seals.of_file(path) != listed:
            raise AssayError(f"{path} is damaged: its SHA-256 is not the one in {self.record}")
        return text

    def read_model(self, record: Mapping[str, Any] | None = None, path: Path | None = None) -> dict[str, Tensor]:
        """The tensors of the trained model, or of a model in `kept_models`.

        Raises:
            AssayError: The file is missing, or not the one that the record lists.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        record = self.read_record() if record is None else record
        path = self.model if path is None else path
        self.check_files(record, path.relative_to(self.path).as_posix())
        try:
            return load(path.read_bytes())
        except (SafetensorError, OSError) as error:
            raise AssayError(f"{path} cannot be read: {error}") from error

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file of the run but its record and what is made from that."""
        models = sorted(self.kept_models.glob("*.safetensors"))
        files = (self.spec, self.ledger, self.stage, self.model, self.ignored, *models)
        there = [path for path in files if path.exists()]
        return {path.relative_to(self.path).as_posix(): seals.of_file(path) for path in there}

    def write_record(self, record: Mapping[str, Any], statement: str) -> dict[str, Any]:
        """Write the statement, the model card and the record, with the digests of all files of the run.

        All are written or none, whenever the process ends.

        Args:
            record: The record.
            statement: The statement that belongs to it.

        Returns:
            The record as it was written.
        """
        from assay.runs.card import IGNORED, card

        again = self.finished
        wanted = {self.statement: statement, self.card: card(record, statement)}
        if not (again and self.ignored.exists()):
            replace_text(self.ignored, IGNORED)
        targets = {text: self.next_of(text) if again else text for text in wanted}
        for text, target in targets.items():
            replace_text(target, wanted[text])
        whole: dict[str, Any] = {**record, "schema": schema.UNSEALED_RECORD}
        if self.digest() is not None:
            files = self.digests()
            files |= {text.name: seals.of_file(target) for text, target in targets.items()}
            whole = seals.sealed({**record, "schema": schema.RECORD_SCHEMA, "files": files})
        replace_json(self.record, whole)  # from here on the new texts count
        if again:
            for text, target in targets.items():
                target.replace(text)
            sync_folder(self.path)
        return whole

    def settle_texts(self) -> None:
        """Put statement and card in their places if their writer was killed after it wrote the record."""
        if not any(self.next_of(text).exists() for text in self.texts):
            return
        with contextlib.suppress(OSError), self.alone():
            files = self.read_record().get("files", {})
            for text in self.texts:
                following = self.next_of(text)
                if following.exists() and seals.of_file(following) == files.get(text.name):
                    following.replace(text)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock a finished run's record; others wait."""
        with self.spec.open("rb") as file:
            while not lock(file):
                time.sleep(0.02)
            yield

    def finish(self) -> None:
        """Delete the files that only an unfinished run has."""
        if self.unpaid_estimate() is not None:
            self.set_estimate_aside()
        for path in (self.notice, self.checkpoint, self.records, self.estimate, self.estimate_ledger):
            path.unlink(missing_ok=True)  # the run's own ledger holds what the estimate spent
        self.forget()


def _read_sealed(path: Path) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        seals.check(path, kept)
    except ValueError as error:
        raise AssayError(f"{path} is damaged: {error}") from error
    return kept
