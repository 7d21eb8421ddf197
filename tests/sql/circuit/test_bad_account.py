"""Jobs of one account that always hang or fail do not stop those of other accounts."""

from typing import Any

import asyncpg
import pytest

from support import factory
from support.circuits import circuit, end, opened
from support.clock import Clock
from support.factory import Row
from support.provider_model import Reply, Run, hangs_for
from support.shapes import Connect

pytestmark = pytest.mark.one_version

ACCOUNTS = 20


async def submitted(conn: asyncpg.Connection, each: int, **options: Any) -> None:
    """Submit the jobs of all accounts in turn."""
    await factory.queue(conn, **options)
    accounts = [f"a{n}" for n in range(ACCOUNTS)]
    await factory.submit_rows(
        conn, [{"kind": "q", "account": account} for _ in range(each) for account in accounts]
    )


async def others(conn: asyncpg.Connection, clock: Clock, bad: str, failure: str) -> int:
    """How many jobs of the other accounts are answered in half a minute."""
    run = Run(conn, clock, hangs_for(bad, failure, seconds=10), slots=ACCOUNTS)
    await run.until(30)
    return run.served - run.answered[bad]


@pytest.mark.parametrize(("failure", "order"), [("stalled", "aging"), ("timed_out", "fair")])
async def test_other_accounts_lose_little_beside_one_whose_jobs_all_hang(
    conn: asyncpg.Connection, clock: Clock, failure: str, order: str
) -> None:
    """D5: 1 of 20, each with one job at a time; the other 19 lose less than 10 %."""
    await factory.plan(conn, concurrency=1)
    await submitted(conn, 45, concurrency=ACCOUNTS, order=order)
    well = 19 * 30  # a job takes a second
    assert await others(conn, clock, "a7", failure) > 0.9 * well
    assert (await circuit(conn))["state"] == "closed"


async def test_calls_that_hung_while_others_were_answered_do_not_open_the_circuit(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """D5: all of them finish at the same moment, and nothing else does."""
    await factory.queue(conn, concurrency=40, attempts=9)
    worker = await factory.worker(conn, lease="100 days")
    await clock.freeze()
    await factory.submit_rows(conn, [{"kind": "q", "account": "bad"}] * 10)
    hung = await factory.claim(conn, worker, limit=10)
    for _ in range(20):
        await factory.submit(conn, account="good")
        await clock.advance("1s")
        await factory.finish(conn, worker, await factory.claim(conn, worker))
    await end(conn, worker, hung, "stalled")
    row = await circuit(conn)
    assert (row["state"], row["in_row"]) == ("closed", 0)


async def test_three_interrupted_calls_of_one_account_do_not_stop_the_others(
    conn: asyncpg.Connection,
) -> None:
    """D5: interrupted calls of two accounts do."""
    await factory.queue(conn, attempts=9)
    worker = await factory.worker(conn)
    await factory.submit_rows(conn, [{"kind": "q", "account": "bad"}] * 5)
    await end(conn, worker, await factory.claim(conn, worker, limit=5), "interrupted", delay="1h")
    assert (await circuit(conn))["state"] == "closed"
    await factory.submit(conn, account="good")
    await end(conn, worker, await factory.claim(conn, worker), "interrupted")
    assert (await circuit(conn))["state"] == "open"


async def bad_first(conn: asyncpg.Connection, *, limited: bool) -> int:
    """An open circuit; jobs of one account, whose calls hang, come before all others."""
    if limited:
        await factory.plan(conn, concurrency=1)
    worker = await opened(conn, jobs=2, concurrency=8, attempts=9)
    await conn.execute("select penstock.cancel_job(id) from penstock.job")
    await factory.submit_rows(conn, [{"kind": "q", "account": "bad"}] * 50)
    await factory.submit_rows(conn, [{"kind": "q", "account": "good"}] * 50)
    return worker


@pytest.mark.parametrize("limited", [False, True])
async def test_a_probe_that_hangs_does_not_keep_the_circuit_open_for_others(
    conn: asyncpg.Connection, clock: Clock, limited: bool
) -> None:
    """D5: the next probe is of another account, and does not wait until the first has finished."""
    await bad_first(conn, limited=limited)
    run = Run(conn, clock, hangs_for("bad", seconds=600))
    await run.until(13)
    assert run.answered["good"] >= 1
    if limited:
        await run.until(40)
        assert run.answered["good"] >= 15, "nor does its job hold the ramp"


async def test_a_wrong_key_of_one_account_delays_the_others_only_briefly(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """D5: the probes are jobs of other accounts then, and do not wait for a quarter of an hour."""
    await factory.queue(conn, concurrency=2)
    await factory.submit_rows(conn, [{"kind": "q", "account": "bad"}] * 20)
    await factory.submit_rows(conn, [{"kind": "q", "account": "good"}] * 20)

    def provider(_: Run, row: Row) -> Reply:
        return Reply(0.01, "auth") if row["account"] == "bad" else Reply(1)

    run = Run(conn, clock, provider, slots=2)
    await run.until(120)
    assert run.answered["good"] == 20


async def test_the_only_account_of_a_queue_loses_no_job_in_an_outage(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """F5: its jobs meet an outage, and none of them fails."""
    await factory.queue(conn, concurrency=4, attempts=3, delay_seconds=1)
    await factory.submit_rows(conn, [{"kind": "q", "account": "only"}] * 20)
    run = Run(conn, clock, lambda *_: Reply(0.05, "interrupted"), slots=4)
    await run.until(120)
    assert len(run.calls) <= 40
    run.provider = lambda *_: Reply(0.5)
    await run.until(300)
    assert run.served == 20


async def test_an_expired_job_is_no_probe(
    conn: asyncpg.Connection, connect: Connect, clock: Clock
) -> None:
    """D5: its account is locked, so no claim could expire it yet."""
    worker = await opened(conn, jobs=2, attempts=9)
    await conn.execute("select penstock.cancel_job(id) from penstock.job")
    await conn.execute("select penstock.grant_credits('late', 10)")
    await factory.submit(conn, account="late", price=1, expires_seconds=5)
    await factory.submit_rows(conn, [{"kind": "q", "account": "bad"}] * 2)
    await conn.execute(
        "update penstock.circuit set suspect = (select id from penstock.account where name = 'bad')"
    )
    app = await connect()
    async with app.transaction():
        await app.execute("select from penstock.account where name = 'late' for no key update")
        await clock.advance("10s")
        rows = await factory.claim(conn, worker)
    assert [row["account"] for row in rows] == ["bad"]
