"""Postgres that dies, loses a backend, is slow or full; transactions that hold what others want.

What a fault opens itself goes past the relays, and is given up when the server goes away meanwhile.
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

from fire.weather.fault import Missed, Tell, lasts, one_of
from fire.world import ACCOUNTS, World

POSTGRES = ("postgres",)
QUEUES = ("fast", "model", "narrow", "paid", "slow", "back")
GONE = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
SLOW_MICROSECONDS = (50_000, 400_000)


async def kill_postgres(world: World, chance: random.Random, tell: Tell) -> None:
    """With all its backends, or the postmaster alone, whose backends end when they notice."""
    one_of(world, chance, POSTGRES)
    with world.holding(*POSTGRES):
        alone = chance.random() < 0.5
        if alone:
            os.kill(world.postgres.pid, signal.SIGKILL)
            tell(pid=world.postgres.pid, alone=alone)
            await asyncio.sleep(chance.uniform(0, 0.3))
        else:
            tell(pid=world.postgres.pid, alone=alone)
        await asyncio.to_thread(world.postgres.kill)
        await lasts(world, chance, 0, 5, brief=1)
        await asyncio.to_thread(world.postgres.start)


async def kill_backend(world: World, chance: random.Random, tell: Tell) -> None:
    """One session ends; or its process is killed, and the server starts anew for safety's sake."""
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
            tell(pid=row["pid"], session=row["application_name"], hard=hard)
        if hard:
            await _until_answers(world)


async def deaf(world: World, chance: random.Random, tell: Tell) -> None:
    """Whoever listens is cut off; what is told before they come back is not heard."""
    async with _connected(world) as conn:
        tell()
        for _ in range(chance.randint(1, 4)):
            await conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name in ('penstock control', 'penstock events')"
            )
            await asyncio.sleep(chance.uniform(0.2, 2))


async def long_transaction(world: World, chance: random.Random, tell: Tell) -> None:
    """A snapshot from before is held while all goes on: nothing that dies can be cleared away."""
    async with _connected(world) as conn, conn.transaction(isolation="repeatable_read"):
        await conn.fetchval("select count(*) from penstock.job")
        tell()
        await lasts(world, chance, 5, 20, brief=5)


async def lock_storm(world: World, chance: random.Random, tell: Tell) -> None:
    """An app's own transaction holds an account, or a queue's row, for a few seconds."""
    async with _connected(world, world.app_dsn) as conn:
        transaction = conn.transaction()
        await transaction.start()
        if chance.random() < 0.7:
            names = chance.sample(list(ACCOUNTS), chance.randint(1, 4))
            await conn.execute(
                "select from penstock.account where name = any ($1) order by id for update", names
            )
            tell(accounts=names)
        else:
            queue = chance.choice(QUEUES)
            await conn.execute(
                "select from penstock.gate g join penstock.queue q on q.id = g.queue_id"
                " where q.name = $1 for update of g",
                queue,
            )
            tell(queue=queue)
        await lasts(world, chance, 1, 5, brief=2)
        await transaction.rollback()


async def no_connections(world: World, chance: random.Random, tell: Tell) -> None:
    """All places that are free, and those that become free meanwhile, are taken by others."""
    taken: list[asyncpg.Connection] = []
    loop = asyncio.get_running_loop()
    ends = loop.time() + chance.uniform(2, 3 if world.brief else 5)
    told = False
    try:
        while loop.time() < ends:
            try:
                taken.append(await asyncpg.connect(world.app_dsn, timeout=5))
            except asyncpg.TooManyConnectionsError:
                if not told:
                    tell(taken=len(taken))
                    told = True
                await asyncio.sleep(0.05)
            except GONE:
                break
        if not told:
            raise Missed
    finally:
        for conn in taken:
            conn.terminate()


async def slow_disk(world: World, chance: random.Random, tell: Tell) -> None:
    """Each sync of the log takes long. Whoever commits waits for it."""
    one_of(world, chance, POSTGRES)
    with world.holding(*POSTGRES):
        pids = [word for pid in world.postgres.processes() for word in ("-p", str(pid))]
        delay = chance.randint(*SLOW_MICROSECONDS)
        # Attached to each process as it is, and to those that follow.
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
            tell(microseconds=delay)
            await lasts(world, chance, 3, 10, brief=3)
        finally:
            strace.terminate()
            await asyncio.to_thread(strace.wait)


def may_slow() -> bool:
    """Whether others' processes may be traced here."""
    if shutil.which("strace") is None or os.geteuid() != 0:
        return False
    with suppress(OSError):
        return Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip() != "3"
    return True


@asynccontextmanager
async def _connected(world: World, dsn: str | None = None) -> AsyncIterator[asyncpg.Connection]:
    """A session of the fault's own, which ends with the server when another fault kills that."""
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
