"""The command line. Exit codes: 0 done, 2 bad usage, 3 budget spent, 1 anything else."""

from __future__ import annotations

import logging
import sys
from typing import Any

import typer
import typer.core
from safetensors import SafetensorError

from assay.cli import (
    attack,
    audit,
    budget,
    catalogue,
    compare,
    federate,
    federation,
    privacy,
    report,
    reproduce,
    runs,
    signing,
    tune,
    use,
)
from assay.cli.output import fail, note, say, unfailing
from assay.distributed.launch import check_alone
from assay.errors import AssayError, LeaderError

# Help is plain, wrapped text. Boxes would cut off long words, such as the syntax of an option
# (decay:levels=4,last=0.5). Without this line, typer escapes [default: ...] for boxes that are not there.
typer.core.HAS_RICH = False


class _Commands(typer.core.TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """The first sentence of each command, whole."""
        whole = [(name, command.get_short_help_str(limit=1000)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(whole)


app = typer.Typer(
    name="assay",
    cls=_Commands,
    help="Differentially private training whose ε is true: claimed, verified and audited side by side.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
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
budget.register(app)
signing.register(app)
use.register(app)
catalogue.register(app)


class _Told(logging.Handler):
    """Prints the library's log on standard error: progress, and notes."""

    def emit(self, record: logging.LogRecord) -> None:
        (note if record.levelno >= logging.WARNING else say)(record.getMessage())


def _listen() -> None:
    """Print the library's log; once in a process."""
    log = logging.getLogger("assay")
    if not any(isinstance(handler, _Told) for handler in log.handlers):
        log.addHandler(_Told())
        log.setLevel(logging.INFO)


def main() -> None:
    """Run the command, and turn deliberate errors into a line on standard error and an exit code.

    Output that cannot be written never ends a command.
    """
    _listen()
    with unfailing():
        _run()


def _run() -> None:
    try:
        app()
    except LeaderError as error:  # the leader has reported it
        sys.exit(error.exit_code)
    except AssayError as error:
        fail(str(error))
        sys.exit(error.exit_code)
    except (OSError, SafetensorError) as error:  # a full disk is the latter where a model is written
        fail(str(error))
        sys.exit(1)
