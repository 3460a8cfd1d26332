"""`assay report --serve`: the page of a directory as it is now.

The server only reads, and has two addresses: the page, and its state, which the page asks for every two seconds. On a
loopback address a request must name a loopback host, so that no foreign page can read it through the browser.
"""

from __future__ import annotations

import ipaddress
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from assay.report.collect import Collector
from assay.report.page import render


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ReportServer(ThreadingHTTPServer):
    """Serves the report of one directory."""

    daemon_threads = True

    def __init__(self, root: Path, host: str, port: int, uncovered: bool = False) -> None:
        collector = Collector(root, uncovered)
        lock = threading.Lock()  # one request reads the runs at a time
        kept: dict[str, str] = {}

        def page() -> tuple[str, str]:
            with lock:
                token = collector.fingerprint()
                if token not in kept:
                    kept.clear()
                    kept[token] = render(collector.collect(), live=True, token=token)
                return token, kept[token]

        def state() -> str:
            with lock:
                return collector.fingerprint()

        self.page, self.state = page, state
        self.only_loopback = is_loopback(host)
        super().__init__((host, port), _Handler)

    @property
    def address(self) -> str:
        """Where to point a browser."""
        host, port = self.server_address[0], self.server_address[1]
        return f"http://{host!s}:{port}/"


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version, sys_version = "assay", ""

    def do_GET(self) -> None:
        """The page or its state."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """The same without a body."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if self.server.only_loopback and not is_loopback(_host(self.headers.get("Host", ""))):
            self._send(403, "text/plain; charset=utf-8", "this server answers to loopback names only\n", body)
        elif self.path == "/":
            self._guarded("text/html; charset=utf-8", lambda: self.server.page()[1], body)
        elif self.path == "/state":
            self._guarded("application/json", lambda: json.dumps({"token": self.server.state()}), body)
        else:
            self._send(404, "text/plain; charset=utf-8", "there is only the report, at /\n", body)

    def _guarded(self, kind: str, make: Callable[[], str], body: bool) -> None:
        try:
            text = make()
        except OSError as error:
            self._send(500, "text/plain; charset=utf-8", f"the directory cannot be read: {error.strerror}\n", body)
            return
        self._send(200, kind, text, body)

    def _send(self, code: int, kind: str, text: str, body: bool) -> None:
        data = text.encode()
        self.send_response(code)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(data))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: a line for each request would help nobody."""
