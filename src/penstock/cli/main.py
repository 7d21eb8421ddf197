"""The command line. Commands read options and print answers; the layers below do the work."""

import logging
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from penstock.base import logs
from penstock.base.wording import seconds
from penstock.cli.commands import (
    accounts,
    bench,
    jobs,
    keys,
    maintenance,
    plans,
    queues,
    schema,
    status,
    submit,
    webhooks,
)
from penstock.cli.commands.run import dev, model, serve, worker
from penstock.cli.output.console import FAILED, INTERRUPTED, WRONG_USE, print_error, settings
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
_RETRY, _FURTHER = "Try again in a moment.", "`penstock doctor` examines the cause."

app = typer.Typer(
    name="penstock",
    help="The durable queue for AI work, on Postgres alone.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_PANELS: dict[str, tuple[typer.Typer | Callable[..., None], ...]] = {
    "Run": (dev.dev, serve.serve, worker.worker, model.model),
    "Jobs": (submit.submit, jobs.jobs, jobs.show, jobs.retry, jobs.cancel, webhooks.app),
    "Queues": (queues.app, queues.pause, queues.resume, queues.circuit),
    "Accounts": (accounts.app, plans.app, keys.app, accounts.erase),
    "Watch": (status.status, status.top, status.metrics, queues.workers, maintenance.doctor),
    "Database": (
        *(schema.app, schema.import_jobs, maintenance.prune),
        *(maintenance.check, bench.bench),
    ),
}
for panel, commands in _PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            name = command.__name__.removesuffix("_jobs")  # `import` is a keyword of Python
            app.command(name, rich_help_panel=panel)(command)


def _print_version(wanted: bool) -> None:  # noqa: FBT001  # typer calls it positionally
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
    current = settings()
    logs.configure(current.log_level, current.log_format)


def main() -> NoReturn:
    """Run the command line and exit the process: 0 success, 1 failure, 2 wrong use."""
    try:
        app(prog_name="penstock")
    except PenstockError as error:
        if isinstance(error, Refused):
            _print_error(error.message, error.hint or _way_out(error))
        else:
            is_unavailable = isinstance(error, Unavailable)
            hint = f"{error.hint or _RETRY} {_FURTHER}" if is_unavailable else error.hint
            _print_error(str(error), hint)
        sys.exit(WRONG_USE if isinstance(error, Invalid | WrongApp) else FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001  # people get a sentence; the traceback is for debugging
        if _log.isEnabledFor(logging.DEBUG):
            traceback.print_exc()
        hint = "This is a bug. PENSTOCK_LOG_LEVEL=debug shows where it happened."
        _print_error(f"unexpected {type(error).__name__}: {words_of(error)}", hint)
        sys.exit(FAILED)
    sys.exit(0)


def _way_out(error: Refused) -> str | None:
    """Return what to type or how long to wait; the database does not know it serves a terminal."""
    match error:
        case InsufficientCredits():
            account = error.members.get("account", "NAME")
            return f"`penstock account grant {account} AMOUNT` adds credits."
        case RateLimited(retry_after=float() as wait):
            return f"Try again in {seconds(wait)}."
    return None


def _print_error(message: str, hint: str | None) -> None:
    print_error(f"penstock: {message}" + (f"\n{hint}" if hint else ""))
