"""Ed25519 keys and signatures: who holds the private key signs bytes, anybody with the public key checks them.

Keys are PEM files as OpenSSL reads and writes them: the private key in PKCS 8, not encrypted and readable by its owner
only; the public key as SubjectPublicKeyInfo. Ed25519 is specified in Josefsson and Liusvaara, "Edwards-Curve Digital
Signature Algorithm (EdDSA)", 2017, RFC 8032; the arithmetic is that of the package `cryptography`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from assay._util.files import sync_folder, writing
from assay.errors import ConfigError

PUBLIC_SUFFIX = ".pub"
"""What the file name of a public key has in addition to that of its private key."""

SIGNATURE_BYTES = 64
_KEY_BYTES = 32
_LARGEST_FILE = 100_000  # bytes; a key has about a hundred
_PRIVATE = "an Ed25519 private key in PEM form without a password, as `assay keys new` writes it"
_PUBLIC = "an Ed25519 public key in PEM form, as `assay keys new` writes it beside the private one"


@dataclass(frozen=True)
class PublicKey:
    """Checks signatures. Two keys are equal if they are the same key.

    Attributes:
        raw: The 32 bytes of the key.
    """

    raw: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.raw, bytes) or len(self.raw) != _KEY_BYTES:
            raise ConfigError("public key", self.raw, f"the {_KEY_BYTES} bytes of an Ed25519 public key")

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Whether the holder of the private key made this signature of exactly these bytes.

        Args:
            signature: What `PrivateKey.sign` returned.
            data: The bytes that were signed.

        Returns:
            False for any other bytes, another key, and a signature that is none.
        """
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, data)
        except (InvalidSignature, ValueError):  # the latter: 32 bytes that are no point of the curve
            return False
        return True

    @property
    def pem(self) -> str:
        """The key as a PEM file holds it."""
        key = Ed25519PublicKey.from_public_bytes(self.raw)
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    @property
    def fingerprint(self) -> str:
        """A short name of the key, to compare over the telephone: SHA-256 of its DER form, in hexadecimal.

        `openssl pkey -pubin -in KEY.pub -outform DER | sha256sum` prints the same digits.
        """
        key = Ed25519PublicKey.from_public_bytes(self.raw)
        return "SHA256:" + hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


class PrivateKey:
    """Signs bytes. Never printed, and never written but by `create_pair`."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> PrivateKey:
        """A new key, from the operating system's random numbers.

        Example:
            >>> key = PrivateKey.generate()
            >>> key.public.verify(key.sign(b"a statement"), b"a statement")
            True
            >>> key.public.verify(key.sign(b"a statement"), b"another one")
            False
        """
        return cls(Ed25519PrivateKey.generate())

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes: 64 bytes, the same each time (Ed25519 draws no random numbers)."""
        return bytes(self._key.sign(data))

    @property
    def public(self) -> PublicKey:
        """The key that checks this one's signatures."""
        return PublicKey(self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    def __repr__(self) -> str:
        return f"PrivateKey({self.public.fingerprint})"


def create_pair(path: str | Path) -> PublicKey:
    """Make a new pair of keys and write it: the private key to `path`, the public one beside it with `.pub` added.

    Only the owner may read the private key (mode 0600).

    Args:
        path: Where the private key goes. Neither file may be there yet: nobody loses a key by a repeated command.

    Returns:
        The public key.

    Raises:
        ConfigError: A file of one of these names is there, or the folder is not.
        NoRoomError: The disk is full.
    """
    private, public = Path(path), public_path(path)
    if not private.parent.is_dir():
        raise ConfigError("key", str(private), "a path in a folder that is there")
    for file in (private, public):
        if os.path.lexists(file):
            raise ConfigError("key", str(file), "a path where there is no file yet: keys are never overwritten")
    key = PrivateKey.generate()
    # The private key goes first. From it `assay keys show` prints the public one again.
    _create(private, key._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    _create(public, key.public.pem.encode(), 0o644)
    return key.public


def public_path(private: str | Path) -> Path:
    """Where the public key of a private one stands."""
    return Path(f"{private}{PUBLIC_SUFFIX}")


def read_private(path: str | Path) -> PrivateKey:
    """Read a private key.

    Args:
        path: The PEM file.

    Raises:
        ConfigError: There is no such file, others may read it, or it holds anything but an Ed25519 private key.
    """
    path = Path(path)
    data = _read(path, _PRIVATE)
    if b"PRIVATE KEY" not in data:
        raise ConfigError("key", str(path), _PRIVATE)
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError("key", str(path), "a private key that only its owner may read (chmod 600)")
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        raise ConfigError("key", str(path), _PRIVATE) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError("key", str(path), _PRIVATE)
    return PrivateKey(key)


def read_public(path: str | Path) -> PublicKey:
    """Read a public key.

    Args:
        path: The PEM file.

    Raises:
        ConfigError: There is no such file, or it holds anything but an Ed25519 public key. A private key is refused
            too: it should not be where signatures are checked.
    """
    path = Path(path)
    data = _read(path, _PUBLIC)
    if b"PRIVATE KEY" in data:
        raise ConfigError("key", str(path), f"{_PUBLIC}; this file holds a private key")
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError("key", str(path), _PUBLIC) from None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError("key", str(path), _PUBLIC)
    return PublicKey(key.public_bytes(Encoding.Raw, PublicFormat.Raw))


def read_either(path: str | Path) -> PublicKey:
    """The public key of a pair, from either of its files.

    Args:
        path: The private or the public key.

    Raises:
        ConfigError: The file is neither.
    """
    if b"PRIVATE KEY" in _read(Path(path), f"{_PRIVATE}, or {_PUBLIC}"):
        return read_private(path).public
    return read_public(path)


def _read(path: Path, accepted: str) -> bytes:
    """A key file's bytes; what is far too large for one is not read whole."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError("key", str(path), f"{accepted} ({error.strerror})") from None
    if len(data) > _LARGEST_FILE:
        raise ConfigError("key", str(path), accepted)
    return data


def _create(path: Path, data: bytes, mode: int) -> None:
    """Write a file that is not there yet, whole and durably, with this mode from its first moment on."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with writing(path):
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(part, path)
            except FileExistsError:
                raise ConfigError("key", str(path), "a path where there is no file yet") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    sync_folder(path.parent)
