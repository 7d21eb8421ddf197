"""Settings of a role or a database for its sessions, and submits over HTTP under them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from penstock.worker.worker import Options, Worker
from support.http.site import Site
from support.session_settings import Of, sessions_with
from support.shapes import Connect, Scale
from support.waiting import eventually

ACCOUNTS = [f"u{n}" for n in range(6)]
PRICE, GRANTED = 2, 1_000
AT_ONCE = 20
WORK_SECONDS = 120
# Each would change an answer or break off calls if sessions did not set their own value.
ODD = {
    "default_transaction_deferrable": "on",
    "statement_timeout": "20ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "20ms",
    "idle_session_timeout": "1s",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "timezone": "Asia/Kolkata",
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "search_path": "nowhere",
    "row_security": "off",
    "check_function_bodies": "off",
    "plan_cache_mode": "force_custom_plan",
    "enable_indexscan": "off",
    "exit_on_error": "on",
}

# Open sessions keep the settings with which they began.
END_SESSIONS = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and application_name like 'penstock%'"
)
CANCEL_WAITING = (
    "select pg_cancel_backend(pid) from pg_stat_activity where datname = current_database()"
    " and application_name like 'penstock%' and wait_event_type = 'Lock'"
)


def declare(site: Site) -> None:
    studio = site.penstock.queue("studio", concurrency=8)
    site.penstock.plan("free", default=True, concurrency=2, per_hour=500)

    @site.penstock.job(queue=studio, account="customer", price=PRICE)
    async def draw(customer: str, n: int) -> int:  # noqa: ARG001  # the account
        return n


@asynccontextmanager
async def two_workers(site: Site) -> AsyncIterator[None]:
    await site.penstock.engine()
    workers = [Worker(site.dsn, site.penstock.handlers(), Options(name=f"w{n}")) for n in range(2)]
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
        assert not [task for task in tasks if task.done()], "a worker has ended"
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


async def submit_and_run(site: Site, conn: asyncpg.Connection, submits: int) -> None:
    """Check that all are accepted, run once and paid once, while two workers finish jobs."""
    declare(site)
    await site.start()
    for account in ACCOUNTS:
        await site.make_account(account, credits=GRANTED)
    turns = asyncio.Semaphore(AT_ONCE)

    async def submit(n: int) -> int:
        job = {"kind": "draw", "payload": {"customer": ACCOUNTS[n % len(ACCOUNTS)], "n": n}}
        async with turns:
            return (await site.app_client.post("/v1/jobs", json=job)).status_code

    async def all_ran() -> bool:
        ran: int = await conn.fetchval("select count(*) from penstock.finished")
        return ran == submits

    async with two_workers(site):
        statuses = await asyncio.gather(*(submit(n) for n in range(submits)))
        assert Counter(statuses) == {201: submits}
        await eventually(all_ran, "every job has run", seconds=WORK_SECONDS, poll=0.1)
    books = await conn.fetch(
        "select a.balance, (select count(*) from penstock.finished f"
        " where f.account_id = a.id and f.status = 'succeeded' and f.attempt = 1),"
        " (select sum(r.charged)::bigint from penstock.resolution r where r.account_id = a.id)"
        " from penstock.account a where a.name = any ($1)",
        ACCOUNTS,
    )
    each = submits // len(ACCOUNTS)
    assert {tuple(row) for row in books} == {(GRANTED - PRICE * each, each, PRICE * each)}


@pytest.mark.parametrize("of", ["database", "role"])
@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
async def test_no_isolation_level_of_sessions_changes_what_a_submit_answers(  # noqa: PLR0917
    site: Site, database: str, conn: asyncpg.Connection, level: str, of: Of, scale: Scale
) -> None:
    """D3"""
    with sessions_with(database, of, default_transaction_isolation=level):
        await submit_and_run(site, conn, scale(120, 300))


async def test_a_read_only_database_refuses_submits_and_stops_no_worker(
    site: Site, database: str, conn: asyncpg.Connection
) -> None:
    """D3: this setting forbids writes on purpose, so it is not overridden."""
    declare(site)
    await site.start()
    await site.make_account("u0", credits=GRANTED)
    job = {"kind": "draw", "payload": {"customer": "u0", "n": 1}}

    async def two_are_alive() -> bool:
        return bool(await conn.fetchval("select count(*) = 2 from penstock.worker_health"))

    async with two_workers(site):
        await eventually(two_are_alive, "both workers are there")
        with sessions_with(database, "database", default_transaction_read_only="on"):
            await conn.execute(END_SESSIONS)
            refused = await site.app_client.post("/v1/jobs", json=job)
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert refused.headers["retry-after"]
        await conn.execute(END_SESSIONS)

        async def accepted() -> bool:
            return (await site.app_client.post("/v1/jobs", json=job)).status_code == 201

        async def ran() -> bool:
            return bool(await conn.fetchval("select count(*) from penstock.finished"))

        await eventually(accepted, "a submit is accepted")
        await eventually(ran, "a job has run", seconds=30)


async def test_a_lock_held_by_another_session_is_reported_over_http(
    site: Site, conn: asyncpg.Connection
) -> None:
    declare(site)
    await site.start()
    await site.make_account("u0", credits=GRANTED)
    job = {"kind": "draw", "payload": {"customer": "u0", "n": 1}}
    async with conn.transaction():
        await conn.execute(
            "select pg_advisory_xact_lock(1886413172, id) from penstock.queue where name = 'studio'"
        )
        refused = await site.app_client.post("/v1/jobs", json=job)
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (503, "queue_locked")
    assert f"process {conn.get_server_pid()}" in problem["detail"]
    assert problem["queue"] == "studio"
    assert refused.headers["retry-after"] == "1"
    assert (await site.app_client.post("/v1/jobs", json=job)).status_code == 201


async def test_a_cancelled_statement_is_reported_over_http(
    site: Site, conn: asyncpg.Connection, connect: Connect
) -> None:
    declare(site)
    await site.start()
    await site.make_account("u0", credits=GRANTED)
    job = {"kind": "draw", "payload": {"customer": "u0", "n": 1}}

    async def cancelled() -> bool:
        return bool(await conn.fetch(CANCEL_WAITING))

    app = await connect()
    async with app.transaction():
        await app.execute("select from penstock.account where name = 'u0' for update")
        submit = asyncio.create_task(site.app_client.post("/v1/jobs", json=job))
        await eventually(cancelled, "the submit waits, and is cancelled")
        refused = await submit
    assert (refused.status_code, refused.json()["code"]) == (503, "statement_cancelled")
    assert refused.headers["retry-after"] == "1"
    assert await conn.fetchval("select count(*) from penstock.job") == 0


async def test_no_other_setting_changes_what_a_submit_answers(
    site: Site, database: str, conn: asyncpg.Connection, scale: Scale
) -> None:
    """D3"""
    with sessions_with(database, "role", **ODD):
        await submit_and_run(site, conn, scale(60, 300))
