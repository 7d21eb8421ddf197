"""The command line. Commands ask, print and leave; what they do is in the layers below."""

import logging
import sys
import traceback
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from penstock.cli import check, migrate, transfer
from penstock.cli.console import settings
from penstock.errors import Invalid, PenstockError, Refused

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130

_log = logging.getLogger("penstock")

app = typer.Typer(
    name="penstock",
    help="The durable queue for AI work, on Postgres alone.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(migrate.app, name="migrate")
app.command("import")(transfer.import_jobs)
app.command("check")(check.check)


def _print_version(wanted: bool) -> None:  # noqa: FBT001  # typer calls it so
    if wanted:
        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def _common(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    _log.setLevel(settings().log_level.upper())


def main() -> NoReturn:
    """Run the command line and end the process: 0 done, 1 it failed, 2 wrong use."""
    try:
        app(prog_name="penstock")
    except PenstockError as error:
        _say(str(error), error.hint if isinstance(error, Refused) else None)
        sys.exit(WRONG_USE if isinstance(error, Invalid) else FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001  # people get a sentence; the rest is for debugging
        if _log.isEnabledFor(logging.DEBUG):
            traceback.print_exc()
        hint = "This is a bug. PENSTOCK_LOG_LEVEL=debug shows where it happened."
        _say(f"unexpected {type(error).__name__}: {error}", hint)
        sys.exit(FAILED)
    sys.exit(0)


def _say(message: str, hint: str | None) -> None:
    typer.echo(f"penstock: {message}", err=True)
    if hint:
        typer.echo(hint, err=True)
