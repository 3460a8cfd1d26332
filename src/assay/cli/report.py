"""`assay report`: one HTML page about runs, a study or a folder of experiments, written or served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.output import console, note, say
from assay.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    directory: Annotated[
        Path, typer.Argument(help="A run, a study, a directory with runs below it, or an experiments folder.")
    ],
    out: Annotated[Path | None, typer.Option(help="The page to write. (default: report.html in the directory)")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page while runs train, and write nothing.")] = False,
    host: Annotated[str, typer.Option(help="With --serve: the address to listen on.")] = "127.0.0.1",
    uncovered: Annotated[
        bool,
        typer.Option(
            "--uncovered",
            help="Also show attacks and audits that trained again. No ε covers them: such a page is for the holder of"
            " the records.",
        ),
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --serve: the port; 0 takes a free one.")] = 8400,
) -> None:
    """Write one self-contained HTML page: claimed, verified and audited ε, accuracy, curves, statements."""
    from assay.report import writing
    from assay.studies import tables

    lines = console()
    if serve:
        if tables.names(directory):
            raise ConfigError(
                "serve",
                str(directory),
                "a directory of runs; an experiments folder changes only when a table is measured",
            )
        if out is not None:
            raise ConfigError("out", str(out), "nothing with --serve, which writes no file")
        _serve(directory, host, port, uncovered)
        return
    written = writing.write(directory, out=out, uncovered=uncovered)
    found = written.found
    if found is None:
        lines.print(str(written.path))
        return
    counts = [
        f"{len(found.finished)} finished",
        *([f"{len(found.unfinished)} unfinished"] if found.unfinished else []),
        *([f"{len(found.waiting)} not begun"] if found.waiting else []),
        *([f"{len(found.damaged)} damaged"] if found.damaged else []),
    ]
    lines.print(f"{written.path} ({', '.join(counts)})")
    for entry in found.damaged:
        say(f"damaged: {entry.name}: {entry.why}")


def _serve(directory: Path, host: str, port: int, uncovered: bool) -> None:
    from assay.report.serve import ReportServer, is_loopback

    if not is_loopback(host):
        note(f"{host} is not a loopback address: whoever reaches this machine can read the report, without a password")
    with ReportServer(directory, host, port, uncovered) as server:
        console().print(f"{server.address} shows {directory} as it is; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
