"""The server: reads, answers on loopback names, and has nothing else to give."""

import http.client
import json
import threading

import pytest

from assay.report.serve import ReportServer, is_loopback


@pytest.fixture
def server(tmp_path, run):
    run(tmp_path / "secret-sibling")
    run(tmp_path / "t/a")
    made = ReportServer(tmp_path / "t", "127.0.0.1", 0)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def test_the_page_and_its_state(server, tmp_path, run):
    status, text, headers = ask(server, "/")
    assert status == 200
    assert "connect-src 'self'" in text
    assert headers["Cache-Control"] == "no-store"
    token = json.loads(ask(server, "/state")[1])["token"]
    assert f'content="{token}"' in text
    run(tmp_path / "t/b")
    assert json.loads(ask(server, "/state")[1])["token"] != token
    assert ask(server, "/", "HEAD")[1] == ""


@pytest.mark.parametrize(
    "path", ["/a/record.json", "/../secret-sibling/record.json", "/%2e%2e/secret-sibling/", "/?x", "/state/"]
)
def test_there_is_nothing_else(server, path):
    assert ask(server, path)[0] == 404


def test_requests_by_another_name_are_refused(server):
    assert ask(server, "/", Host="evil.example")[0] == 403
    assert ask(server, "/", Host="evil.example:80")[0] == 403
    assert ask(server, "/", Host="[evil]")[0] == 403
    assert ask(server, "/", Host="[2001:db8::1]")[0] == 403
    assert ask(server, "/", Host="")[0] == 403
    assert ask(server, "/", Host="localhost:1234")[0] == 200
    assert ask(server, "/", Host="[::1]:1234")[0] == 200
    assert ask(server, "/", "POST")[0] == 501


def test_loopback():
    assert [
        is_loopback(host)
        for host in ("127.0.0.1", "127.9.9.9", "localhost", "::1", "0.0.0.0", "10.0.0.1", "example.org", "")
    ] == [
        True,
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]
