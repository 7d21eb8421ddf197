"""An app behind a pooler that gives each transaction another session: it submits all the same."""

import asyncio

import asyncpg
import pytest

from penstock import Penstock
from penstock.db.call import POOLED, translated
from penstock.errors import Misconfigured
from penstock.worker.worker import Options, Worker
from pooler import pooled


async def test_an_app_submits_and_looks_through_a_pooler(database: str) -> None:
    async with pooled(database) as dsn:
        app = Penstock(dsn, name="pooled")
        queue = app.queue("q")

        @app.job(queue=queue, dedupe="n")
        async def double(n: int) -> int:
            return 2 * n

        tickets = await asyncio.gather(*(double.submit(n=n) for n in range(8)))
        assert (await double.submit_many([{"n": 1}, {"n": 9}]))[0].deduplicated
        assert (await tickets[0].status())["status"] == "queued"
        await tickets[0].cancel()
        assert (await tickets[0].status())["status"] == "cancelled"
        await app.close()


async def test_a_worker_says_what_to_change(database: str) -> None:
    app = Penstock(database, name="pooled")
    queue = app.queue("q")

    @app.job(queue=queue)
    async def nothing() -> None: ...

    async with pooled(database) as dsn:
        with pytest.raises(Misconfigured, match="pool_mode = session"):
            await Worker(dsn, app.handlers(), Options(name="w")).run()


def test_anything_else_that_needs_a_session_says_so_too() -> None:
    """Commands keep statements on their one connection, and meet another client's there."""
    with pytest.raises(Misconfigured) as told, translated():
        raise asyncpg.DuplicatePreparedStatementError
    assert str(told.value) == POOLED
