"""What every command shares: its settings, a database to work on, and printing for two readers."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import asyncpg
import typer

from penstock.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

_T = TypeVar("_T")
_Connect = Callable[[Settings], AbstractAsyncContextManager[asyncpg.Connection]]


def settings() -> Settings:
    """Of this process and its working folder."""
    return Settings.from_environment(os.environ, Path.cwd())


def with_connection(connect: _Connect, work: Callable[[asyncpg.Connection], Awaitable[_T]]) -> _T:
    """Run `work` on one connection, from a command that is an ordinary function."""

    async def run() -> _T:
        async with connect(settings()) as conn:
            return await work(conn)

    return asyncio.run(run())


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, default=_plain, ensure_ascii=False))


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
