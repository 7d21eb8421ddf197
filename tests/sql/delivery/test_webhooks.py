"""Webhooks of finished jobs: recorded at each finish, sent in turn, retried, given up, replayed."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import Row, refused
from support.shapes import Connect

MINE = "https://app.example.org/hooks"
THEIRS = "https://caller.example.com/told?job=1"
# Seconds between each try and the next one.
WAITS = (5, 30, 120, 600, 3_600, 14_400, 43_200, 86_400)


async def queue(conn: asyncpg.Connection, webhook: str | None = None, **options: Any) -> None:
    await factory.queue(conn, **options)
    if webhook is not None:
        await conn.execute("select penstock.declare_kind('q', 'q', $1)", {"webhook": webhook})


async def deliveries(conn: asyncpg.Connection, job: UUID | None = None) -> list[Row]:
    rows: list[Row] = await conn.fetch(
        "select d.*, penstock._delivery_status(d) as status from penstock.delivery d"
        " where $1::uuid is null or d.job_id = $1 order by d.id",
        job,
    )
    return rows


async def claim(conn: asyncpg.Connection, limit: int = 100, after: str = "") -> list[Row]:
    rows: list[Row] = await conn.fetch(
        "select * from penstock.claim_deliveries($1, '30 seconds', $2)", limit, after
    )
    return rows


async def report(conn: asyncpg.Connection, row: Row, *, taken: bool = False, **how: Any) -> str:
    status: str = await conn.fetchval(
        "select penstock.report_delivery($1, $2, $3, $4, $5, $6, $7)",
        row["id"],
        row["try"],
        taken,
        how.get("status"),
        how.get("error"),
        how.get("over", False),
        how.get("after"),
    )
    return status


async def finished(conn: asyncpg.Connection, outcome: str = "succeeded", **fields: Any) -> UUID:
    worker = await factory.worker(conn)
    job = await factory.submit(conn, **fields)
    started = await factory.claim(conn, worker)
    await factory.finish(conn, worker, started, outcome)
    return job


async def test_a_finished_job_has_one_delivery_for_each_address(conn: asyncpg.Connection) -> None:
    """E15: the app's own address, and the address that the caller gave."""
    await queue(conn, MINE)
    job = await finished(conn, account="u1", webhook_url=THEIRS)
    found = await deliveries(conn, job)
    assert [(row["url"], row["trusted"], row["host"]) for row in found] == [
        (THEIRS, False, "caller.example.com"),
        (MINE, True, "app.example.org"),
    ]
    assert {row["event"] for row in found} == {"job.succeeded"}
    assert {row["status"] for row in found} == {"pending"}
    assert await conn.fetchval("select count(*) from penstock.job_webhook") == 0


async def test_without_an_address_no_delivery_is_recorded(conn: asyncpg.Connection) -> None:
    await queue(conn)
    await finished(conn)
    assert await deliveries(conn) == []


async def _cancelled(conn: asyncpg.Connection, _: Clock, job: UUID) -> None:
    await conn.execute("select penstock.cancel_job($1)", job)


async def _expired(conn: asyncpg.Connection, clock: Clock, _: UUID) -> None:
    await clock.advance("1h")
    await factory.recover(conn)


async def _cancelled_while_it_ran(conn: asyncpg.Connection, clock: Clock, job: UUID) -> None:
    await factory.claim(conn, await factory.worker(conn))
    await _cancelled(conn, clock, job)
    await clock.advance("11s")
    await factory.recover(conn)


async def _timed_out(conn: asyncpg.Connection, clock: Clock, _: UUID) -> None:
    await factory.claim(conn, await factory.worker(conn, lease="2 hours"))
    await clock.advance("10m")
    await factory.recover(conn)


async def _parked(conn: asyncpg.Connection, clock: Clock, _: UUID) -> None:
    worker = await factory.worker(conn, lease="2 hours")
    started = await factory.claim(conn, worker)
    await factory.finish(conn, worker, started, "provisional", error={"class": "interrupted"})
    await clock.advance("2m")
    await factory.recover(conn)


async def _called_back(conn: asyncpg.Connection, _: Clock, job: UUID) -> None:
    worker = await factory.worker(conn)
    [start] = await factory.claim(conn, worker)
    await factory.hand_over(conn, worker, start, "a token of some length")
    assert await factory.call_back(conn, job, 1, "a token of some length") == "accepted"


@pytest.mark.parametrize(
    ("end", "event"),
    [
        (_cancelled, "job.cancelled"),
        (_expired, "job.failed"),
        (_cancelled_while_it_ran, "job.cancelled"),
        (_timed_out, "job.failed"),
        (_parked, "job.failed"),
        (_called_back, "job.succeeded"),
    ],
)
async def test_every_way_to_finish_a_job_records_a_delivery(
    conn: asyncpg.Connection, clock: Clock, end: Any, event: str
) -> None:
    await queue(conn, MINE)
    job = await factory.submit(conn, max_attempts=1, expires_seconds=60, webhook_url=THEIRS)
    assert await deliveries(conn) == []
    await end(conn, clock, job)
    assert [(row["job_id"], row["event"]) for row in await deliveries(conn)] == [(job, event)] * 2


async def test_a_finish_that_is_rolled_back_records_no_delivery(conn: asyncpg.Connection) -> None:
    await queue(conn, MINE)
    worker = await factory.worker(conn)
    await factory.submit(conn, webhook_url=THEIRS)
    started = await factory.claim(conn, worker)
    undone = conn.transaction()
    await undone.start()
    await factory.finish(conn, worker, started)
    await undone.rollback()
    assert await deliveries(conn) == []
    await factory.finish(conn, worker, started)
    assert len(await deliveries(conn)) == 2


async def test_a_duplicate_submit_does_not_change_the_address_of_the_first(
    conn: asyncpg.Connection,
) -> None:
    await queue(conn)
    worker = await factory.worker(conn)
    rows = [
        {"kind": "q", "dedupe_key": "a", "webhook_url": THEIRS},
        {"kind": "q", "dedupe_key": "a", "webhook_url": MINE},
        {"kind": "q", "dedupe_key": "b"},
    ]
    await factory.submit_rows(conn, rows)
    await factory.finish(conn, worker, await factory.claim(conn, worker, limit=5))
    assert [row["url"] for row in await deliveries(conn)] == [THEIRS]


async def test_a_job_retried_by_a_person_keeps_its_address(
    conn: asyncpg.Connection,
) -> None:
    await queue(conn)
    job = await finished(conn, "failed", webhook_url=THEIRS)
    again = UUID((await conn.fetchval("select penstock.retry_job($1)", job))["id"])
    worker = await factory.worker(conn)
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    assert [row["url"] for row in await deliveries(conn, again)] == [THEIRS]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.org/x",
        "https://user:pw@example.org/",
        "https:///nothing",
        "https://e.org/a b",
        "javascript:alert(1)",
        "https://e.org/" + "x" * 2_000,
    ],
)
async def test_an_invalid_address_is_refused(conn: asyncpg.Connection, url: str) -> None:
    await queue(conn)
    with refused(422, "invalid_job", "webhook_url"):
        await factory.submit(conn, webhook_url=url)
    with refused(422, "invalid_option", "webhook"):
        await conn.execute("select penstock.declare_kind('q', 'q', $1)", {"webhook": url})


async def test_a_delivery_is_tried_nine_times_with_growing_delays(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    await queue(conn, MINE, retention_failed_seconds="forever", retention_seconds="forever")
    await finished(conn)
    for number, wait in enumerate(WAITS, start=1):
        [row] = await claim(conn)
        assert row["try"] == number
        assert await claim(conn) == []  # it is being sent
        assert await report(conn, row, status=500, error="it answered with 500") == "pending"
        [kept] = await deliveries(conn)
        due = kept["next_at"] - kept["last_at"]
        assert wait * 0.9 <= due.total_seconds() <= wait * 1.1
        await clock.advance(due - timedelta(seconds=0.1))
        assert await claim(conn) == []
        await clock.advance("0.2s")
    [row] = await claim(conn)
    assert await report(conn, row, status=500, error="again") == "given_up"
    await clock.advance("90d")
    assert await claim(conn) == []
    [kept] = await deliveries(conn)
    assert (kept["tries"], kept["last_status"], kept["last_error"]) == (9, 500, "again")


async def test_a_delay_that_the_receiver_asks_for_is_kept_up_to_an_hour(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    await queue(conn, MINE)
    await finished(conn)
    for asked, least, most in ((60, 60, 60), (10, 27, 33), (86_400, 3_600, 3_600)):
        [row] = await claim(conn)
        await report(conn, row, status=429, after=timedelta(seconds=asked))
        [kept] = await deliveries(conn)
        wait = kept["next_at"] - kept["last_at"]
        assert least <= wait.total_seconds() <= most
        await clock.advance(wait)


async def test_a_receiver_that_no_longer_exists_is_not_tried_again(
    conn: asyncpg.Connection,
) -> None:
    await queue(conn, MINE)
    await finished(conn)
    [row] = await claim(conn)
    assert await report(conn, row, status=410, over=True) == "given_up"


async def test_the_delivery_of_a_dead_worker_is_due_after_its_lease(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await queue(conn, MINE)
    await finished(conn)
    [first] = await claim(conn)
    await clock.advance("29s")
    assert await claim(conn) == []
    await clock.advance("2s")
    [second] = await claim(conn)
    assert (first["id"], second["try"]) == (second["id"], 2)
    # The first worker was only slow: its report of a failure is too old, one of success counts.
    assert await report(conn, first, status=500) == "pending"
    [kept] = await deliveries(conn)
    assert kept["last_status"] is None
    assert await report(conn, first, taken=True, status=200) == "delivered"
    assert await report(conn, second, status=500) == "delivered"
    assert await claim(conn) == []


async def fill(conn: asyncpg.Connection, host: str, n: int) -> None:
    """Record many deliveries to one host, about an existing job."""
    job = await conn.fetchval("select id from penstock.finished limit 1")
    await conn.execute(
        "insert into penstock.delivery (id, job_id, account_id, event, url, host, trusted,"
        " created_at, next_at) select gen_random_uuid(), $1, 0, 'job.succeeded',"
        " 'https://' || $2 || '/x', $2, true, penstock.clock(), penstock.clock()"
        " from generate_series(1, $3)",
        job,
        host,
        n,
    )


async def test_the_backlog_of_one_host_delays_no_other(conn: asyncpg.Connection) -> None:
    """R-F22: two at once to each host, from all workers together; hosts take turns."""
    await queue(conn)
    await finished(conn)
    await fill(conn, "dead.example.org", 5_000)
    for host in ("a.example.org", "z.example.org"):
        await fill(conn, host, 3)
    found = await claim(conn, limit=10)
    hosts = [row["host"] for row in found]
    assert sorted(hosts) == sorted(
        ["a.example.org"] * 2 + ["dead.example.org"] * 2 + ["z.example.org"] * 2
    )
    assert await claim(conn, limit=10) == []
    for row in found:
        if row["host"] != "dead.example.org":
            assert await report(conn, row, taken=True, status=204) == "delivered"
    assert [row["host"] for row in await claim(conn, limit=10)] == [
        "a.example.org",
        "z.example.org",
    ]


@pytest.mark.parametrize("backlog", [0, 1_002])
async def test_hosts_take_turns(conn: asyncpg.Connection, backlog: int) -> None:
    """With few due, and beside the backlog of a host to which two messages are being sent."""
    await queue(conn)
    await finished(conn)
    await fill(conn, "dead.example.org", backlog)
    assert len(await claim(conn)) == min(backlog, 2)
    for number in range(6):
        await fill(conn, f"h{number}.example.org", 1)
    seen, after = [], ""
    for _ in range(3):
        for row in await claim(conn, limit=2, after=after):
            after = row["host"]
            seen.append(after)
            await report(conn, row, status=503)
    assert seen == [f"h{number}.example.org" for number in range(6)]
    await fill(conn, "h0.example.org", 1)
    assert [row["host"] for row in await claim(conn, limit=2, after="h3.example.org")] == [
        "h0.example.org"
    ]


async def test_two_concurrent_claims_never_take_the_same_delivery(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    await queue(conn)
    await finished(conn)
    for number in range(40):
        await fill(conn, f"h{number}.example.org", 3)
    others = [await connect() for _ in range(4)]

    taken: list[UUID] = []

    async def take_all(one: asyncpg.Connection) -> None:
        # A claim during another one returns nothing, so the number of claims varies.
        for _ in range(500):
            taken.extend([row["id"] for row in await claim(one, limit=7)])
            if len(taken) >= 80:
                break

    await asyncio.gather(*map(take_all, others))
    assert await claim(conn, limit=7) == []
    assert len(taken) == len(set(taken)) == 80


async def test_the_delivery_of_a_removed_job_is_given_up(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await queue(conn, MINE, retention_seconds=3600)
    await finished(conn)
    await clock.advance("3d")
    await factory.prune(conn)
    assert await claim(conn) == []
    [kept] = await deliveries(conn)
    assert (kept["status"], kept["last_error"]) == ("given_up", "the job is no longer kept")
    with refused(409, "job_not_kept", "id"):
        await conn.execute("select penstock.replay_delivery($1)", kept["id"])


async def test_a_delivered_or_given_up_webhook_can_be_replayed(conn: asyncpg.Connection) -> None:
    await queue(conn, MINE)
    await finished(conn)
    [row] = await claim(conn)
    replayed = await conn.fetchval("select penstock.replay_delivery($1)", row["id"])
    assert (replayed["status"], replayed["tries"]) == ("pending", 1)  # it is being sent
    await report(conn, row, taken=True, status=200)
    replayed = await conn.fetchval("select penstock.replay_delivery($1)", row["id"])
    assert (replayed["status"], replayed["tries"], replayed["delivered_at"]) == ("pending", 0, None)
    [again] = await claim(conn)
    assert (again["id"], again["try"]) == (row["id"], 1)
    with refused(404, "unknown_webhook", "id"):
        await conn.execute("select penstock.replay_delivery($1)", uuid4())


async def test_an_account_sees_its_own_addresses_and_not_the_operators(
    conn: asyncpg.Connection,
) -> None:
    """G14: ids of other accounts and unknown ids get the same answer."""
    await queue(conn, MINE)
    await finished(conn, account="u1", webhook_url=THEIRS)
    await finished(conn, account="u2", webhook_url=THEIRS)

    async def shown(*args: Any) -> list[dict[str, Any]]:
        rows = await conn.fetch("select penstock.list_deliveries($1, $2) as one", *args)
        return [row["one"] for row in rows]

    assert len(await shown(None, None)) == 4
    assert {one["account"] for one in await shown(None, "u1")} == {"u1"}
    [mine] = await shown("u1", None)
    assert (mine["account"], mine["url"]) == ("u1", "https://caller.example.com")
    assert await shown("nobody", None) == []
    replay = "select penstock.replay_delivery($1, $2)"
    assert (await conn.fetchval(replay, UUID(mine["id"]), "u1"))["status"] == "pending"
    [own] = [one for one in await shown(None, "u1") if one["url"] == MINE]
    for webhook, account in ((mine["id"], "u2"), (own["id"], "u1"), (str(uuid4()), "u1")):
        with refused(404, "unknown_webhook", "id") as refusal:
            await conn.execute(replay, UUID(webhook), account)
        assert refusal["message"] == f"there is no webhook {webhook}"


async def test_pages_of_deliveries_follow_one_another(conn: asyncpg.Connection) -> None:
    await queue(conn, MINE)
    for _ in range(5):
        await finished(conn)
    sql = "select penstock.list_deliveries(p_limit => 2, p_before => $1, p_status => 'pending')"
    seen: list[str] = []
    before = None
    while rows := await conn.fetch(sql, before):
        seen += [row[0]["id"] for row in rows]
        before = UUID(seen[-1])
    assert seen == [str(row["id"]) for row in reversed(await deliveries(conn))]
    for wrong in ("p_limit => 0", "p_status => 'odd'"):
        with refused(422, "invalid_filter", wrong.split()[0][2:]):
            await conn.execute(f"select penstock.list_deliveries({wrong})")


async def test_old_deliveries_are_deleted(conn: asyncpg.Connection, clock: Clock) -> None:
    await queue(conn, MINE, retention_seconds="forever")
    taken, gone, waiting = [await finished(conn) for _ in range(3)]
    for row in await claim(conn, limit=2):
        await report(conn, row, taken=row["job_id"] == taken, over=True)
    await clock.advance("8d")
    await conn.execute("select penstock.prune_history()")
    left = {row["job_id"] for row in await deliveries(conn)}
    assert left == {gone, waiting}
    await clock.advance("23d")
    await conn.execute("select penstock.prune_history()")
    assert {row["job_id"] for row in await deliveries(conn)} == {waiting}


async def test_a_submit_of_many_jobs_keeps_their_addresses(conn: asyncpg.Connection) -> None:
    await queue(conn)
    rows = [
        {"kind": "q", "webhook_url": f"https://e.org/{n}" if n % 2 else None} for n in range(200)
    ]
    jobs = await factory.submit_rows(conn, rows)
    kept = await conn.fetch("select job_id, url from penstock.job_webhook")
    assert {row["job_id"]: row["url"] for row in kept} == {
        jobs[n]: f"https://e.org/{n}" for n in range(200) if n % 2
    }


async def test_an_imported_job_keeps_its_address(conn: asyncpg.Connection) -> None:
    """F10: the schema is removed and made again, and the webhook is still sent."""
    await queue(conn)
    job = await factory.submit(conn, webhook_url="https://caller.example/x")
    line = await conn.fetchval("select penstock.export_jobs()")
    await conn.execute("delete from penstock.job")
    await conn.execute("delete from penstock.job_webhook")
    assert await conn.fetchval("select penstock.import_job($1)", line)
    assert not await conn.fetchval("select penstock.import_job($1)", line)
    await conn.execute("select penstock.cancel_job($1)", job)
    [delivery] = await deliveries(conn, job)
    assert delivery["url"] == "https://caller.example/x"
