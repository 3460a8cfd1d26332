"""Signatures of finished runs: `signature.json`, detached, by an Ed25519 key.

What is signed is a list of SHA-256 digests with ε, δ, the time and the public key, as canonical JSON: keys sorted, no
spaces, ASCII. It covers run.json, ledger, record, statement and model, and all else that the record lists; the ledgers
of clients, and those of earlier runs in the directory. It leaves out what is not published and may come later:
`attacks.json` and `audits.json`. An audit that changes record and statement makes a signature void: sign last.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay._util import seals
from assay._util.files import replace_json
from assay._util.signatures import SIGNATURE_BYTES, PrivateKey, PublicKey, read_private
from assay.errors import AssayError, ConfigError
from assay.runs import schema
from assay.runs.directory import RunDirectory

SCHEMA = "assay.signature/1"
FILE = "signature.json"
CLIENTS = "clients"
"""The folder of the clients' ledgers in a federated run."""
_SHAPE: Mapping[str, schema.Shape] = {
    "files": dict,
    "epsilon": (int, float, str),
    "delta": (int, float),
    "adjacency": str,
    "signed": str,
    "public_key": str,
    "signature": str,
}


@dataclass(frozen=True)
class Signature:
    """A signature of a run, as its file holds it.

    Attributes:
        path: The file.
        content: What it says.
    """

    path: Path
    content: Mapping[str, Any]

    @property
    def public(self) -> PublicKey:
        """The key that it names."""
        try:
            return PublicKey(bytes.fromhex(self.content["public_key"]))
        except ValueError as error:  # ConfigError is one
            raise AssayError(f"{self.path} is damaged: its field public_key is no Ed25519 public key") from error

    @property
    def epsilon(self) -> float:
        """The ε that was signed."""
        return float(self.content["epsilon"])

    @property
    def when(self) -> str:
        """When it was signed, by the signer's clock."""
        return str(self.content["signed"])

    def check(self, directory: RunDirectory, key: PublicKey | None = None) -> None:
        """Whether this signature is of exactly these files.

        Args:
            directory: The run.
            key: Who must have signed; None for whoever the signature names.

        Raises:
            AssayError: It is not. Says what differs.
        """
        if key is not None and key != self.public:
            raise AssayError(
                f"{self.path} was made with another key: {self.public.fingerprint} in place of {key.fingerprint}"
            )
        try:
            signature = base64.b64decode(self.content["signature"], validate=True)
        except binascii.Error as error:
            raise AssayError(f"{self.path} is damaged: its field signature is not in base 64") from error
        if len(signature) != SIGNATURE_BYTES or not self.public.verify(signature, _signed_bytes(self.content)):
            raise AssayError(f"{self.path} is no signature by the key {self.public.fingerprint}, or was changed since")
        there = digests(directory)
        listed = self.content["files"]
        changed = [name for name in listed if name in there and there[name] != listed[name]]
        missing, added = sorted(listed.keys() - there.keys()), sorted(there.keys() - listed.keys())
        found = {"changed": changed, "missing": missing, "added": added}
        if any(found.values()):
            said = "; ".join(f"{word}: {', '.join(names)}" for word, names in found.items() if names)
            raise AssayError(f"the run is not as it was signed ({said})")


def sign(run: Path | str, key: PrivateKey | Path | str, *, out: Path | str | None = None, force: bool = False) -> Path:
    """Sign a finished run, after checking it: what does not agree with its own ledger is not signed.

        assay.runs.sign("runs/mnist", "officer.key")

    Args:
        run: The run's directory.
        key: The private key, or its file.
        out: Where the signature goes; None for `signature.json` in the directory.
        force: Replace a signature by another key. One by the same key is always replaced.

    Returns:
        The signature's file.

    Raises:
        ConfigError: The directory is not a run's, the key is not one, or somebody else has signed already.
        AssayError: The run is unfinished, or a check of `verify` failed: the error names all that did.
        NoRoomError: The disk is full.
    """
    from assay.runs.verification import verify

    directory = RunDirectory.open(Path(run))
    signer = key if isinstance(key, PrivateKey) else read_private(key)
    target = directory.path / FILE if out is None else Path(out)
    _check_free(target, signer.public, force=force)
    directory.read_record()  # an unfinished run has a way on, which this error names
    directory.settle_texts()
    with directory.alone():
        before = digests(directory)
        found = [check for check in verify(run).checks if check.holds is False and check.name != "signature"]
        if found:
            said = "; ".join(f"{check.name}: {check.said}" for check in found)
            raise AssayError(f"{run} is not signed, because it does not agree with itself. {said}")
        facts = directory.read_record()["epsilon"]
        content = {
            "schema": SCHEMA,
            "files": digests(directory),
            "epsilon": facts["verified"],
            "delta": facts["delta"],
            "adjacency": facts.get("adjacency", ""),
            "signed": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "public_key": signer.public.raw.hex(),
        }
        if content["files"] != before:
            raise AssayError(f"{run} is not signed: its files changed while they were checked")
        content["signature"] = base64.b64encode(signer.sign(_signed_bytes(content))).decode()
        replace_json(target, content)
    return target


def read_signature(path: Path) -> Signature:
    """What a signature file says; nothing of it is checked yet but its form.

    Args:
        path: The file.

    Raises:
        AssayError: It is damaged, or of another version. Names the field.
    """
    content = schema.read(path, {SCHEMA: False})
    schema.check(path, content, _SHAPE)
    return Signature(path, content)


def digests(directory: RunDirectory) -> dict[str, str]:
    """The SHA-256 of every file that a signature covers, by its path in the directory.

    Args:
        directory: A finished run's.
    """
    record = directory.read_record()
    listed = [directory.path / name for name in record.get("files", ())]
    named = [directory.spec, directory.ledger, directory.record, directory.statement, directory.model, directory.stage]
    below = [path for folder in (directory.path / CLIENTS, directory.earlier) for path in folder.rglob("*.json*")]
    files = {path for path in (*listed, *named, *below) if path.is_file()}
    return {os.path.relpath(path, directory.path).replace(os.sep, "/"): seals.of_file(path) for path in sorted(files)}


def _check_free(target: Path, key: PublicKey, *, force: bool) -> None:
    if target.is_dir():
        raise ConfigError("out", str(target), "the name of a file; there is a directory of that name")
    if not target.exists() or force:
        return
    there = read_signature(target).public
    if there != key:
        raise ConfigError(
            "out", str(target), f"another name, or --force: {there.fingerprint} has signed the run there already"
        )


def _signed_bytes(content: Mapping[str, Any]) -> bytes:
    """What the signature is made of: all that the file says but the signature itself, in its one canonical form."""
    plain = {name: value for name, value in content.items() if name != "signature"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return f"{SCHEMA}\n{text}".encode("ascii")
