"""A server for measurements: an embedded Postgres with durable settings, in a new folder.

Every figure of bench/ is compared with the bare SQL figure of the same run on this server.
"""

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg

from penstock.db.connections.pool import prepare
from penstock.db.embedded.database import Embedded
from penstock.db.schema import migrations

RESULTS = Path(__file__).with_name("results")


@asynccontextmanager
async def server() -> AsyncIterator[Embedded]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        running = await asyncio.to_thread(Embedded.use, Path(folder) / "home")
        try:
            yield running
        finally:
            await asyncio.to_thread(running.leave)


async def database(running: Embedded, name: str, *, migrated: bool = True) -> str:
    """Create a database; return its address for the owner."""
    admin = await asyncpg.connect(running.admin_dsn)
    await admin.execute(f"create database {name} owner penstock")
    await admin.close()
    dsn = running.dsn.replace("/penstock?", f"/{name}?")
    if migrated:
        conn = await connection(dsn)
        await migrations.up(conn)
        await conn.close()
    return dsn


@asynccontextmanager
async def fresh(running: Embedded) -> AsyncIterator[str]:
    """A new database for one measurement; it is dropped afterwards."""
    name = f"fresh_{uuid4().hex}"
    dsn = await database(running, name)
    try:
        yield dsn
    finally:
        admin = await asyncpg.connect(running.admin_dsn)
        await admin.execute(f"drop database {name} with (force)")
        await admin.close()


async def connection(dsn: str) -> asyncpg.Connection:
    conn = await asyncpg.connect(dsn)
    await prepare(conn)
    return conn


async def until(
    conn: asyncpg.Connection, question: str, *arguments: Any, seconds: float, every: float = 0.02
) -> None:
    """Poll the database until the query returns true."""
    async with asyncio.timeout(seconds):
        while not await conn.fetchval(question, *arguments):  # noqa: ASYNC110  # no event for it
            await asyncio.sleep(every)


def record(name: str, figures: dict[str, Any]) -> None:
    """Keep the figures of a run with date, commit and machine."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(
        json.dumps({**circumstances(), **figures}, indent=2) + "\n"
    )


def record_part(name: str, part: str, figures: dict[str, Any]) -> None:
    """Keep the figures of one part of a benchmark; the other parts keep their last ones."""
    path = RESULTS / f"{name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps({**kept, part: {**circumstances(), **figures}}, indent=2) + "\n")


def circumstances() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or None,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
    }


def smoke() -> bool:
    """Whether `--smoke` was given: small sizes, to check that it runs; its figures mean nothing."""
    return "--smoke" in sys.argv
