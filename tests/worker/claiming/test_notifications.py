"""NOTIFY from strangers: any role that may connect can send to every channel."""

import asyncio
import json
import logging
import random
from collections import Counter
from datetime import timedelta

import asyncpg
import pytest

from penstock import Job, Penstock
from penstock.worker.membership.registration import CHANNELS
from support.shapes import Connect
from support.waiting import eventually
from support.worker.crew import until_finished, working

ODD = [
    "",
    "no JSON",
    "null",
    "[]",
    "7",
    '"a text"',
    "{}",
    '{"queue": 1}',
    '{"queue": "q", "state": "open"}',
    '{"queue": "q", "state": "open", "class": {}, "message": null}',
    '{"worker": null, "id": "x", "started_at": "never"}',
    "[" * 7_000,
    "\u202e\x07 not for a terminal",
    "00000000-0000-0000-0000-000000000000",
]
ENDS = "nothing is ever delivered twice\nWARNING penstock: forged"


def fuzzed(seed: int, n: int) -> list[str]:
    """Valid payloads with a few characters changed."""
    chance = random.Random(seed)
    sound = {"queue": "q", "state": "closed", "class": "timeout", "message": "it is back"}
    words = []
    for _ in range(n):
        word = list(json.dumps(sound))
        for _ in range(chance.randint(1, 6)):
            word[chance.randrange(len(word))] = chr(chance.randint(1, 0x2FF))
        words.append("".join(word))
    return words


async def until_it_listens(conn: asyncpg.Connection) -> None:
    await eventually(
        lambda: conn.fetchval(
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and application_name = 'penstock control' and state = 'idle'"
            " and query ~* 'listen.*penstock_circuit')"
        ),
        "the worker listens",
    )


async def notify(conn: asyncpg.Connection, channels: list[str], words: list[str]) -> None:
    for channel in channels:
        await conn.execute("select pg_notify($1, w) from unnest($2::text[]) w", channel, words)


async def test_a_payload_that_a_worker_cannot_read_is_ignored_and_logged_once(
    database: str,
    conn: asyncpg.Connection,
    seed: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D3: and the worker goes on receiving what others send."""
    caplog.set_level(logging.INFO, logger="penstock")
    app = Penstock(database, name="notified")
    app.queue("q")

    @app.job(queue="q")
    async def quick(n: int) -> int:
        return n

    async with working(database, app, poll=timedelta(hours=1)):
        await until_it_listens(conn)
        await notify(conn, [*CHANNELS], ODD + fuzzed(seed, 200))
        jobs = [(await quick.submit(n=n)).id for n in range(3)]
        await until_finished(conn, jobs)
    statuses = await conn.fetch("select status from penstock.finished")
    assert Counter(row["status"] for row in statuses) == {"succeeded": 3}
    logs = [record for record in caplog.records if "unreadable notification" in record.message]
    assert 1 <= len([one for one in logs if one.levelno == logging.WARNING]) <= 2
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
    await app.close()


async def test_a_notification_alone_cancels_nothing(
    database: str, conn: asyncpg.Connection, connect: Connect
) -> None:
    """Any role that may connect to the database can send one, and an id is no secret."""
    app = Penstock(database, name="notified")
    app.queue("q")
    begun = asyncio.Event()
    go_on = asyncio.Event()

    @app.job(queue="q")
    async def slow(job: Job) -> bool:
        begun.set()
        await go_on.wait()
        return job.cancelled

    stranger = await connect()
    async with working(database, app) as here:
        job = (await slow.submit()).id
        await asyncio.wait_for(begun.wait(), 10)
        await until_it_listens(conn)
        poll = here.worker._attempts.cancel_requested
        polled = asyncio.Event()

        async def seen(worker: int) -> None:
            await poll(worker)
            polled.set()

        here.worker._attempts.cancel_requested = seen  # type: ignore[method-assign]
        await stranger.execute("select pg_notify('penstock_cancel', $1)", str(job))
        await asyncio.wait_for(polled.wait(), 10)
        go_on.set()
        await until_finished(conn, [job])
    [row] = await conn.fetch("select status, result from penstock.finished where id = $1", job)
    assert (row["status"], row["result"]) == ("succeeded", False)
    await app.close()


async def test_a_circuits_message_is_one_line_of_the_log(
    database: str, conn: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = Penstock(database, name="notified")
    app.queue("q")

    @app.job(queue="q")
    async def quick() -> None:
        pass

    forged = {"queue": "q", "state": "closed", "class": None, "message": ENDS + "x" * 2_000}

    async def logged() -> bool:
        return "forged" in caplog.text

    async with working(database, app):
        await until_it_listens(conn)
        await conn.execute("select pg_notify('penstock_circuit', $1)", json.dumps(forged))
        await eventually(logged, "the message is logged")
    [record] = [one for one in caplog.records if "forged" in one.message]
    assert "\n" not in record.message
    assert len(record.message) <= 500
    await app.close()
