"""`flower-superlink`, open to other machines for the nodes' own calls only. Run as a module with flower-superlink's options.

Flower serves three interfaces on one port. Nodes need `/v1/fleet`, where each call is signed with the node's key. `/v1/control` (submit an
app, register a node's key) and `/v1/runtime` ask for no credentials at all: whoever reaches the port could register a key of their own or have
the server run their code. Here both answer to this machine only.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Scope]]
_Send = Callable[[_Scope], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

_FOR_ALL = "/v1/fleet/"


class NodesOnlyFromAfar:
    """ASGI middleware: from other machines, nothing but the nodes' interface."""

    def __init__(self, app: _App) -> None:
        self._app = app

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan" or _is_local(scope) or _is_for_all(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})


def _is_for_all(scope: _Scope) -> bool:
    path = scope.get("path", "")
    return scope["type"] == "http" and path.startswith(_FOR_ALL) and "/." not in path


def _is_local(scope: _Scope) -> bool:
    try:
        address = ipaddress.ip_address(scope["client"][0])
    except (KeyError, TypeError, ValueError):
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def main() -> None:
    """Start Flower's superlink with the gate in front of everything else it serves."""
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.superlink import extensions, main
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    theirs = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(NodesOnlyFromAfar), *theirs())
    outermost: Any = main._get_middleware()[0].cls
    if outermost is not NodesOnlyFromAfar:
        raise SystemExit("this version of Flower does not let the superlink's interfaces be guarded")
    start_parent_process_monitor(os.getppid())  # end with `assay federation serve`, even if that is killed
    flower_superlink()


if __name__ == "__main__":
    main()
