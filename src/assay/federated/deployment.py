"""What an operator of several machines needs: certificates, node keys, a superlink for known nodes, and the nodes.

A thin layer over Flower's own commands, always with TLS and node authentication.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from assay.errors import AssayError, ConfigError
from assay.federated.transport.deploy import authority, split_address
from assay.federated.transport.flower import Processes, quiet_environment, require
from assay.federated.transport.names import LEDGERS_VARIABLE, SETTINGS_VARIABLE
from assay.federated.transport.superlink import read_public_key

_DAYS = 365
_INTERFACES = ("0.0.0.0", "127.0.0.1")
_START_SECONDS = 90.0
# A node gives up after it has ended _RESTARTS times in a row within _STEADY seconds.
_RESTARTS, _PAUSE, _STEADY = 6, 5.0, 120.0


def write_certificates(directory: Path, hosts: Sequence[str]) -> None:
    """Write a certificate for the superlink, and the authority that vouches for it. Both are valid for a year.

    The authority's key is not kept, so nobody can make a second server that the nodes would trust.

    Args:
        directory: Where the files go.
        hosts: The superlink's host names and addresses.

    Raises:
        ConfigError: The directory already has certificates, or a host is not a name or an address.
    """
    require("flwr")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    files = [directory / name for name in ("ca.crt", "server.crt", "server.key")]
    if existing := [path.name for path in files if path.exists()]:
        raise ConfigError(
            "directory",
            str(directory),
            f"one without {', '.join(existing)}: nodes trust these until they are given others",
        )
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    now = datetime.datetime.now(datetime.UTC)

    def certificate(subject: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Assay federation authority")])
        return (
            x509.CertificateBuilder(issuer, name, key, x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )

    unused = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only"
    usage = dict.fromkeys(unused.split(), False)
    ca = (
        certificate("Assay federation authority", authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=False, key_cert_sign=True, crl_sign=True, **usage), critical=True
        )
        .sign(authority_key, hashes.SHA384())
    )
    server = (
        certificate("Assay federation superlink", server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=False, **usage), critical=True
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in _with_this_machine(hosts)]), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    (directory / "nodes").mkdir(parents=True, exist_ok=True)
    pem = serialization.Encoding.PEM
    files[0].write_bytes(ca.public_bytes(pem))
    files[1].write_bytes(server.public_bytes(pem))
    _write_secret(
        files[2], server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def _with_this_machine(hosts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"]))


def _name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or not host.isascii() or any(sign in host for sign in ":/ "):
        raise ConfigError("host", host, "a host name or an IP address, without port")
    return x509.DNSName(host)


def write_node_key(path: Path) -> Path:
    """Write a node's key (ECDSA P-384), readable by its owner only, and beside it the public half.

    Args:
        path: Where the secret key goes.

    Returns:
        The file of the public half, for the operator of the superlink.

    Raises:
        ConfigError: One of the files exists.
    """
    require("flwr")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    public = path.with_suffix(".pub")
    for file in (path, public):
        if file.exists():
            raise ConfigError("key", str(file), "a file that does not exist yet: the node would lose its identity")
    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_secret(
        path,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"
    )
    return public


def _write_secret(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def serve(certificates: Path, address: str, say: Callable[[str], None]) -> None:
    """Run a superlink until interrupted. Its state stays in memory: what clients send may lack noise.

    Args:
        certificates: The directory of `write_certificates`. Only nodes with a public key in its `nodes` may join.
        address: Interface and port.
        say: Told when the superlink is up.

    Raises:
        ConfigError: The address or the directory cannot be used.
        AssayError: The superlink ended, or did not start.
    """
    require("flwr")
    host, port = split_address("address", address)
    if host not in _INTERFACES:
        raise ConfigError(
            "address", address, f"one of {', '.join(_INTERFACES)} and a port: this machine must reach it as 127.0.0.1"
        )
    ca = authority(certificates)
    keys = sorted((certificates / "nodes").glob("*.pub"))
    if not keys:
        raise ConfigError(
            "certificates",
            str(certificates),
            "a directory with a nodes/NAME.pub for each node that may join: see assay federation key",
        )
    for key in keys:
        read_public_key(key)
    environment = quiet_environment(_private(certificates.absolute() / "flower"))
    command = [sys.executable, "-m", "assay.federated.transport.superlink", str(certificates / "nodes")]
    command += ["--host", host, "--port", str(port), "--ssl-ca-certfile", str(ca)]
    command += ["--ssl-certfile", str(certificates / "server.crt"), "--ssl-keyfile", str(certificates / "server.key")]
    command += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    processes = Processes()
    try:
        superlink = processes.start(command, environment, sys.stderr.buffer)
        _await_port(port, superlink)
        say(f"superlink at {address} for {len(keys)} nodes; interrupt to stop it")
        superlink.wait()
        raise AssayError("the superlink has ended")
    finally:
        processes.stop(by_itself=0.0)


def _await_port(port: int, superlink: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while superlink.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5.0):
            return
        time.sleep(0.5)
    raise AssayError("the superlink did not start; what it printed says why")


def join(
    superlink: str,
    certificates: Path,
    key: Path,
    node: int,
    nodes: int,
    settings: Path | None,
    say: Callable[[str], None],
) -> None:
    """Run a node until interrupted. It restarts when its superlink did.

    Only Assay's installed code answers for the node, whatever the superlink sends (`transport/supernode.py`). It
    answers under one plan, with ledgers in a folder that the server cannot name (`transport/pinned.py`).

    Args:
        superlink: The superlink's host and port.
        certificates: A directory with the superlink's `ca.crt`.
        key: The node's secret key. Ledgers go into a folder beside it, unless `settings` name another.
        node: The node's number. It holds the clients whose number leaves this remainder when divided by `nodes`.
        nodes: How many nodes there are.
        settings: A JSON file. Its entries replace what the server says of them.
        say: Told when the node restarts.

    Raises:
        ConfigError: An argument cannot be used.
        AssayError: The node keeps ending as soon as it starts.
    """
    require("flwr")
    split_address("superlink", superlink)
    ca = authority(certificates)
    if not 0 <= node < nodes:
        raise ConfigError("node", node, f"a number from 0 to {nodes - 1}")
    if not key.is_file():
        raise ConfigError("key", str(key), "the file that assay federation key wrote")
    if key.stat().st_mode & 0o077:
        raise ConfigError("key", str(key), "a file that only its owner can read: chmod 600")
    environment = quiet_environment(_private(key.absolute().with_suffix(".flower")))
    environment[LEDGERS_VARIABLE] = str(_private(key.absolute().with_suffix(".ledgers")))
    if settings is not None:
        _check_settings(settings)
        environment[SETTINGS_VARIABLE] = str(settings.absolute())
    command = [sys.executable, "-m", "assay.federated.transport.supernode", "--superlink", superlink]
    command += ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    command += ["--node-config", f"partition-id={node} num-partitions={nodes}"]
    processes, failures = Processes(), 0
    try:
        while failures < _RESTARTS:
            started = time.monotonic()
            inside = ["--host", "127.0.0.1", "--port", str(_free_port())]  # where the node talks to its worker process
            processes.start([*command, *inside], environment, sys.stderr.buffer).wait()
            failures = 0 if time.monotonic() - started > _STEADY else failures + 1
            say("the node has ended; it is started again")
            time.sleep(_PAUSE)
        raise AssayError(
            "the node ends as soon as it starts; what it printed says why (a key that is not registered is turned away)"
        )
    finally:
        processes.stop(by_itself=0.0)


def _private(directory: Path) -> Path:
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _check_settings(path: Path) -> None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError("settings", str(path), f"a file of JSON ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError("settings", str(path), "a JSON object")
