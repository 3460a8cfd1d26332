"""The command line. Exit codes: 0 done, 2 bad usage, 3 budget spent, 1 anything else."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape
from safetensors import SafetensorError

from assay.cli import attack, audit, catalogue, compare, federate, federation, privacy, report, reproduce, runs, tune
from assay.distributed.launch import check_alone
from assay.distributed.world import LeaderError
from assay.errors import AssayError

app = typer.Typer(
    name="assay",
    help="Differentially private training whose ε is true: claimed, verified and audited side by side.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _command(context: typer.Context) -> None:
    if context.invoked_subcommand not in ("train", "resume"):
        check_alone(str(context.invoked_subcommand))


runs.register(app)
federate.register(app)
privacy.register(app)
audit.register(app)
attack.register(app)
federation.register(app)
compare.register(app)
reproduce.register(app)
tune.register(app)
report.register(app)
catalogue.register(app)


def main() -> None:
    """Run the command and turn deliberate errors into a line on standard error and an exit code."""
    try:
        app()
    except LeaderError as error:  # the leader has reported it
        sys.exit(error.exit_code)
    except AssayError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(error.exit_code)
    except (OSError, SafetensorError) as error:  # a full disk is the latter where a model is written
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(1)
