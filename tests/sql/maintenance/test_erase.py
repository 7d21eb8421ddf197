"""Erasing an account: nothing of a person is left except the amounts in the ledger (C22)."""

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import refused
from support.shapes import Connect, Scale

CANARY = "canary-7f3a"


async def erase(conn: asyncpg.Connection, account: str = CANARY, rows: int = 500) -> dict[str, Any]:
    """Erase until it is done, or until only running jobs are left."""
    for _ in range(1_000):
        step: dict[str, Any] = await conn.fetchval(
            "select penstock.erase_account($1, $2)", account, rows
        )
        if step["done"] or (step["live"] and not step["cancelled"]):
            return step
    raise AssertionError("the erasure does not end")


async def where(conn: asyncpg.Connection, text: str = CANARY) -> set[str]:
    """Return the tables in which a text occurs, in any column, also inside bytes."""
    tables = await conn.fetch(
        "select oid::regclass::text as name from pg_class"
        " where relnamespace = 'penstock'::regnamespace and relkind in ('r', 'p')"
        " and not relispartition"
    )
    found = set()
    for table in tables:
        count = await conn.fetchval(
            f"select count(*) from {table['name']} t"
            " where t::text ilike '%' || $1 || '%' or t::text ilike '%' || $2 || '%'",
            text,
            text.encode().hex(),
        )
        if count:
            found.add(table["name"].removeprefix("penstock."))
    return found


async def live(conn: asyncpg.Connection, n: int = 4) -> list[UUID]:
    """Submit jobs with the canary in every field that a caller can set."""
    return await factory.submit_rows(
        conn,
        [
            {
                "kind": "q",
                "account": CANARY,
                "payload": {"essay": CANARY},
                "topic": CANARY,
                "dedupe_key": f"{CANARY}-{i}",
                "metadata": {"who": CANARY},
            }
            for i in range(n)
        ],
    )


@pytest.fixture
async def canaries(conn: asyncpg.Connection) -> asyncpg.Connection:
    """Put the canary into every table that can hold it, beside another account."""
    await factory.queue(conn, delay_seconds=0)
    await factory.plan(conn, per_hour=1_000)
    await conn.execute("select penstock.grant_credits($1, 100)", CANARY)
    await conn.execute(
        "select penstock.create_key('k1', 'account', '\\x00', $1::text, $1::text)", CANARY
    )
    worker = await factory.worker(conn)
    await conn.execute(
        "select penstock.submit_job('q', $1, account => $2, idempotency_key => $2,"
        " webhook_url => 'https://' || $2 || '.example.org/')",
        {"essay": CANARY},
        CANARY,
    )
    await live(conn)
    [one] = await factory.claim(conn, worker)
    job, attempt = one["id"], one["attempt"]
    for columns, values in (
        ("step (job_id, attempt, name, kept_at, result)", "$3::text, penstock.clock(), $4"),
        ("chunk (job_id, attempt, seq, data)", "length($3::text), $4"),
        (
            "late_result (job_id, attempt, outcome, arrived_at, result)",
            "left($3::text, 3), penstock.clock(), $4",
        ),
    ):
        sql = f"insert into penstock.{columns} values ($1, $2, {values})"
        await conn.execute(sql, job, attempt, CANARY, {"text": CANARY})
    error = {"class": "bug", "message": CANARY}
    await factory.finish(conn, worker, [one], "retry", error=error, delay="0 s")
    await factory.finish(conn, worker, await factory.claim(conn, worker), "failed", error=error)
    await factory.finish(conn, worker, await factory.claim(conn, worker), result={"text": CANARY})
    upload = await conn.fetchval(
        "insert into penstock.upload (id, account_id, content_type, size, sha256, created_at)"
        " select gen_random_uuid(), id, 'text/plain', 11, '\\x00', penstock.clock()"
        " from penstock.account where name = $1 returning id",
        CANARY,
    )
    await conn.execute(
        "insert into penstock.upload_part (upload_id, n, data) values ($1, 0, $2)",
        upload,
        CANARY.encode(),
    )
    await factory.submit(conn, account="bystander", payload={"n": 1})
    return conn


async def test_a_search_of_every_table_finds_nothing_c22(canaries: asyncpg.Connection) -> None:
    """C22: payload, result, errors, keys, steps, chunks, late results, uploads, webhooks, name."""
    assert await where(canaries) >= {
        *("account", "api_key", "attempt", "chunk", "delivery", "finished", "idempotency", "job"),
        *("late_result", "step", "upload_part"),
    }
    receipt = await erase(canaries, rows=2)
    assert receipt["done"]
    assert await where(canaries) == set()
    number = await canaries.fetchval("select account_id from penstock.erasure")
    assert receipt["pseudonym"] == f"erased-{number}"
    assert (receipt["uploads"], receipt["keys"], receipt["webhooks"]) == (1, 1, 1)
    assert receipt["jobs"] == 5
    kept = await canaries.fetchval("select receipt from penstock.erasure")
    assert kept == {key: receipt[key] for key in receipt if key in kept}
    with refused(404, "unknown_account", "account"):
        await erase(canaries)


async def test_other_accounts_are_not_changed(canaries: asyncpg.Connection) -> None:
    await erase(canaries)
    account = await canaries.fetchval("select penstock.read_account('bystander')")
    assert account["queued"] == 1


async def test_the_ledger_stays_under_a_number(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await conn.execute("select penstock.declare_kind('q', 'q', '{\"price\": 3}')")
    await conn.execute("select penstock.grant_credits($1, 10, 'bought', 'payment-1')", CANARY)
    await live(conn, 2)
    worker = await factory.worker(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    receipt = await erase(conn)
    # The waiting jobs were cancelled and refunded first.
    assert await conn.fetchval("select balance from penstock.account where id <> 0") == 7
    assert await conn.fetchval("select sum(amount) from penstock.ledger") == 7
    assert receipt["kept"] == {"ledger_lines": 4, "with_words": 1}
    # The name is free for somebody else, who begins with an empty account.
    await conn.execute("select penstock.create_account($1)", CANARY)
    assert (await conn.fetchval("select penstock.read_account($1)", CANARY))["balance"] == 0


async def test_running_jobs_are_cancelled_and_delay_the_erasure(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    await conn.execute("select penstock.create_account($1)", CANARY)
    await conn.execute("select penstock.create_key('k1', 'account', '\\x00', $1)", CANARY)
    worker = await factory.worker(conn)
    jobs = await live(conn, 3)
    started = await factory.claim(conn, worker)
    step = await erase(conn)
    assert (step["done"], step["live"]) == (False, 1)
    assert await factory.status(conn, jobs[-1]) == "cancelled"
    assert (await factory.read(conn, started[0]["id"]))["cancel_requested"]
    assert await conn.fetchval("select is_over from penstock.find_key('k1')")
    # Its worker does not notice the request: recovery cancels it.
    await clock.advance("11s")
    await factory.recover(conn)
    receipt = await erase(conn)
    assert receipt["done"]
    assert (receipt["jobs"], receipt["keys"]) == (3, 1)
    assert await where(conn) == set()


async def test_an_erasure_waits_for_an_open_submit(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """An app's open transaction has read the name: its job does not appear after the erasure."""
    await factory.queue(conn)
    await conn.execute("select penstock.create_account($1)", CANARY)
    app = await connect()
    begun = app.transaction()
    await begun.start()
    await live(app, 1)
    with pytest.raises(asyncpg.LockNotAvailableError):
        await erase(conn)
    eraser = await connect()
    task = asyncio.ensure_future(erase(eraser))
    await factory.until_blocked(conn, eraser)
    await begun.commit()
    assert (await task)["done"]
    assert await where(conn) == set()


async def test_an_apps_transaction_never_deadlocks_with_an_erasure(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """It locks one queue and waits for the other; the last step does so in the reverse order."""
    await factory.queue(conn, "a")
    await factory.queue(conn, "b")
    await conn.execute("select penstock.create_account($1)", CANARY)
    app, eraser = await connect(), await connect()
    async with app.transaction():
        await factory.submit(app, "b")
        task = asyncio.ensure_future(erase(eraser))
        await factory.until_blocked(conn, eraser)
        await factory.submit(app, "a")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await task
    assert (await erase(conn))["done"]


async def test_two_concurrent_erasures_count_everything_once(
    canaries: asyncpg.Connection, connect: Connect
) -> None:
    one, other = await connect(), await connect()
    both = await asyncio.gather(erase(one, rows=1), erase(other, rows=1), return_exceptions=True)
    [receipt] = [one for one in both if isinstance(one, dict)]
    assert (receipt["jobs"], receipt["keys"], receipt["uploads"]) == (5, 1, 1)
    assert await canaries.fetchval("select count(*) from penstock.erasure") == 1


FINISHED = """
insert into penstock.finished (id, class, status, account_id, queue_id, kind_id, priority, attempt,
  failures, deferrals, crashes, max_attempts, version, created_at, run_at, started_at, finished_at,
  finished_by_attempt, payload)
select penstock.new_id(penstock.clock()), q.succeeded_class, 'succeeded', a.id, q.id, k.id, 0, 1, 0,
  0, 0, 3, 3, penstock.clock(), penstock.clock(), penstock.clock(), penstock.clock(), true, '{}'
from generate_series(1, $1::integer), penstock.account a,
  penstock.queue q join penstock.kind k on k.queue_id = q.id
where a.name is not null
"""


async def test_no_step_locks_the_account_for_long(conn: asyncpg.Connection, scale: Scale) -> None:
    """However many jobs the account had: each step deletes a bounded number."""
    rows = scale(5_000, 200_000)
    await factory.queue(conn)
    await conn.execute("select penstock.create_account($1)", CANARY)
    await conn.execute(FINISHED, rows)
    await conn.execute("analyze penstock.finished")
    left = rows
    while left:
        step = await conn.fetchval("select penstock.erase_account($1)", CANARY)
        assert left - 500 <= rows - step["jobs"] <= left
        left = rows - step["jobs"]
    receipt = await erase(conn)
    assert (receipt["done"], receipt["jobs"]) == (True, rows)


@pytest.mark.parametrize("rows", [0, -1, 100_001, None])
async def test_the_number_of_rows_of_a_step_is_bounded(
    conn: asyncpg.Connection, rows: int | None
) -> None:
    with refused(422, "invalid_limit", "rows"):
        await conn.fetchval("select penstock.erase_account('x', $1)", rows)
