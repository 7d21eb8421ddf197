"""A server for measurements: the embedded Postgres, its durable settings on, in its own folder.

Every figure of bench/ is taken beside the bare SQL figure of the same run on this server.
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

import asyncpg

from penstock.db import migrate
from penstock.db.embedded import Embedded
from penstock.db.pool import prepare

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
    """The address of a fresh database of that name, for its owner."""
    admin = await asyncpg.connect(running.admin_dsn)
    await admin.execute(f"create database {name} owner penstock")
    await admin.close()
    dsn = running.dsn.replace("/penstock?", f"/{name}?")
    if migrated:
        conn = await connection(dsn)
        await migrate.up(conn)
        await conn.close()
    return dsn


async def connection(dsn: str) -> asyncpg.Connection:
    conn = await asyncpg.connect(dsn)
    await prepare(conn)
    return conn


def record(name: str, figures: dict[str, Any]) -> None:
    """Keep a run beside the others, with what is needed to judge it."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(
        json.dumps(
            {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "commit": commit or None,
                "machine": f"{os.cpu_count()} cores, {platform.machine()}",
                "python": platform.python_version(),
                **figures,
            },
            indent=2,
        )
        + "\n"
    )


def smoke() -> bool:
    """`--smoke`: small sizes, to see that it runs; its figures mean nothing."""
    return "--smoke" in sys.argv
