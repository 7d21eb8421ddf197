"""For each guard, what must not happen: true on the core, and not without the guard."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import asyncpg

import factory
from clock import Clock
from interleave import Step
from shapes import Connect

TOKENS = ["the right token of a start", "another token altogether"]


@dataclass
class World:
    conn: asyncpg.Connection
    connect: Connect
    clock: Clock


Scenario = Callable[[World], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def catches(*guards: str) -> Callable[[Scenario], Scenario]:
    def note(scenario: Scenario) -> Scenario:
        SCENARIOS.update(dict.fromkeys(guards, scenario))
        return scenario

    return note


async def settle(world: World, row: factory.Row, attempt: int, outcome: str, **who: object) -> str:
    """What upkeep (no worker), a worker or a callback gets to hear; never waits for long."""
    await world.conn.execute("set lock_timeout = '500ms'")
    verdict: str = await world.conn.fetchval(
        "select verdict from penstock._settle_jobs($1, sha256($2::text::bytea),"
        " array[$3::uuid], array[$4::integer], array[$5::text], null, null,"
        " array[interval '0'], null)",
        who.get("worker"),
        who.get("token"),
        row["id"],
        attempt,
        outcome,
    )
    return verdict


async def started(world: World, *, account: str | None = None) -> tuple[int, factory.Row]:
    """A worker and a job it runs."""
    await factory.queue(world.conn)
    worker = await factory.worker(world.conn)
    await factory.submit(world.conn, account=account)
    [row] = await factory.claim(world.conn, worker)
    return worker, row


async def again(world: World, worker: int, row: factory.Row) -> factory.Row:
    """The same job in its next attempt."""
    await factory.finish(world.conn, worker, [row], "released")
    [row] = await factory.claim(world.conn, worker)
    return row


async def give_back(world: World, row: factory.Row, **who: object) -> bool:
    """Whether _give_back, asked directly, gives the job back."""
    ids = await world.conn.fetchval(
        "select ids from penstock._give_back($1, sha256($2::text::bytea), array[$3::uuid],"
        " array[$4::integer], array['released'], null, null, $5, penstock.clock())",
        who.get("worker"),
        who.get("token"),
        row["id"],
        who.get("attempt", row["attempt"]),
        who.get("accounts"),
    )
    return ids is not None


@catches("_end_jobs: fence")
async def an_older_attempt_ends_nothing(world: World) -> None:
    worker, row = await started(world)
    await again(world, worker, row)
    assert await settle(world, row, 1, "succeeded", worker=worker) == "stale"


@catches("_end_jobs: started")
async def a_job_that_waits_again_is_not_ended(world: World) -> None:
    worker, row = await started(world)
    await factory.finish(world.conn, worker, [row], "released")
    assert await settle(world, row, 1, "cancelled") == "stale"
    assert await factory.status(world.conn, row["id"]) == "queued"


@catches("_end_jobs: owner")
async def another_worker_ends_nothing(world: World) -> None:
    _, row = await started(world)
    other = await factory.worker(world.conn, "other")
    assert await settle(world, row, 1, "succeeded", worker=other) == "stale"


@catches("_end_jobs: token")
async def another_token_ends_nothing(world: World) -> None:
    worker, row = await started(world)
    await factory.hand_over(world.conn, worker, row, TOKENS[0])
    assert await settle(world, row, 1, "succeeded", token=TOKENS[1]) == "stale"


@catches("_end_jobs: account held")
async def a_job_of_a_held_account_is_busy(world: World) -> None:
    await factory.plan(world.conn, concurrency=1)
    worker, row = await started(world, account="a")
    app = await world.connect()
    async with app.transaction():
        await app.execute("select from penstock.account for update")
        assert await settle(world, row, 1, "succeeded", worker=worker) == "busy"


@catches("_end_jobs: held by nobody")
async def a_job_that_an_app_holds_is_busy(world: World) -> None:
    worker, row = await started(world)
    app = await world.connect()
    async with app.transaction():
        await app.execute("select penstock.cancel_job($1)", row["id"])
        assert await settle(world, row, 1, "succeeded", worker=worker) == "busy"


@catches("_give_back: fence")
async def an_older_attempt_gives_nothing_back(world: World) -> None:
    worker, row = await started(world)
    row = await again(world, worker, row)
    assert not await give_back(world, row, worker=worker, attempt=1)


@catches("_give_back: started")
async def what_waits_is_not_given_back(world: World) -> None:
    worker, row = await started(world)
    await factory.finish(world.conn, worker, [row], "snoozed", delay="1 hour")
    assert not await give_back(world, row)


@catches("_give_back: owner")
async def another_worker_gives_nothing_back(world: World) -> None:
    _, row = await started(world)
    other = await factory.worker(world.conn, "other")
    assert not await give_back(world, row, worker=other)


@catches("_give_back: token")
async def another_token_gives_nothing_back(world: World) -> None:
    worker, row = await started(world)
    await factory.hand_over(world.conn, worker, row, TOKENS[0])
    assert not await give_back(world, row, token=TOKENS[1])


@catches("_give_back: account held")
async def what_holds_a_slot_is_given_back_with_its_account_only(world: World) -> None:
    await factory.plan(world.conn, concurrency=1)
    worker, row = await started(world, account="a")
    assert not await give_back(world, row, worker=worker, accounts=[])


@catches("_end_waiting: waits")
async def what_runs_is_not_ended_as_waiting(world: World) -> None:
    _, row = await started(world)
    ended = await end_waiting(world, row)
    assert ended is None


@catches("_end_waiting: lane held")
async def what_waits_in_a_lane_is_ended_with_its_account_only(world: World) -> None:
    await factory.queue(world.conn)
    await factory.plan(world.conn, concurrency=1)
    job = await factory.submit(world.conn, account="a")
    ended = await end_waiting(world, {"id": job})
    assert ended is None


async def end_waiting(world: World, row: object) -> object:
    return await world.conn.fetchval(
        "select penstock._end_waiting(array[$1::uuid], 'cancelled', null, null)",
        row["id"],  # type: ignore[index]
    )


@catches("stage_due_jobs: due")
async def what_is_not_due_is_not_staged(world: World) -> None:
    await factory.queue(world.conn)
    await factory.submit(world.conn, delay_seconds=60)
    assert await world.conn.fetchval("select penstock.stage_due_jobs(1)") == 0


@catches("stage_due_jobs: lane held", "expire_jobs: lane held")
async def upkeep_leaves_held_accounts_alone(world: World) -> None:
    await factory.queue(world.conn)
    await factory.plan(world.conn, concurrency=1)
    await factory.submit(world.conn, account="a", delay_seconds=10, expires_seconds=10)
    await world.clock.advance("15s")
    app = await world.connect()
    async with app.transaction():
        await app.execute("select from penstock.account for update")
        assert await world.conn.fetchval("select penstock.stage_due_jobs(1)") == 0
        await world.clock.advance("10s")
        assert await world.conn.fetchval("select penstock.expire_jobs(1)") == 0


@catches("expire_jobs: expired")
async def what_has_time_left_does_not_expire(world: World) -> None:
    await factory.queue(world.conn)
    await factory.submit(world.conn, expires_seconds=60)
    await factory.submit(world.conn)
    assert await world.conn.fetchval("select penstock.expire_jobs(1)") == 0


@catches("hand_over_jobs: fence")
async def an_older_attempt_hands_nothing_over(world: World) -> None:
    worker, row = await started(world)
    await again(world, worker, row)
    assert await factory.hand_over(world.conn, worker, row, TOKENS[0]) == "stale"


@catches("hand_over_jobs: owner")
async def another_worker_hands_nothing_over(world: World) -> None:
    _, row = await started(world)
    other = await factory.worker(world.conn, "other")
    assert await factory.hand_over(world.conn, other, row, TOKENS[0]) == "stale"


@catches("_give_up_workers: lease over")
async def a_worker_that_beats_is_not_given_up(world: World) -> None:
    await started(world)
    assert await factory.recover(world.conn) == []


@catches("_recoverable: over its deadline")
async def what_has_time_left_is_not_recovered(world: World) -> None:
    await started(world)
    assert await factory.recover(world.conn) == []


@catches("beat_worker: not lost")
async def a_worker_given_up_beats_no_more(world: World) -> None:
    worker, _ = await started(world)
    await world.clock.advance("1m")
    await factory.recover(world.conn)
    assert not await world.conn.fetchval("select penstock.beat_worker($1)", worker)


@catches("_pass_gate: queue limit")
async def a_full_queue_starts_nothing(world: World) -> None:
    await factory.queue(world.conn, concurrency=1)
    worker = await factory.worker(world.conn)
    await factory.submit_rows(world.conn, [{"kind": "q"}] * 2)
    assert len(await factory.claim(world.conn, worker, limit=2)) == 1


@catches("_pass_gate: rate")
async def a_rate_is_kept(world: World) -> None:
    await factory.queue(world.conn, rate="1/min")
    worker = await factory.worker(world.conn)
    await factory.submit_rows(world.conn, [{"kind": "q"}] * 2)
    assert len(await factory.claim(world.conn, worker, limit=2)) == 1


@catches("_choose: account limit")
async def a_full_account_starts_nothing(world: World) -> None:
    await factory.queue(world.conn)
    await factory.plan(world.conn, concurrency=1)
    worker = await factory.worker(world.conn)
    await factory.submit_rows(world.conn, [{"kind": "q", "account": "a"}] * 2)
    assert len(await factory.claim(world.conn, worker, limit=2)) == 1


@catches("claim_jobs: worker lives")
async def a_worker_given_up_claims_nothing(world: World) -> None:
    worker, _ = await started(world)
    await world.clock.advance("1m")
    await factory.recover(world.conn)
    try:
        claimed = await factory.claim(world.conn, worker)
    except asyncpg.PostgresError as error:
        assert error.sqlstate == "PS409"  # noqa: PT017 - without the guard nothing is raised
    else:
        assert not claimed


@catches("claim_jobs: stray")
async def a_stray_of_a_held_account_blocks_nobody(world: World) -> None:
    conn = world.conn
    await factory.queue(conn)
    worker = await factory.worker(conn)
    await conn.execute("select penstock.create_account('a')")
    app = await world.connect()
    async with app.transaction():
        await factory.submit(app, account="a")
        await factory.plan(conn, "one", concurrency=1, default=False)
        await conn.execute("select penstock.set_account_plan('a', 'one')")
    behind = await factory.submit(conn)
    async with app.transaction():
        await app.execute("select from penstock.account where name = 'a' for update")
        assert [row["id"] for row in await factory.claim(conn, worker)] == [behind]


@catches("claim_jobs: queued")
async def what_stopped_waiting_meanwhile_is_not_started(world: World) -> None:
    """Somebody changes a lane's job without its account: against the rules, and yet harmless."""
    conn = world.conn
    await factory.queue(conn)
    await factory.plan(conn, concurrency=1)
    worker = await factory.worker(conn)
    job = await factory.submit(conn, account="a")
    rogue, claimer = await world.connect(), await world.connect()
    async with rogue.transaction():
        await rogue.execute(
            "update penstock.job set status = 'scheduled', run_at = 'infinity' where id = $1", job
        )
        claim = Step(claimer, factory.claim(claimer, worker))
        assert await claim.waits(conn)
    try:
        await claim
    except asyncpg.RaiseError as error:
        assert "chose 1 jobs but started 0" in str(error)  # noqa: PT017 - else it started
    assert await factory.status(conn, job) == "scheduled"
