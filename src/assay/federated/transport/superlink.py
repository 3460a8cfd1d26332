"""`flower-superlink`, open to other machines for the nodes' calls only.

Run as a module, with a directory of public keys and flower-superlink's options. Flower serves three interfaces on one
port. Nodes need `/v1/fleet`, where each call is signed with the node's key. `/v1/control` (submit an app, register a
node's key) and `/v1/runtime` ask for no credentials: whoever reaches the port could register a key or have the server
run their code. Here both answer to this machine only.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import ConfigError

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


def read_public_key(path: Path) -> bytes:
    """A node's public key, as Flower keeps it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError("key", str(path), "the public half of a key that assay federation key wrote")
    return bytes(key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def guard(create_app: Callable[..., Any], keys: Sequence[bytes]) -> Callable[..., Any]:
    """Flower's application with these nodes registered and the gate in front; never one without the other."""

    def create(*arguments: Any, **options: Any) -> Any:
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.superlink.auth_plugin.noop_auth_plugin import _create_noop_account_info
        from flwr.superlink.servicer.control.control_handlers import register_node

        app = create_app(*arguments, **options)
        app.add_middleware(NodesOnlyFromAfar)  # the last one added is the outermost
        for key in keys:
            register_node(
                RegisterNodeRequest(public_key=key), _create_noop_account_info(), app.state.linkstate_factory.state()
            )
        return app

    return create


def main(keys: Path) -> None:
    """Start Flower's superlink for the nodes whose public keys are in this directory."""
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.superlink import main as superlink
    from flwr.superlink.cli.flower_superlink import flower_superlink

    superlink.create_app = guard(superlink.create_app, [read_public_key(path) for path in sorted(keys.glob("*.pub"))])
    start_parent_process_monitor(os.getppid())  # end with `assay federation serve`, even if that is killed
    flower_superlink()


if __name__ == "__main__":
    main(Path(sys.argv.pop(1)))
