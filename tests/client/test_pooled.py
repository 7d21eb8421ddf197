"""An app behind a pooler in transaction mode can submit; workers and commands refuse it."""

import asyncio

import asyncpg
import pytest

from penstock import Penstock
from penstock.base.settings import Settings
from penstock.db.connections.connect import connect
from penstock.db.connections.driver_errors import POOLED, translated
from penstock.errors import Misconfigured
from penstock.worker.worker import Options, Worker
from support.servers.pooler import pooled
from support.session_settings import sessions_with


async def test_an_app_submits_and_reads_through_a_pooler(database: str) -> None:
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


async def test_settings_of_sessions_change_no_answer_and_stay_unchanged(
    database: str, conn: asyncpg.Connection
) -> None:
    """D3: each transaction sets what it relies on, and leaves the session unchanged."""
    odd = {"default_transaction_isolation": "serializable", "statement_timeout": "7s"}
    with sessions_with(database, "role", **odd, standard_conforming_strings="off"):
        async with pooled(database) as dsn:
            app = Penstock(dsn, name="pooled")
            queue = app.queue("q")
            app.plan("free", default=True, per_hour=1_000)

            @app.job(queue=queue, account="who")
            async def pay(who: str, n: int) -> int:  # noqa: ARG001  # the account
                return n

            await asyncio.gather(*(pay.submit(who=f"u{n % 3}", n=n) for n in range(60)))
            await app.close()
            other = await asyncpg.connect(dsn, statement_cache_size=0)
            for _ in range(5):
                assert await other.fetchval("show default_transaction_isolation") == "serializable"
                assert await other.fetchval("show statement_timeout") == "7s"
            await other.close()
    assert await conn.fetchval("select count(*) from penstock.job") == 60


async def test_a_command_refuses_a_session_that_is_not_its_own(database: str) -> None:
    """It refuses before it changes a setting: the session is another program's a moment later."""
    async with pooled(database) as dsn:
        with pytest.raises(Misconfigured, match="pool_mode = session"):
            async with connect(Settings(dsn=dsn)):
                pass
        other = await asyncpg.connect(dsn, statement_cache_size=0)
        assert await other.fetchval("show extra_float_digits") == "1"
        source = "select source from pg_settings where name = 'default_transaction_isolation'"
        assert await other.fetchval(source) == "default"
        await other.close()


async def test_a_worker_says_what_to_change(database: str) -> None:
    app = Penstock(database, name="pooled")
    queue = app.queue("q")

    @app.job(queue=queue)
    async def nothing() -> None: ...

    async with pooled(database) as dsn:
        with pytest.raises(Misconfigured, match="pool_mode = session"):
            await Worker(dsn, app.handlers(), Options(name="w")).run()


def test_other_programs_that_need_a_session_say_so_too() -> None:
    """A command's prepared statement may already exist in the session, from another client."""
    with pytest.raises(Misconfigured) as caught, translated():
        raise asyncpg.DuplicatePreparedStatementError
    assert str(caught.value) == POOLED
