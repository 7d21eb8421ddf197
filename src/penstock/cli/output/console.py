"""Shared by all commands: settings, options, the database, and output as text or JSON."""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import asyncpg
import typer
from rich.text import Text

from penstock.base.settings import Settings
from penstock.cli.output.render import print_lines
from penstock.db.connections.connect import connect_ready
from penstock.db.connections.driver_errors import fetching
from penstock.engine.accounts.accounts import Accounts, Erasure
from penstock.engine.accounts.keys import Keys
from penstock.engine.jobs.info import JobInfo
from penstock.engine.jobs.jobs import Jobs
from penstock.engine.maintenance import Upkeep
from penstock.engine.options.forms import Form, Seconds, Whole
from penstock.engine.options.option import Option
from penstock.engine.queries.json_texts import naming_known
from penstock.engine.queries.lists import Hourly, JobRows, Lists
from penstock.engine.queues import Circuits, Queues
from penstock.engine.webhooks import Webhooks

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
# The demo's embedded database has its own folder, inside of PENSTOCK_HOME: apps that are written in
# the same working folder may use the same names.
DEMO = "demo"

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

_T = TypeVar("_T")
Command = TypeVar("Command", bound=Callable[..., None])
_Connect = Callable[[Settings], AbstractAsyncContextManager[asyncpg.Connection]]


def taking(options: Iterable[Option]) -> Callable[[Command], Command]:
    """Give a command these options; it gets them as keyword arguments, None if not given."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        *first, as_json, _ = signature.parameters.values()  # the last one is **options
        added = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[_type(option.form), _help(option)],
            )
            for option in options
        ]
        parameters = [*first, *added, as_json]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _type(form: Form) -> Any:
    return int | None if isinstance(form, Whole) else str | None


def _help(option: Option) -> Any:
    match option.form:
        case Whole(least, most):
            return typer.Option(metavar="N", min=least, max=most, help=option.help)
        case Seconds():
            sentence = f'{option.help.removesuffix(".")}, like "5m".'
            return typer.Option(metavar="DURATION", help=sentence)
    return typer.Option(help=option.help)


class CommandEngine:
    """The parts of the engine that commands use, on a command's single connection."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self.fetch = fetching(conn)
        self.jobs = Jobs(self.fetch)
        self.queues = Queues(self.fetch)
        self.accounts = Accounts(self.fetch)
        self.circuits = Circuits(self.fetch)
        self.erasure = Erasure(self.fetch)
        self.hourly = Hourly(self.fetch)
        self.keys = Keys(self.fetch)
        self.lists = Lists(self.fetch)
        self.upkeep = Upkeep(self.fetch)
        self.webhooks = Webhooks(self.fetch)


def settings() -> Settings:
    """Read the settings of this process and its working folder."""
    return Settings.from_environment(os.environ, Path.cwd())


def database() -> Settings:
    """Return the database of a command without an app: the demo's, if there is no other one."""
    current = settings()
    demo = current.home / DEMO
    has_own = current.dsn is not None or (current.home / "postgres").exists()
    return current if has_own or not (demo / "postgres").exists() else replace(current, home=demo)


def with_connection(connect: _Connect, work: Callable[[asyncpg.Connection], Awaitable[_T]]) -> _T:
    """Run `work` on one connection, from a blocking function."""

    async def run() -> _T:
        async with connect(database()) as conn:
            return await work(conn)

    return asyncio.run(run())


def call_engine(work: Callable[[CommandEngine], Awaitable[_T]]) -> _T:
    """Run `work` on a database whose schema is current."""

    async def run(conn: asyncpg.Connection) -> _T:
        engine = CommandEngine(conn)
        async with naming_known(JobRows(engine.fetch)):
            return await work(engine)

    return with_connection(connect_ready, run)


def answer(value: _T, text: Callable[[_T], str | Sequence[Text]], *, as_json: bool) -> None:
    """Print the answer of a command: as JSON for programs, or as `text` formats it for people.

    It is flushed at once: a program that reads it may act on it while the command runs on.
    """
    if as_json:
        print_json(value)
    else:
        shown = text(value)
        typer.echo(shown) if isinstance(shown, str) else print_lines(shown)
    sys.stdout.flush()


def print_error(text: str) -> None:
    """Print a line to standard error, if the terminal is still there."""
    with suppress(OSError):
        typer.echo(text, err=True)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print one JSON document, on one line unless indented."""
    typer.echo(json_text(value, indent=indent))


def json_text(value: Any, *, indent: int | None = None) -> str:
    text = json.dumps(value, default=_plain, ensure_ascii=False, indent=indent)
    return text.translate(_ESCAPED)


# Characters that JSON may contain unescaped, and that a terminal may interpret as commands.
_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def _plain(value: object) -> object:
    if isinstance(value, JobInfo):
        return value.json
    return value.isoformat() if isinstance(value, datetime) else str(value)
