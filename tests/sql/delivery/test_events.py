"""Polls of live streams find changed jobs, none of other accounts, and cost little."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock.db.connections.driver_errors import fetching
from penstock.engine.queries.events import Events, Scope, ScopeState, WatchRequest
from support import factory
from support.clock import Clock
from support.shapes import Scale

MARGIN = timedelta(minutes=10)
MOST = 1_001


@pytest.fixture
def events(conn: asyncpg.Connection) -> Events:
    return Events(fetching(conn))


async def poll(events: Events, scope: Scope, fingerprint: int | None = None) -> ScopeState | None:
    found = await events.changed_scopes([scope], [fingerprint], margin=MARGIN, most=MOST)
    return found[0] if found else None


async def finished_job(conn: asyncpg.Connection, **fields: Any) -> UUID:
    """Submit and run a job that succeeds."""
    job = await factory.submit(conn, **fields)
    number = await factory.worker(conn)
    await factory.finish(conn, number, await factory.claim(conn, number))
    return job


async def test_jobs_that_changed_or_finished_are_found(
    conn: asyncpg.Connection, events: Events
) -> None:
    await factory.queue(conn)
    first, second, third = await factory.submit_rows(conn, [{"kind": "q"}] * 3)
    jobs = [first, second, third]
    assert await events.changed_jobs(jobs, [1, 1, 1]) == []
    number = await factory.worker(conn)
    started = await factory.claim(conn, number, limit=2)
    await factory.finish(conn, number, started[:1])
    assert set(await events.changed_jobs(jobs, [1, 1, 1])) == {first, second}
    assert await events.changed_jobs(jobs, [1, 2, 1]) == [first], "it is not live any more"
    seen = {one.id: one for one in await events.read_jobs(jobs, positions=3)}
    assert [seen[job].status for job in jobs] == ["succeeded", "running", "queued"]
    assert seen[third].mark == "1"
    [plain] = await events.read_jobs([third], positions=0)
    assert "position" in plain.text
    assert not plain.mark
    assert await events.read_jobs([UUID(int=1)], positions=1) == []


@pytest.mark.parametrize("scope", [Scope("a", None), Scope(None, "u"), Scope("a", "u")])
async def test_a_scope_has_another_print_with_each_change(
    conn: asyncpg.Connection, events: Events, scope: Scope
) -> None:
    await factory.queue(conn)
    first = await factory.submit(conn, topic="a", account="u")
    seen = await poll(events, scope)
    assert seen
    assert seen.live == {first: 1}
    assert await poll(events, scope, seen.fingerprint) is None
    second = await factory.submit(conn, topic="a", account="u")
    seen = await poll(events, scope, seen.fingerprint)
    assert seen
    assert set(seen.live) == {first, second}
    number = await factory.worker(conn)
    started = await factory.claim(conn, number)
    seen = await poll(events, scope, seen.fingerprint)
    assert seen
    assert seen.live[first] == 2
    await factory.finish(conn, number, started)
    seen = await poll(events, scope, seen.fingerprint)
    assert seen
    assert (set(seen.live), seen.finished) == ({second}, [first])
    await factory.submit(conn, topic="b", account="v")
    assert await poll(events, scope, seen.fingerprint) is None, (
        "jobs of other scopes do not change it"
    )


async def test_a_job_that_started_and_finished_since_is_among_the_newest(
    conn: asyncpg.Connection, events: Events, clock: Clock
) -> None:
    await factory.queue(conn)
    old = await finished_job(conn, topic="a")
    await clock.advance("20m")
    before = await poll(events, Scope("a", None))
    assert before
    assert before.finished == []
    new = await finished_job(conn, topic="a")
    after = await poll(events, Scope("a", None), before.fingerprint)
    assert after
    assert after.finished == [new]
    [(recent, more)] = (
        await events.recently_finished([Scope("a", None)], since=timedelta(minutes=5), most=10)
    ).values()
    assert (recent, more) == ([new], False)
    assert old not in recent


async def test_an_accounts_print_covers_its_balance_and_plan(
    conn: asyncpg.Connection, events: Events
) -> None:
    await conn.execute("select penstock.create_account('u')")
    seen = await poll(events, Scope(None, "u"))
    assert seen
    await conn.execute("select penstock.grant_credits('u', 5, 'test', null)")
    after = await poll(events, Scope(None, "u"), seen.fingerprint)
    assert after
    assert (await events.read_balances(["u", "nobody"])) == {
        "u": '{"id": "u", "plan": null, "queued": 0, "balance": 5, "running": 0}'
    }


async def test_jobs_of_another_account_may_not_be_watched(
    conn: asyncpg.Connection, events: Events
) -> None:
    await factory.queue(conn)
    live = await factory.submit(conn, topic="b", account="u")
    over = await finished_job(conn, topic="a", account="u")
    if await factory.status(conn, over) != "succeeded":
        live, over = over, live  # the other job was claimed first
    batch = await conn.fetchval(
        "select batch from penstock.submit_many(array['q'], array['{}'::jsonb], array['u'],"
        " p_batched => true)"
    )
    for job in (live, over):
        topic = (await factory.read(conn, job))["topic"]
        asked = [
            (WatchRequest("job", str(job), None, None), True),
            (WatchRequest("job", str(job), "u", None), True),
            (WatchRequest("job", str(job), "u", topic), True),
            (WatchRequest("job", str(job), "v", None), False),
            (WatchRequest("job", str(job), "u", "elsewhere"), False),
        ]
        answers = await events.may_watch([wanted for wanted, _ in asked])
        assert answers == [answer for _, answer in asked]
    assert await events.may_watch(
        [
            WatchRequest("job", str(UUID(int=1)), None, None),
            WatchRequest("batch", str(batch), "u", None),
            WatchRequest("batch", str(batch), "v", None),
            WatchRequest("account", "u", "u", None),
            WatchRequest("account", "u", "v", None),
            WatchRequest("account", "w", None, None),
        ]
    ) == [False, True, False, True, False, False]


async def test_chunks_are_returned_in_order_after_a_position(
    conn: asyncpg.Connection, events: Events
) -> None:
    await factory.queue(conn)
    job = await factory.submit(conn)
    rows = [(job, attempt, seq, {"n": seq}) for attempt in (1, 2) for seq in (1, 2, 3)]
    await conn.executemany("insert into penstock.chunk values ($1, $2, $3, $4)", rows)
    found, all_of_it = await events.read_chunks([(job, 1, 2), (job, 0, 0)], most=3)
    assert [(one.attempt, one.seq) for one in found] == [(1, 3), (2, 1), (2, 2)]
    assert found[0].data == '{"n": 3}'
    assert [(one.attempt, one.seq) for one in all_of_it] == [(1, 1), (1, 2), (1, 3)]


async def test_a_batch_has_another_print_with_each_change(
    conn: asyncpg.Connection, events: Events
) -> None:
    await factory.queue(conn)
    batch = await conn.fetchval(
        "select max(batch::text)::uuid from penstock.submit_many(array['q', 'q'],"
        " array['{}', '{}']::jsonb[], p_batched => true)"
    )
    prints = [await events.batch_fingerprints([batch])]
    number = await factory.worker(conn)
    started = await factory.claim(conn, number)
    prints.append(await events.batch_fingerprints([batch]))
    await factory.finish(conn, number, started)
    prints.append(await events.batch_fingerprints([batch]))
    assert len({one[batch] for one in prints}) == 3
    assert await events.batch_fingerprints([batch]) == prints[-1]


async def test_invalid_keys_are_returned(
    conn: asyncpg.Connection, events: Events, clock: Clock
) -> None:
    for name, expires in (("good", None), ("revoked", None), ("short", timedelta(minutes=1))):
        await conn.execute(
            "select penstock.create_key($1, 'app', $2, p_expires => $3)", name, b"-", expires
        )
    await conn.execute("select penstock.revoke_key('revoked')")
    await clock.advance("2m")
    names = ["good", "revoked", "short", "never"]
    assert await events.dead_keys(names) == {"revoked", "short", "never"}


POLLS = {
    "jobs": "penstock.poll_jobs($1::uuid[], array_fill(1, array[10]))",
    "topic": "penstock.poll_scopes(array['few'], array[null], array[null]::bigint[], '10 min',"
    " 1001), (select $1::uuid[]) a",
    "account": "penstock.poll_scopes(array[null], array['u1'], array[null]::bigint[], '10 min',"
    " 1001), (select $1::uuid[]) a",
    "within": "penstock.poll_scopes(array['many'], array['u1'], array[null]::bigint[],"
    " '10 min', 1001), (select $1::uuid[]) a",
    "recent": "penstock.find_recently_finished(array['few', null], array[null, 'u1'],"
    " '5 min', 1000),"
    " (select $1::uuid[]) a",
    "watch": "penstock.may_watch(array['job'], array[($1::uuid[])[1]::text], array['u1'],"
    " array[null])",
    "batch": "penstock.poll_batches($1)",
}


async def test_polls_do_not_read_jobs_that_nobody_watches(
    conn: asyncpg.Connection, scale: Scale
) -> None:
    """Counted in pages: tens of thousands of live and finished jobs, a few of them watched."""
    await factory.queue(conn)
    jobs = scale(20_000, 200_000)
    await conn.execute(
        "select count(*) from penstock.submit_many(array_fill('q'::text, array[$1::integer]),"
        " array_fill('{}'::jsonb, array[$1]),"
        " (select array_agg('u' || case when g % 500 = 0 then 1 else g % 7 + 2 end)"
        "  from generate_series(1, $1) g),"
        " p_topics => (select array_agg(case when g % 1000 = 0 then 'few' else 'many' end)"
        "  from generate_series(1, $1) g))",
        jobs,
    )
    number = await factory.worker(conn)
    for _ in range(jobs // 2_000):
        await factory.finish(conn, number, await factory.claim(conn, number, limit=1_000))
    await conn.execute("analyze")
    watched = [row["id"] for row in await conn.fetch("select id from penstock.job limit 10")]
    for name, call in POLLS.items():
        sql = f"select * from {call}"
        for _ in range(2):  # the session has loaded its caches
            await conn.fetch(sql, watched)
        [plan] = await conn.fetchval(f"explain (analyze, buffers, format json) {sql}", watched)
        read = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
        assert read < 1_000 + jobs // 100, f"{name}: {read} pages"
