"""Details for operators: accounts by name, stuck jobs, jobs of lost workers."""

from typing import Any

import asyncpg

from support import factory
from support.clock import Clock
from support.factory import refused


async def listed(conn: asyncpg.Connection, call: str, *args: Any) -> list[dict[str, Any]]:
    rows = await conn.fetch(f"select one from penstock.{call} one", *args)
    return [row["one"] for row in rows]


async def test_accounts_are_found_by_a_prefix_of_their_names(conn: asyncpg.Connection) -> None:
    for name in ("ann", "anna", "Anna", "bob", "an%", "an_"):
        await conn.execute("select penstock.create_account($1)", name)

    async def found(prefix: str, limit: int = 100, after: str | None = None) -> list[str]:
        call = "find_accounts($1, $2, $3)"
        return [one["id"] for one in await listed(conn, call, prefix, limit, after)]

    assert sorted(await found("ann")) == ["ann", "anna"]
    assert await found("an%") == ["an%"]
    assert await found("an_") == ["an_"]
    assert await found("c") == []
    everyone = await found("")
    assert sorted(everyone) == ["Anna", "an%", "an_", "ann", "anna", "bob"]
    assert await found("", 2) + await found("", 9, everyone[1]) == everyone
    for limit in (0, 1001, None):
        with refused(422, "invalid_filter", "limit"):
            await listed(conn, "find_accounts('a', $1)", limit)


async def test_an_account_and_a_plan_are_shown_with_their_values(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    await factory.plan(conn, "idle")
    await factory.plan(conn)
    worker = await factory.worker(conn)
    for _ in range(3):
        await factory.submit(conn, account="a")
    await factory.submit(conn, account="a", delay_seconds=60)
    await factory.submit(conn, account="b")
    await factory.submit(conn)
    await conn.execute("select penstock.set_account_plan($1, 'free')", "a")
    await conn.execute("select penstock.set_account_plan($1, 'free')", "b")
    first = await factory.claim(conn, worker, limit=2)
    await factory.finish(conn, worker, first[:1])
    a, b = await listed(conn, "list_accounts()")
    assert [(one["running"], one["queued"]) for one in (a, b)] == [(1, 2), (0, 1)]
    assert [one["submitted_last_hour"] for one in (a, b)] == [4, 1]
    assert a == await conn.fetchval("select penstock.read_account('a')")
    plans = {one["name"]: one["accounts"] for one in await listed(conn, "list_plans()")}
    assert plans == {"idle": 0, "free": 2}


async def test_a_stuck_job_is_listed_with_its_account_and_worker(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn, stale_after_seconds=60, timeout_seconds=7_200)
    worker = await factory.worker(conn, "gone", lease="90s")
    job = await factory.submit(conn, account="a")
    await factory.claim(conn, worker)
    await clock.advance("59s")
    assert await listed(conn, "list_stuck()") == []
    await clock.advance("1s")
    [stalled] = await listed(conn, "list_stuck()")
    await clock.advance("1m")
    await factory.recover(conn)
    [recovered] = await listed(conn, "list_stuck()")
    for found in (stalled, recovered):
        shown = (found["id"], found["account"], found["worker"], found["attempt"])
        assert shown == (str(job), "a", "gone", 1)
    assert (stalled["status"], stalled["class"]) == ("running", "stalled")
    assert recovered["status"] in ("queued", "scheduled")


async def test_a_lost_worker_is_listed_with_the_states_of_its_jobs(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    lost = await factory.worker(conn, "lost")
    other = await factory.worker(conn, "other", lease="1 day")
    for _ in range(4):
        await factory.submit(conn)
    before = await factory.claim(conn, lost, limit=3)
    await factory.finish(conn, lost, before[:1])
    await factory.claim(conn, other)
    assert await listed(conn, "list_losses()") == []
    await clock.advance("1m")
    await factory.recover(conn)
    [again] = await factory.claim(conn, other, limit=1)
    await factory.finish(conn, other, [again])
    [shown] = await listed(conn, "list_losses()")
    assert (shown["worker_id"], shown["jobs"]) == ("lost", 2)
    assert shown["now"] == {"succeeded": 1, "queued": 1}
    await clock.advance("25h")
    assert await listed(conn, "list_losses()") == []
