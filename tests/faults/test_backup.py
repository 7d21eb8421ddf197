"""R-F28: a base backup and the WAL, restored to a point in time, while the old system still runs.

The steps and the consequences that docs/howto/backup.md describes.
"""

import asyncio
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

import asyncpg
import httpx
import pytest

from support import factory
from support.cluster import assert_sound
from support.factory import submit_rows
from support.servers.failover import ask, until
from support.servers.faulty_machines import Ground, ground
from support.servers.postmaster import Postmaster, room
from support.shapes import Scale
from support.waiting import eventually
from support.worker.crew import submit_many

POINT = "here"
RECEIVER = "https://receiver.invalid/hook"
NAP_SECONDS = 0.05

pytestmark = pytest.mark.timeout(300)


@asynccontextmanager
async def loaded(on: Ground) -> AsyncIterator[None]:
    """Run clients that submit until the end of the block."""
    over = asyncio.Event()

    async def submit_on() -> None:
        async with on.client() as client:
            while not over.is_set():
                with suppress(httpx.TransportError):
                    await on.submit(client, uuid.uuid4().hex, seconds=NAP_SECONDS)

    clients = [asyncio.create_task(submit_on()) for _ in range(4)]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*clients)


def restored(server: Postmaster, archive: Path, backup: Postmaster) -> Postmaster:
    """Start the backup as a server instead of the old one, up to the point in time."""
    server.kill()
    (backup.data / "standby.signal").unlink()
    (backup.data / "recovery.signal").touch()
    with (backup.data / "postgresql.auto.conf").open("a") as settings:
        settings.write(
            f"\nprimary_conninfo = ''\nrestore_command = 'cp {archive}/%f %p'\n"
            f"recovery_target_name = '{POINT}'\nrecovery_target_action = 'promote'\n"
        )
    shutil.chown(backup.data / "recovery.signal", (backup.data / "PG_VERSION").owner())
    backup.start()
    # It answers before it accepts writes.
    until(lambda: ask(backup, "select not pg_is_in_recovery()"), "it is no standby any more")
    return backup


async def test_a_restored_database_is_sound_and_late_workers_harm_nothing(
    tmp_path: Path, scale: Scale
) -> None:
    """Jobs acknowledged before the point exist, running ones finish once, late callbacks run."""
    with room() as archive:
        settings = {"archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
        async with ground(tmp_path, settings=settings) as on:
            await on.api.start()
            # Only its queue: the test uses another one.
            old = await on.crew.start("old", queues=["q"])
            gate = on.crew.gate()
            ran_on = await submit_many(on.conn, "hold", 5, {"gate": str(gate)})
            await on.crew.until_noted("start", 5)
            has_on_finish = await _webhooks(on)
            backup = Postmaster(
                on.server.folder.parent / "two", on.server.port, settings=on.server.settings
            )
            async with loaded(on):
                await asyncio.to_thread(backup.copy_of, on.server, "backup")
                await asyncio.sleep(scale(1, 20))
                waiting = await submit_many(on.conn, "rest", 3, {})
                twice = await submit_rows(
                    on.conn,
                    [{"kind": "hold", "payload": {"gate": str(gate)}, "delay_seconds": 0.5}] * 3,
                )
                before = dict(on.acked)
                await on.conn.execute(f"select pg_create_restore_point('{POINT}')")
                pending = await _pending(on.conn)
                gone = await submit_many(on.conn, "hold", 3, {"gate": str(gate)})
                stranger = await factory.worker(on.conn)
                started = await factory.claim(on.conn, stranger, "idle", 3)
                await on.crew.until_noted("start", 5 + len(twice) + len(gone))
                await asyncio.sleep(scale(0, 10))
                file = await on.conn.fetchval("select pg_walfile_name(pg_switch_wal())")
                await eventually(lambda: _archived(on.conn, file), "the log is kept", seconds=30)
            begun = time.monotonic()
            try:
                await asyncio.to_thread(restored, on.server, archive, backup)
                conn = await on.fresh()
                took = time.monotonic() - begun
                await _the_past_is_there(conn, before, pending)
                await _words_of_strangers_are_stale(conn, stranger, started)
                # These run a second time beside the first, in the same worker.
                await on.crew.until_noted("start", 5 + 2 * len(twice) + len(gone), seconds=30)
                gate.touch()
                await _all_end(conn, [*ran_on, *has_on_finish, *waiting, *twice])
                left = "select count(*) from penstock.finished where id = any($1)"
                assert await conn.fetchval(left, gone) == 0
                lost = [key for key in on.acked if key not in before]
                await _keys_are_good_again(on, lost)
                print(f"restored in {took:.2f} s: {len(before)} kept, {len(lost)} since then lost")
                assert old.popen.poll() is None
                assert "Traceback" not in on.logs()
                assert_sound(on.server.dsn)
            finally:
                backup.kill()


async def _webhooks(on: Ground) -> list[UUID]:
    """Finish jobs whose webhooks are not sent yet."""
    return [
        await factory.submit(on.conn, "nap", payload={"seconds": 0}, webhook_url=f"{RECEIVER}/{n}")
        for n in range(3)
    ]


async def _pending(conn: asyncpg.Connection) -> set[UUID]:
    rows = await conn.fetch("select id from penstock.delivery where next_at is not null")
    return {row["id"] for row in rows}


async def _archived(conn: asyncpg.Connection, file: str) -> bool:
    found: bool = await conn.fetchval("select last_archived_wal >= $1 from pg_stat_archiver", file)
    return found


async def _the_past_is_there(
    conn: asyncpg.Connection, before: dict[str, str], pending: set[UUID]
) -> None:
    rows = await conn.fetch(
        "select id::text from penstock.job union all select id::text from penstock.finished"
    )
    assert set(before.values()) <= {row["id"] for row in rows}
    # The restored system sends messages that were not sent before the point, with the same id.
    assert await _pending(conn) == pending
    assert pending


async def _words_of_strangers_are_stale(
    conn: asyncpg.Connection, stranger: int, late: Sequence[factory.Row]
) -> None:
    """The same jobs and attempts, begun in both worlds: only the worker's identity differs."""
    here = await factory.worker(conn, "here")
    started = await factory.claim(conn, here, "idle", len(late))
    assert [(row["id"], row["attempt"]) for row in started] == [
        (row["id"], row["attempt"]) for row in late
    ]
    messages = await factory.finish(conn, stranger, late, "failed", error={"class": "bug"})
    assert [row["verdict"] for row in messages] == ["stale"] * len(late)
    messages = await factory.finish(conn, here, started)
    assert [row["verdict"] for row in messages] == ["done"] * len(late)


async def _all_end(conn: asyncpg.Connection, jobs: list[UUID]) -> None:
    async def finished() -> bool:
        return not await conn.fetchval("select count(*) from penstock.job")

    await eventually(finished, "nothing is left to do", seconds=40, poll=0.05)
    rows = await conn.fetch("select status::text from penstock.finished where id = any($1)", jobs)
    assert [row["status"] for row in rows] == ["succeeded"] * len(jobs)


async def _keys_are_good_again(on: Ground, lost: list[str]) -> None:
    """A client that repeats a lost submit gets a job, and no error.

    Some of the first submits were in progress at the point: they exist, and are returned again.
    """
    for key in lost:
        on.acked.pop(key)
    async with on.client() as client:
        for key in lost[:20]:
            await on.insist(client, key, seconds=NAP_SECONDS)
