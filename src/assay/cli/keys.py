"""`assay keys new`, `assay keys show`: pairs of keys for signing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.output import console


def register(app: typer.Typer) -> None:
    """Add the commands."""
    keys = typer.Typer(help="Ed25519 keys for signing runs: `assay keys new PATH` makes a pair.", no_args_is_help=True)
    keys.command("new")(new)
    keys.command("show")(show)
    app.add_typer(keys, name="keys")


def new(
    path: Annotated[Path, typer.Argument(help="Where the private key goes; the public one is PATH.pub beside it.")],
) -> None:
    """Make a pair of keys: PATH, which only you may read, and PATH.pub, which everybody may have."""
    from assay._util import signatures

    public = signatures.create_pair(path)
    out = console()
    out.print(f"private key   {path}")
    out.print(f"public key    {signatures.public_path(path)}")
    out.print(f"fingerprint   {public.fingerprint}")


def show(path: Annotated[Path, typer.Argument(help="A private or a public key.")]) -> None:
    """Print the public key of a pair, and its fingerprint."""
    from assay._util import signatures

    public = signatures.read_either(path)
    out = console()
    out.print(f"fingerprint   {public.fingerprint}")
    out.print(public.pem.rstrip())
