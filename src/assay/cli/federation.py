"""`assay federation`: certificates, node keys, the superlink and the nodes of a federation across machines."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.output import say
from assay.federated import deployment

_Certificates = Annotated[
    Path, typer.Option(help="The directory that `assay federation certificates` filled; a node needs its ca.crt only.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    federation = typer.Typer(
        help="Set up a federation across machines, for `assay federate --engine deploy`.", no_args_is_help=True
    )
    for command in (certificates, key, serve, join):
        federation.command()(command)
    app.add_typer(federation, name="federation")


def certificates(
    directory: Annotated[Path, typer.Argument(help="Where to write ca.crt, server.crt and server.key.")],
    host: Annotated[
        list[str], typer.Option(help="Name or address by which nodes reach the superlink; may be repeated.")
    ],
) -> None:
    """On the server: make the superlink's TLS certificate, and the authority by which nodes know it."""
    deployment.write_certificates(directory, host)
    say(f"wrote {directory}: give ca.crt to every node, and put the nodes' public keys into {directory / 'nodes'}")


def key(path: Annotated[Path, typer.Argument(help="Where to write the key, for example site-a.key.")]) -> None:
    """On a node: make its key. The key stays here; the public half goes to the operator of the server."""
    say(f"wrote {path}, and {deployment.write_node_key(path)} for the operator of the server")


def serve(
    certificates: _Certificates,
    address: Annotated[
        str, typer.Option(help="0.0.0.0:port to be reached on every interface, 127.0.0.1:port on this machine only.")
    ] = "0.0.0.0:9092",
) -> None:
    """On the server: run the superlink, with TLS and node authentication, until interrupted."""
    _end_when_told()
    deployment.serve(certificates, address, say)


def join(
    superlink: Annotated[str, typer.Option(help="The superlink, host:port, by a name that is in its certificate.")],
    certificates: _Certificates,
    key: Annotated[Path, typer.Option(help="This node's key.")],
    node: Annotated[int, typer.Option(help="The number of this node, from 0.")],
    nodes: Annotated[
        int, typer.Option(help="How many nodes there are. Node i holds clients i, i + nodes, i + 2 nodes, ...")
    ],
    settings: Annotated[
        Path | None,
        typer.Option(
            help="JSON whose entries replace the server's on this node: its plan, where its data are, a folder for its"
            " ledgers."
        ),
    ] = None,
) -> None:
    """On a node: answer for its clients until interrupted."""
    _end_when_told()
    deployment.join(superlink, certificates, key, node, nodes, settings, say)


def _end_when_told() -> None:
    """End in order on SIGTERM, as on an interrupt: what was started is stopped."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
