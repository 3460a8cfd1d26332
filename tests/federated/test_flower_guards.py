"""What keeps a federation's machines from taking orders from anybody: the superlink's gate and the nodes' one app."""

import asyncio
import subprocess
import sys

import pytest

from assay.errors import ConfigError
from assay.federated.transport import bundle
from assay.federated.transport.superlink import guard, read_public_key

pytest.importorskip("flwr", reason="needs Flower: the extra federated")


def status(app, path, client):
    """What the application answers to a request from there."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "https",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"superlink")],
        "server": ("superlink", 9092),
        "client": client,
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"]


@pytest.fixture(scope="module")
def superlink():
    """Flower's own application, guarded as `assay federation serve` guards it."""
    from flwr.superlink.main import create_app

    return guard(create_app, [])()


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"])
def test_orders_are_taken_from_this_machine_only(superlink, path):
    for stranger in [("192.0.2.7", 1), ("2001:db8::1", 1), ("::ffff:192.0.2.7", 1), ("testclient", 1), None]:
        assert status(superlink, path, stranger) == 403
    for local in [("127.0.0.1", 1), ("::1", 1), ("::ffff:127.0.0.1", 1)]:
        assert status(superlink, path, local) not in (403, 404)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/health", "/v1/fleet", "/v1/fleet/../control/start-run"])
def test_all_else_is_shut_to_others(superlink, path):
    assert status(superlink, path, ("192.0.2.7", 1)) == 403


def test_nodes_are_heard_from_everywhere(superlink):
    assert status(superlink, "/v1/fleet/pull-messages", ("192.0.2.7", 1)) not in (403, 404)


def build(directory):
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(directory)


def test_nodes_know_the_app(tmp_path):
    assert bundle.is_ours(build(bundle.write(tmp_path / "app")))


def test_nodes_refuse_other_code(tmp_path):
    extra = bundle.write(tmp_path / "extra")
    (extra / "assay.py").write_text("client_app = None")
    other = bundle.write(tmp_path / "other")
    project = other / "pyproject.toml"
    project.write_text(project.read_text().replace("apps:client_app", "evil:client_app"))
    older = bundle.write(tmp_path / "older")
    project = older / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "', 'version = "0.0.'))
    for directory in (extra, other, older):
        assert not bundle.is_ours(build(directory))
    assert not bundle.is_ours(b"no archive")


def test_certificates_hold_for_the_hosts_they_name_and_are_never_overwritten(tmp_path):
    from assay.federated.deployment import write_certificates, write_node_key

    write_certificates(tmp_path, ["superlink.example.org", "192.0.2.1"])
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "ca.key").exists()
    for name in ("superlink.example.org", "localhost"):
        check = [
            "openssl",
            "verify",
            "-CAfile",
            "ca.crt",
            "-purpose",
            "sslserver",
            "-verify_hostname",
            name,
            "server.crt",
        ]
        assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    with pytest.raises(ConfigError, match=r"server\.key"):
        write_certificates(tmp_path, ["localhost"])
    write_node_key(tmp_path / "a.key")
    assert (tmp_path / "a.key").stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match=r"a\.key"):
        write_node_key(tmp_path / "a.key")
    read_public_key(tmp_path / "a.pub")
    for no_public_key in ("a.key", "ca.crt"):
        with pytest.raises(ConfigError, match="public half"):
            read_public_key(tmp_path / no_public_key)


@pytest.mark.parametrize("host", ["", "https://host", "host:9092", "two words"])
def test_a_host_that_is_none_is_refused(tmp_path, host):
    from assay.federated.deployment import write_certificates

    with pytest.raises(ConfigError, match="host"):
        write_certificates(tmp_path, [host])
    assert not (tmp_path / "ca.crt").exists()


def test_what_carries_bytes_starts_without_torch():
    program = "import sys; import assay.federated.transport.apps; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
