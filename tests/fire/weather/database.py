"""Postgres that dies, loses a backend, is slow or full; transactions that hold locks.

The faults' own connections bypass the relays, and are given up when the server becomes unavailable.
"""

import asyncio
import os
import random
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg

from fire.weather.fault import Began, Missed, lasts, one_of
from fire.world import ACCOUNTS, World

POSTGRES = ("postgres",)
QUEUES = ("fast", "model", "narrow", "paid", "slow", "back")
GONE = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
SLOW_MICROSECONDS = (50_000, 400_000)


async def kill_postgres(world: World, chance: random.Random, began: Began) -> None:
    """Kill it with all backends, or only the postmaster, whose backends end when they notice."""
    one_of(world, chance, POSTGRES)
    with world.holding(*POSTGRES):
        alone = chance.random() < 0.5
        if alone:
            os.kill(world.postgres.pid, signal.SIGKILL)
            began(pid=world.postgres.pid, alone=alone)
            await asyncio.sleep(chance.uniform(0, 0.3))
        else:
            began(pid=world.postgres.pid, alone=alone)
        await asyncio.to_thread(world.postgres.kill)
        await lasts(world, chance, 0, 5, brief=1)
        await asyncio.to_thread(world.postgres.start)


async def kill_backend(world: World, chance: random.Random, began: Began) -> None:
    """End one session; or kill its process, after which the server restarts for safety."""
    one_of(world, chance, POSTGRES)
    with world.holding(*POSTGRES):
        async with _connected(world) as conn:
            rows = await conn.fetch(
                "select pid, application_name from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            if not rows:
                raise Missed
            row = chance.choice(rows)
            hard = chance.random() < 0.3
            if hard:
                os.kill(row["pid"], signal.SIGKILL)
            else:
                await conn.execute("select pg_terminate_backend($1)", row["pid"])
            began(pid=row["pid"], session=row["application_name"], hard=hard)
        if hard:
            await _until_answers(world)


async def deaf(world: World, chance: random.Random, began: Began) -> None:
    """Disconnect listeners; notifications before they reconnect are lost."""
    async with _connected(world) as conn:
        began()
        for _ in range(chance.randint(1, 4)):
            await conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name in ('penstock control', 'penstock events')"
            )
            await asyncio.sleep(chance.uniform(0.2, 2))


async def long_transaction(world: World, chance: random.Random, began: Began) -> None:
    """Hold an old snapshot during the load: no dead row can be removed."""
    async with _connected(world) as conn, conn.transaction(isolation="repeatable_read"):
        await conn.fetchval("select count(*) from penstock.job")
        began()
        await lasts(world, chance, 5, 20, brief=5)


async def lock_storm(world: World, chance: random.Random, began: Began) -> None:
    """An app's own transaction locks an account, or a queue's row, for a few seconds."""
    async with _connected(world, world.app_dsn) as conn:
        transaction = conn.transaction()
        await transaction.start()
        if chance.random() < 0.7:
            names = chance.sample(list(ACCOUNTS), chance.randint(1, 4))
            await conn.execute(
                "select from penstock.account where name = any ($1) order by id for update", names
            )
            began(accounts=names)
        else:
            queue = chance.choice(QUEUES)
            await conn.execute(
                "select from penstock.gate g join penstock.queue q on q.id = g.queue_id"
                " where q.name = $1 for update of g",
                queue,
            )
            began(queue=queue)
        await lasts(world, chance, 1, 5, brief=2)
        await transaction.rollback()


async def no_connections(world: World, chance: random.Random, began: Began) -> None:
    """Other programs take all free connections, also those that become free."""
    taken: list[asyncpg.Connection] = []
    loop = asyncio.get_running_loop()
    ends = loop.time() + chance.uniform(2, 3 if world.brief else 5)
    has_begun = False
    try:
        while loop.time() < ends:
            try:
                taken.append(await asyncpg.connect(world.app_dsn, timeout=5))
            except asyncpg.TooManyConnectionsError:
                if not has_begun:
                    began(taken=len(taken))
                    has_begun = True
                await asyncio.sleep(0.05)
            except GONE:
                break
        if not has_begun:
            raise Missed
    finally:
        for conn in taken:
            conn.terminate()


async def slow_disk(world: World, chance: random.Random, began: Began) -> None:
    """Each sync of the WAL takes long, and every commit waits for it."""
    one_of(world, chance, POSTGRES)
    with world.holding(*POSTGRES):
        pids = [word for pid in world.postgres.processes() for word in ("-p", str(pid))]
        delay = chance.randint(*SLOW_MICROSECONDS)
        # Attached to each running process, and to later ones.
        strace = subprocess.Popen(  # noqa: ASYNC220  # returns at once
            [
                *("strace", "-f", "-q", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"),
                *("-e", f"inject=fdatasync,fsync:delay_enter={delay}", *pids),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            began(microseconds=delay)
            await lasts(world, chance, 3, 10, brief=3)
        finally:
            strace.terminate()
            await asyncio.to_thread(strace.wait)


def may_slow() -> bool:
    """Return whether processes of other users may be traced here."""
    if shutil.which("strace") is None or os.geteuid() != 0:
        return False
    with suppress(OSError):
        return Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip() != "3"
    return True


@asynccontextmanager
async def _connected(world: World, dsn: str | None = None) -> AsyncIterator[asyncpg.Connection]:
    """Yield a session of the fault, which ends with the server when another fault kills that."""
    try:
        conn = await world.connect(dsn)
    except GONE:
        raise Missed from None
    try:
        with suppress(*GONE):
            yield conn
    finally:
        conn.terminate()


async def _until_answers(world: World) -> None:
    while True:
        with suppress(*GONE, TimeoutError):
            conn = await world.connect()
            conn.terminate()
            return
        await asyncio.sleep(0.05)
