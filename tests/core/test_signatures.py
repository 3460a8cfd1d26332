"""Keys and signatures: `assay keys`, and what others build on them."""

import hashlib
import os
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from assay._util import signatures
from assay.errors import ConfigError


@pytest.fixture
def pair(tmp_path):
    return tmp_path / "key", signatures.create_pair(tmp_path / "key")


def test_a_pair_signs_and_checks(pair):
    path, public = pair
    signature = signatures.read_private(path).sign(b"all of it")
    read = signatures.read_public(signatures.public_path(path))
    assert read == public
    assert len(signature) == signatures.SIGNATURE_BYTES
    assert read.verify(signature, b"all of it")
    assert not read.verify(signature, b"all of it.")
    assert not read.verify(b"", b"all of it")
    assert not signatures.PrivateKey.generate().public.verify(signature, b"all of it")
    for byte in range(len(signature)):
        assert not read.verify(signature[:byte] + bytes([signature[byte] ^ 1]) + signature[byte + 1 :], b"all of it")


def test_the_first_vector_of_rfc_8032():
    """Section 7.1, test 1: the empty message."""
    public = signatures.PublicKey(bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"))
    signature = bytes.fromhex(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
        "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )
    assert public.verify(signature, b"")
    assert not public.verify(signature, b"\0")


def test_only_the_owner_may_read_a_private_key(pair):
    path, _ = pair
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(file.name for file in path.parent.iterdir()) == ["key", "key.pub"]
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"key'.*chmod 600"):
        signatures.read_private(path)


def test_a_fingerprint_is_that_of_the_der_form(pair):
    path, public = pair
    key = load_pem_public_key(signatures.public_path(path).read_bytes())
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert public.fingerprint == "SHA256:" + hashlib.sha256(der).hexdigest()


def test_keys_are_never_overwritten(pair):
    path, _ = pair
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        signatures.create_pair(path)
    signatures.public_path(path).rename(path.with_name("other.pub"))
    with pytest.raises(ConfigError, match="never overwritten"):
        signatures.create_pair(path.with_name("other"))
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="folder that is there"):
        signatures.create_pair(path.with_name("none") / "key")


def test_what_is_no_key_is_refused_by_name(tmp_path, pair):
    path, _ = pair
    pem, pkcs8 = Encoding.PEM, PrivateFormat.PKCS8
    files = {
        "missing": None,
        "empty": b"",
        "noise": os.urandom(200),
        "large": b"a" * 200_000,
        "another-kind": ec.generate_private_key(ec.SECP256R1()).private_bytes(pem, pkcs8, NoEncryption()),
        "password": ed25519.Ed25519PrivateKey.generate().private_bytes(pem, pkcs8, BestAvailableEncryption(b"secret")),
        "torn": path.read_bytes()[:-40],
    }
    for name, data in files.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
            (tmp_path / name).chmod(0o600)
        for read in (signatures.read_private, signatures.read_public, signatures.read_either):
            with pytest.raises(ConfigError, match=name):
                read(tmp_path / name)
    with pytest.raises(ConfigError, match="private key in PEM form"):
        signatures.read_private(signatures.public_path(path))
    with pytest.raises(ConfigError, match="holds a private key"):
        signatures.read_public(path)


def test_the_command_makes_and_shows_keys(assay, tmp_path):
    path = tmp_path / "k[x] y"
    code, out, _ = assay("keys", "new", path)
    assert code == 0
    public = signatures.read_public(f"{path}.pub")
    assert str(path) in out
    assert public.fingerprint in out
    for file in (path, f"{path}.pub"):
        code, out, _ = assay("keys", "show", file)
        assert code == 0
        assert public.fingerprint in out
        assert public.pem in out
        assert "PRIVATE" not in out
    code, _, err = assay("keys", "new", path)
    assert code == 2
    assert "never overwritten" in err
