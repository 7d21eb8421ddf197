"""The command line. Commands ask, print and leave; what they do is in the layers below."""

import logging
import sys
import traceback
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from penstock.base import logs
from penstock.base.wording import seconds
from penstock.cli.commands.accounts import account, erase, key, plans, webhooks
from penstock.cli.commands.database import bench, check, doctor, migrate, prune, transfer
from penstock.cli.commands.jobs import jobs, show, submit
from penstock.cli.commands.queues import circuit, metrics, queues, status, top, workers
from penstock.cli.commands.run import dev, model, serve, worker
from penstock.cli.output.console import FAILED, INTERRUPTED, WRONG_USE, settings
from penstock.errors import (
    InsufficientCredits,
    Invalid,
    PenstockError,
    RateLimited,
    Refused,
    Unavailable,
    WrongApp,
    words_of,
)

_log = logging.getLogger("penstock")
_AWAY, _FURTHER = "Try again in a moment.", "`penstock doctor` looks further."

app = typer.Typer(
    name="penstock",
    help="The durable queue for AI work, on Postgres alone.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_RUN, _JOBS, _QUEUES, _ACCOUNTS = "Run", "Jobs", "Queues", "Accounts"
_WATCH, _DATABASE = "Watch", "Database"

app.command(rich_help_panel=_RUN)(dev.dev)
app.command(rich_help_panel=_RUN)(serve.serve)
app.command(rich_help_panel=_RUN)(worker.worker)
app.command(rich_help_panel=_RUN)(model.model)
app.command(rich_help_panel=_JOBS)(submit.submit)
app.command(rich_help_panel=_JOBS)(jobs.jobs)
app.command(rich_help_panel=_JOBS)(show.show)
app.command(rich_help_panel=_JOBS)(jobs.retry)
app.command(rich_help_panel=_JOBS)(jobs.cancel)
app.add_typer(queues.app, name="queues", rich_help_panel=_QUEUES)
app.command(rich_help_panel=_QUEUES)(queues.pause)
app.command(rich_help_panel=_QUEUES)(queues.resume)
app.add_typer(webhooks.app, name="webhooks", rich_help_panel=_JOBS)
app.add_typer(circuit.app, name="circuit", rich_help_panel=_QUEUES)
app.add_typer(account.app, name="account", rich_help_panel=_ACCOUNTS)
app.add_typer(plans.app, name="plans", rich_help_panel=_ACCOUNTS)
app.add_typer(key.app, name="key", rich_help_panel=_ACCOUNTS)
app.command(rich_help_panel=_ACCOUNTS)(erase.erase)
app.command(rich_help_panel=_WATCH)(status.status)
app.command(rich_help_panel=_WATCH)(top.top)
app.command(rich_help_panel=_WATCH)(metrics.metrics)
app.command(rich_help_panel=_WATCH)(workers.workers)
app.command(rich_help_panel=_WATCH)(doctor.doctor)
app.add_typer(migrate.app, name="migrate", rich_help_panel=_DATABASE)
app.command("import", rich_help_panel=_DATABASE)(transfer.import_jobs)
app.command(rich_help_panel=_DATABASE)(prune.prune)
app.command(rich_help_panel=_DATABASE)(check.check)
app.command(rich_help_panel=_DATABASE)(bench.bench)


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
    found = settings()
    logs.configure(found.log_level, found.log_format)


def main() -> NoReturn:
    """Run the command line and end the process: 0 done, 1 it failed, 2 wrong use."""
    try:
        app(prog_name="penstock")
    except PenstockError as error:
        if isinstance(error, Refused):
            _say(error.message, error.hint or _way_out(error))
        else:
            away = isinstance(error, Unavailable)
            _say(str(error), f"{error.hint or _AWAY} {_FURTHER}" if away else error.hint)
        sys.exit(WRONG_USE if isinstance(error, Invalid | WrongApp) else FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001  # people get a sentence; the rest is for debugging
        if _log.isEnabledFor(logging.DEBUG):
            traceback.print_exc()
        hint = "This is a bug. PENSTOCK_LOG_LEVEL=debug shows where it happened."
        _say(f"unexpected {type(error).__name__}: {words_of(error)}", hint)
        sys.exit(FAILED)
    sys.exit(0)


def _way_out(error: Refused) -> str | None:
    """What to type, or how long to wait, where the database cannot know who asks."""
    match error:
        case InsufficientCredits():
            account = error.members.get("account", "NAME")
            return f"`penstock account grant {account} AMOUNT` gives more."
        case RateLimited(retry_after=float() as wait):
            return f"That is in {seconds(wait)}."
    return None


def _say(message: str, hint: str | None) -> None:
    typer.echo(f"penstock: {message}", err=True)
    if hint:
        typer.echo(hint, err=True)
