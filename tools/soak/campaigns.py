"""What is tried, and what must hold: no ledger entry is lost, no ε becomes smaller, no seeded run ends with other bits.

Every campaign is a function of a random source and a folder of its own. It returns what happened, in a word or two, and
raises `Violation` where a promise was broken.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tools.soak import child
from tools.soak.child import CRASHED, Ended, run

from assay import AssayError, runs
from assay.accounting.ledger import read_ledger
from assay.federated import wire

TRAIN = ("train", "--data", "digits", "--model", "logistic", "--epochs", 1, "--batch-size", 128, "--epsilon", 3)
STAGED = (*TRAIN, "--center", "mean:noise=40")
FEDERATE = ("federate", "--data", "digits", "--model", "logistic", "--clients", 12, "--per-round", 4, "--rounds", 3,
            "--epsilon", 6, "--delta", 1e-2)  # fmt: skip
LOCAL = (*FEDERATE, "--noise", "local")
COMMANDS = {"train": TRAIN, "train with a stage": STAGED, "federate": FEDERATE, "federate, local": LOCAL}
KNOWN = (0, 1, 2, 3)  # exit codes that mean something


class Violation(Exception):  # noqa: N818 - not an error of this tool, but of what it tries
    """A promise that did not hold."""


class Trials:
    """What the campaigns share: whole runs to compare with, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[str, Path] = {}

    def whole(self, name: str, *, seeded: bool = True, keep_checkpoint: bool = False) -> Path:
        """A run of this command that nothing happened to; with `keep_checkpoint` one that was asked to stop midway."""
        key = f"{name}, {seeded}, {keep_checkpoint}"
        if key not in self._whole:
            folder = self._folder / f"whole-{len(self._whole)}"
            folder.mkdir()
            words = (*COMMANDS[name], *(("--seed", 1) if seeded else ()), "--out", "run")
            if keep_checkpoint:
                _stop_midway(folder, words)
            else:
                ended = run(folder, *words)
                _require(ended.code == 0, f"an undisturbed run failed: {ended.out}")
            self._whole[key] = folder / "run"
        return self._whole[key]


def _stop_midway(folder: Path, words: tuple[object, ...]) -> None:
    """A run with a checkpoint, killed at one of its durable calls."""
    for number in range(12, 60):
        shutil.rmtree(folder / "run", ignore_errors=True)
        run(folder, *words, trouble=child.at_durable_call(number, child.die, before=False))
        if (folder / "run/checkpoint.safetensors").exists() and not (folder / "run/record.json").exists():
            return
    raise Violation("no durable call left a checkpoint")


def _require(holds: bool, said: str) -> None:
    if not holds:
        raise Violation(said)


def _charged(path: Path) -> int:
    """Steps by the ledger of a run; a file that no charge has reached yet has none."""
    ledger = read_ledger(path / "ledger.jsonl")
    return 0 if ledger is None else ledger.total_steps


def _clients(path: Path) -> dict[str, int]:
    """Steps by the ledgers of a federated run's clients."""
    found = {file.name: read_ledger(file) for file in (path / "clients").glob("*.jsonl")}
    return {name: 0 if ledger is None else ledger.total_steps for name, ledger in found.items()}


def _check_finished(path: Path, whole: Path | None) -> None:
    found = runs.verify(path)
    _require(found.holds, f"a finished run does not verify: {found.failed}")
    left = [file.name for file in path.iterdir() if file.name.endswith(".part")]
    _require(not left, f"files of killed processes are left: {left}")
    if whole is None:
        return
    model = "model.safetensors"
    _require((path / model).read_bytes() == (whole / model).read_bytes(), "a seeded run ended with other bits")
    ours, theirs = (json.loads((p / "record.json").read_text()) for p in (path, whole))
    _require(ours["epsilon"] == theirs["epsilon"], f"a seeded run ended with ε {ours['epsilon']['verified']}")


def _interrupted(
    coins: random.Random, folder: Path, trials: Trials, disturb: Callable[[], dict[str, object]], *, most: int
) -> str:
    """Begin a run, disturb it and its resumes up to `most` times, then let it end; check after every one."""
    name = coins.choice(list(COMMANDS))
    seeded = coins.random() < 0.5
    words = (*COMMANDS[name], *(("--seed", 1) if seeded else ()), "--out", "run")
    whole = trials.whole(name) if seeded else None
    path, charged, clients, released, times = folder / "run", 0, {}, 0, 0  # type: ignore[var-annotated]
    for _ in range(most):
        begun = (path / "run.json").exists()
        ended = run(folder, *(("resume", "run") if begun else words), **disturb())  # type: ignore[arg-type]
        _require(ended.code != CRASHED, f"{name}: a traceback:\n{ended.out}")
        times += ended.code != 0
        now = _charged(path)
        released = ended.steps if seeded else released + ended.steps
        _require(now >= charged, f"{name}: {charged} steps were charged, now {now}")
        if name.startswith("train"):
            _require(now >= released, f"{name}: {released} steps were released, {now} charged")
        theirs = _clients(path)
        lost = {client for client, steps in clients.items() if theirs.get(client, -1) < steps}
        _require(not lost, f"{name}: clients {lost} lost what they had charged")
        charged, clients = now, theirs
        if (path / "record.json").exists():
            break
    ended = run(folder, *(("resume", "run") if (path / "run.json").exists() else words))
    _require(ended.code in (0, 3), f"{name}: could not be resumed:\n{ended.out}")
    _require(_charged(path) >= charged, f"{name}: charges were lost by the last resume")
    _check_finished(path, whole)
    return f"{times} times {'seeded' if seeded else 'unseeded'}"


def kill_at_calls(coins: random.Random, folder: Path, trials: Trials) -> str:
    """kill -9 before or after a random durable call, up to three times in a run."""

    def disturb() -> dict[str, object]:
        before = coins.random() < 0.5
        return {"trouble": child.at_durable_call(coins.randrange(1, 28), child.die, before=before)}

    return _interrupted(coins, folder, trials, disturb, most=coins.randrange(1, 4))


def kill_at_times(coins: random.Random, folder: Path, trials: Trials) -> str:
    """kill -9, Ctrl-C or SIGTERM at a random time, up to three times in a run."""

    def disturb() -> dict[str, object]:
        by = coins.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        return {"after": coins.uniform(0, 0.6), "by": by}

    return _interrupted(coins, folder, trials, disturb, most=coins.randrange(1, 4))


def fill_disk(coins: random.Random, folder: Path, trials: Trials) -> str:
    """A disk that is full, or fails, at a random durable call; or files that may not grow."""

    def disturb() -> dict[str, object]:
        how = coins.randrange(3)
        if how == 0:
            return {"trouble": child.small_files(coins.randrange(64, 20_000))}
        what = child.no_room if how == 1 else child.broken_disk
        return {"trouble": child.at_durable_call(coins.randrange(1, 28), what, before=True)}

    return _interrupted(coins, folder, trials, disturb, most=coins.randrange(1, 3))


def damage(coins: random.Random, folder: Path, trials: Trials) -> str:
    """Damage a random file of a finished or unfinished run: each command refuses it, or shows no smaller ε."""
    name = coins.choice(list(COMMANDS))
    finished = coins.random() < 0.5
    seeded = coins.random() < 0.5
    whole = trials.whole(name, seeded=seeded, keep_checkpoint=not finished)
    path = shutil.copytree(whole, folder / "run")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    file = coins.choice(files)
    data = file.read_bytes()
    changed = child.mangled(data, coins)
    deleted = coins.random() < 0.1
    file.unlink() if deleted else file.write_bytes(changed)
    where = f"{name}, {file.relative_to(path)}{' deleted' if deleted else ''}"
    true = read_ledger(whole / "ledger.jsonl")
    assert true is not None
    spent, charged = true.epsilon(), true.total_steps
    refused = 0
    for words in (("show", "run", "--json"), ("verify", "run"), ("report", "run"), ("resume", "run")):
        ended = run(folder, *words)
        _require(ended.code in KNOWN, f"{where}: assay {words[0]} ended with {ended.code}:\n{ended.out}")
        refused += ended.code != 0
        if words[0] == "show" and ended.code == 0 and finished:
            _check_shown(ended, spent, where)
    if not finished and (path / "record.json").exists():
        _check_resumed(path, charged, spent, where, file, deleted=deleted and file.name in ("ledger.jsonl", "run.json"))
    return "refused" if refused else "harmless"


def _check_shown(ended: Ended, spent: float, where: str) -> None:
    """ε in the record that was printed; without its record a run is an unfinished one, shown in words."""
    if "is unfinished" in ended.out:
        found = re.search(r"it has spent ε = ([0-9.e+-]+)", ended.out)
        _require(found is not None, f"{where}: no ε is shown:\n{ended.out}")
        shown = float(found[1]) if found else 0.0
    else:
        shown = float(json.loads(ended.out[ended.out.index("{") :])["epsilon"]["verified"])
    _require(shown >= spent * (1 - 1e-4), f"{where}: ε = {shown} is shown, {spent} was spent")


def _check_resumed(path: Path, charged: int, spent: float, where: str, file: Path, *, deleted: bool) -> None:
    """A run that was resumed in spite of damage must know all that was spent."""
    record = json.loads((path / "record.json").read_text())
    _require(not deleted, f"{where}: the run was resumed without it")
    _require(record["steps_charged"] >= charged, f"{where}: {charged} steps were charged, the record says fewer")
    _require(float(record["epsilon"]["verified"]) >= spent * (1 - 1e-4), f"{where}: ε became smaller")
    unseen = [check for check in runs.verify(path).failed if file.name not in check.said]  # what nobody had to read
    _require(not unseen, f"{where}: {unseen}")


_VALUES = (
    "",
    "-1",
    "0",
    "nan",
    "inf",
    "1e400",
    "1e-400",
    "none",
    "[x]",
    "../..",
    "a:b=c,d",
    "ε",
    "\udcff",
    "9" * 40,
    "0.5",
    "3",
    "--",
    "true",
)
_OPTIONS = (
    *("epsilon", "delta", "epochs", "steps", "batch-size", "lr", "seed", "clip", "noise-multiplier", "method", "model"),
    *("data", "sampling", "noise-schedule", "center", "micro-batch", "precision", "device", "records", "validation"),
    *("features", "preset", "encode", "denoise", "adjacency", "momentum", "ema", "tail", "max-physical-batch", "init"),
    *("train-layers", "option", "variant", "unknown"),
)
_FEDERATED = (
    "epsilon",
    "delta",
    "rounds",
    "clients",
    "per-round",
    "unit",
    "noise",
    "partition",
    "clip",
    "method",
    "seed",
    "min-answers",
    "engine",
)


def fuzz_commands(coins: random.Random, folder: Path, trials: Trials) -> str:
    """A command line with values that make no sense: refused in words, without touching a run that is there."""
    whole = trials.whole("train")
    path = shutil.copytree(whole, folder / "run")
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    base, names = coins.choice(((TRAIN, _OPTIONS), (FEDERATE, _FEDERATED)))
    words: list[object] = [*base, "--out", coins.choice(("run", "run/run.json", "new", "run/below", "/dev/null/x"))]
    for _ in range(coins.randrange(1, 3)):
        words += [f"--{coins.choice(names)}", coins.choice(_VALUES)]
    if coins.random() < 0.3:
        commands = "show resume audit attack verify report sign keys epsilon tune compare"
        targets = ("run", "none", "", "run/record.json", "run/ledger.jsonl", "/dev/null")
        words = [coins.choice(commands.split()), coins.choice(targets), *words[-2:]]
    if coins.random() < 0.1:
        words = [word for word in words if coins.random() < 0.8]
    ended = run(folder, *words)
    said = " ".join(map(repr, map(str, words)))
    _require(ended.code in KNOWN, f"assay {said} ended with {ended.code}:\n{ended.out}")
    if words and words[0] in ("train", "federate"):
        after = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
        _require(after == before, f"assay {said} changed a run that was there")
    return "refused" if ended.code else "taken"


def fuzz_messages(coins: random.Random, folder: Path, trials: Trials) -> str:  # noqa: ARG001
    """A federated run in which messages arrive garbled: it ends, and what it says holds."""
    name = coins.choice(("federate", "federate, local"))
    ended = run(folder, *COMMANDS[name], "--out", "run", trouble=child.garbled(coins.randrange(2**32), coins.random()))
    _require(ended.code in KNOWN, f"{name}, garbled messages: {ended.code}:\n{ended.out}")
    if (folder / "run/record.json").exists():
        _check_finished(folder / "run", None)
    return "ended" if ended.code == 0 else "refused"


def fuzz_wire(coins: random.Random, folder: Path, trials: Trials) -> str:  # noqa: ARG001
    """A thousand messages of random damage, read alone: each is refused in words, or is exactly what it says."""
    schema = wire.Schema(arrays={"x": ("float32", 5), "n": ("uint16", 2)}, fields={"round": int, "loss": float})
    arrays = {"x": np.arange(5, dtype=np.float32), "n": np.arange(2, dtype=np.uint16)}
    whole = wire.encode("answer", {"round": 3, "loss": 0.5}, arrays)
    refused = 0
    for _ in range(1000):
        data = child.mangled(whole, coins)
        try:
            found = wire.decode(data, "answer", schema)
        except AssayError:
            refused += 1
            continue
        _require(bool(np.isfinite(found.arrays["x"]).all()), f"a number that is not finite was taken: {data!r}")
        again = wire.decode(wire.encode("answer", found.fields, found.arrays), "answer", schema)
        _require(again.fields == found.fields, f"a message is read in two ways: {data!r}")
    return f"{refused // 100}00 of 1000 refused"


CAMPAIGNS: dict[str, Callable[[random.Random, Path, Trials], str]] = {
    "kill at durable calls": kill_at_calls,
    "kill at times": kill_at_times,
    "full and failing disks": fill_disk,
    "damaged files": damage,
    "command lines": fuzz_commands,
    "garbled messages": fuzz_messages,
    "messages by themselves": fuzz_wire,
}
