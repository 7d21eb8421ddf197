"""What every command shares: its settings, a database to work on, and printing for two readers."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import asyncpg
import typer

from penstock.base.settings import Settings
from penstock.db.adapters.caller_connection import Fetch
from penstock.db.connections.connect import connect_ready
from penstock.db.connections.driver_errors import fetching
from penstock.engine.accounts.accounts import Accounts
from penstock.engine.jobs.info import JobInfo
from penstock.engine.jobs.jobs import Jobs
from penstock.engine.maintenance import Upkeep
from penstock.engine.queries.json_texts import naming_known
from penstock.engine.queries.lists import JobRows, Lists
from penstock.engine.queues import Circuits, Queues

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
# Where the demo's embedded database lies, in the folder of all others: apps that are written in the
# same folder may use the same names.
DEMO = "demo"

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

_T = TypeVar("_T")
_Connect = Callable[[Settings], AbstractAsyncContextManager[asyncpg.Connection]]


@dataclass(frozen=True, slots=True)
class Calls:
    """The verbs of the engine on the one connection that a command needs."""

    fetch: Fetch
    jobs: Jobs
    queues: Queues
    accounts: Accounts
    circuits: Circuits
    lists: Lists
    upkeep: Upkeep

    @classmethod
    def on(cls, conn: asyncpg.Connection) -> "Calls":
        fetch = fetching(conn)
        return cls(
            fetch,
            Jobs(fetch),
            Queues(fetch),
            Accounts(fetch),
            Circuits(fetch),
            Lists(fetch),
            Upkeep(fetch),
        )


def settings() -> Settings:
    """Of this process and its working folder."""
    return Settings.from_environment(os.environ, Path.cwd())


def database() -> Settings:
    """Where a command without an app looks: into the demo, if there is nothing else here."""
    found = settings()
    demo = found.home / DEMO
    has_own = found.dsn is not None or (found.home / "postgres").exists()
    return found if has_own or not (demo / "postgres").exists() else replace(found, home=demo)


def with_connection(connect: _Connect, work: Callable[[asyncpg.Connection], Awaitable[_T]]) -> _T:
    """Run `work` on one connection, from a command that is an ordinary function."""

    async def run() -> _T:
        async with connect(database()) as conn:
            return await work(conn)

    return asyncio.run(run())


def with_calls(work: Callable[[Calls], Awaitable[_T]]) -> _T:
    """Run `work` on a database whose schema is current."""

    async def named(conn: asyncpg.Connection) -> _T:
        calls = Calls.on(conn)
        async with naming_known(JobRows(calls.fetch)):
            return await work(calls)

    return with_connection(connect_ready, named)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print one JSON document, on one line unless indented."""
    typer.echo(json_text(value, indent=indent))


def json_text(value: Any, *, indent: int | None = None) -> str:
    text = json.dumps(value, default=_plain, ensure_ascii=False, indent=indent)
    return text.translate(_ESCAPED)


# Characters that JSON may hold as they are, and a terminal may take for commands.
_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def _plain(value: object) -> object:
    if isinstance(value, JobInfo):
        return value.json
    return value.isoformat() if isinstance(value, datetime) else str(value)
