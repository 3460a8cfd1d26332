"""The directory of a run.

    run.json            what was asked for; enough to resume
    ledger.jsonl        what has been spent; written first, never taken away
    stage.safetensors   what was released before training, if the method does that (and relevance.png, a picture of it)
    records.safetensors while unfinished: what of it only going on needs, such as noisy records
    checkpoint.safetensors   while unfinished: model, optimizer, step, history
    UNFINISHED.txt      while unfinished: says so, and how to resume
    ledgers/            if --force replaced earlier runs here: what those had spent; never deleted
    audits.json         if asked for: audits that trained on the records again; for their holder, covered by no ε
    rounds/             of a federated run, if asked for: the models after some of its rounds
    model.safetensors, statement.md, record.json   when finished

`record.json` is written last: a directory that has it is complete.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay._util.files import lock, replace_json, replace_text, sync_folder
from assay.errors import AssayError, ConfigError

SPEC_SCHEMA = "assay.run/1"
RECORD_SCHEMA = "assay.record/1"


@dataclass(frozen=True)
class RunDirectory:
    """Names and states of a run's files."""

    path: Path

    @property
    def spec(self) -> Path:
        """What was asked for."""
        return self.path / "run.json"

    @property
    def ledger(self) -> Path:
        """What has been spent."""
        return self.path / "ledger.jsonl"

    @property
    def stage(self) -> Path:
        """What the method's stage released before training, if it has one."""
        return self.path / "stage.safetensors"

    @property
    def records(self) -> Path:
        """What of that release only an unfinished run needs."""
        return self.path / "records.safetensors"

    @property
    def checkpoint(self) -> Path:
        """Where to go on."""
        return self.path / "checkpoint.safetensors"

    @property
    def record(self) -> Path:
        """The finished run, for programs."""
        return self.path / "record.json"

    @property
    def statement(self) -> Path:
        """The finished run, for people."""
        return self.path / "statement.md"

    @property
    def model(self) -> Path:
        """The trained parameters."""
        return self.path / "model.safetensors"

    @property
    def kept_models(self) -> Path:
        """Models on the way, by round, of a federated run that was asked to keep some."""
        return self.path / "rounds"

    @property
    def aside(self) -> Path:
        """Audits that trained on the records again: for their holder, covered by no ε."""
        return self.path / "audits.json"

    @property
    def earlier(self) -> Path:
        """The ledgers of runs that were replaced here, numbered from 1: what they spent stays spent."""
        return self.path / "ledgers"

    @property
    def notice(self) -> Path:
        """Says that the run is unfinished."""
        return self.path / "UNFINISHED.txt"

    @property
    def finished(self) -> bool:
        """Whether everything is there."""
        return self.record.exists()

    @classmethod
    def create(cls, path: Path, spec: dict[str, Any], *, force: bool = False) -> RunDirectory:
        """A new run's directory. An existing one is refused; with `force` an earlier *run* is replaced, nothing else
        is ever deleted. The ledgers of all runs that were replaced stay, in `earlier`.
        """
        run = cls(path)
        if run._replaces(force=force):
            run._clear()
        path.mkdir(parents=True, exist_ok=True)
        replace_json(run.spec, {"schema": SPEC_SCHEMA, **spec})
        replace_text(
            run.notice,
            f"This run is unfinished. Resume it with\n\n    assay resume {path}\n\nUntil then its privacy cost is what ledger.jsonl says, and it has no statement.\n",
        )
        return run

    def _replaces(self, *, force: bool) -> bool:
        """Refuse a directory that is not free for a new run; whether there is an earlier one to replace."""
        path = self.path
        if path.is_file():
            raise ConfigError("out", str(path), "a directory; there is a file of that name")
        if not path.exists() or all(there == self.earlier for there in path.iterdir()):
            return False
        if not self.spec.exists():
            raise ConfigError("out", str(path), "a new or empty directory; this one holds other files")
        if not force:
            hint = (
                "finished; use another name, or --force to replace it"
                if self.finished
                else f"unfinished; assay resume {path}, or --force to replace it"
            )
            raise ConfigError("out", str(path), f"a new or empty directory; a run is there already, {hint}")
        self._check_idle()
        return True

    def _clear(self) -> None:
        """Delete the run that is here, except for what says what it spent, and what those before it did.

        At every moment the directory is a run's, or holds ledgers only, and no ledger is without its name.
        """
        clients = self.path / "clients"  # of a federated run: a ledger for each client
        for path in self.path.iterdir():
            if path in (self.spec, self.ledger, self.earlier, clients):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.earlier.mkdir(exist_ok=True)
        taken = [int(path.name[:3]) for path in self.earlier.iterdir() if path.name[:3].isdecimal()]
        number = max(taken, default=0) + 1
        for path, name in ((clients, f"{number:03d}.clients"), (self.ledger, f"{number:03d}.jsonl")):
            if path.exists():
                path.rename(self.earlier / name)
        sync_folder(self.earlier)
        self.spec.unlink()

    def _check_idle(self) -> None:
        """Refuse to take its directory from under a run that is at work: it would go on charging a ledger that nobody reads."""
        if self.ledger.exists():
            with self.ledger.open("rb") as file:
                if not lock(file):
                    raise AssayError(f"a run is at work in {self.path}: stop it first, or use another name")

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run."""
        run = cls(path)
        if not run.spec.exists():
            raise ConfigError("run", str(path), "the directory of a run (it holds a run.json)")
        return run

    def read_spec(self) -> dict[str, Any]:
        """What was asked for."""
        return _read(self.spec, SPEC_SCHEMA)

    def read_record(self) -> dict[str, Any]:
        """The record of a finished run."""
        if not self.finished:
            raise AssayError(
                f"{self.path} is unfinished: it has no record yet. Resume it with: assay resume {self.path}"
            )
        return read_record(self.record)

    def finish(self) -> None:
        """Everything is there: take away what said otherwise."""
        self.notice.unlink(missing_ok=True)
        self.checkpoint.unlink(missing_ok=True)
        self.records.unlink(missing_ok=True)


def read_record(path: Path) -> dict[str, Any]:
    """What a record.json holds, wherever it was copied to.

    Args:
        path: The file.

    Raises:
        AssayError: It is damaged, or not the record of a run.
    """
    return _read(path, RECORD_SCHEMA)


def _read(path: Path, schema: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise AssayError(f"{path} is damaged: {error}") from error
    if not isinstance(data, dict):
        raise AssayError(f"{path} is damaged: it holds no JSON object")
    if data.get("schema") != schema:
        raise AssayError(f"{path} has schema {data.get('schema')!r}; this version of Assay reads {schema!r}")
    return data
