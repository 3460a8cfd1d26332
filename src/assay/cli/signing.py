"""`assay keys`, `assay sign` and `assay verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli import options
from assay.cli.output import console, print_json
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.runs.checks import Verification

_WORDS = {True: "holds", False: "FAILS", None: "-"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    keys = typer.Typer(help="Ed25519 keys for signing runs: `assay keys new PATH` makes a pair.", no_args_is_help=True)
    keys.command("new")(new)
    keys.command("show")(show)
    app.add_typer(keys, name="keys")
    app.command()(sign)
    app.command()(verify)


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


def sign(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    key: Annotated[Path, typer.Option(help="Your private key; `assay keys new` makes one.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the signature goes; signature.json in the directory if not given.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a signature that somebody else has made.")] = False,
) -> None:
    """Sign a finished run, after checking it: ledger, record, statement, model and run.json, as they are now."""
    from assay import runs
    from assay._util.signatures import read_private

    signer = read_private(key)
    path = runs.sign(run, signer, out=out, force=force)
    console().print(f"signature     {path}\nsigned by     {signer.public.fingerprint}")


def verify(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run, or a copy of it.")],
    key: Annotated[
        Path | None, typer.Option(help="The public key that must have signed the run; by default any key is accepted.")
    ] = None,
    signature: Annotated[
        Path | None, typer.Option(help="The signature, if it is not signature.json in the directory.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Check a finished run: recompute ε from its ledger alone, compare record, statement, files and signature."""
    from assay import runs

    found = runs.verify(run, key=key, signature=signature)
    if json:
        print_json(found.to_json())
    else:
        _print(found, key_given=key is not None)
    if not found.holds:
        failed = ", ".join(check.name for check in found.failed)
        raise AssayError(f"{run} does not hold ({failed}): do not rely on its ε")


def _print(found: Verification, *, key_given: bool) -> None:
    from assay._util.figures import shown
    from assay.runs.record import number

    out = console()
    width = max(len(check.name) for check in found.checks)
    for check in found.checks:
        out.print(f"{_WORDS[check.holds]:<6} {check.name:<{width}}  {check.said}")
    if found.holds and found.epsilon is not None:
        out.print(
            f"\nAll of it agrees: ε = {shown(number(found.epsilon))} at δ = {found.delta:g}, by the ledger alone."
        )
        if found.signer is None:
            out.print("The run is not signed: whoever could write these files could have forged all of them.")
        elif not key_given:
            out.print("Ask the signer for the fingerprint of the key, or give the public key with --key.")
