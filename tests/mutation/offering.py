"""Guards around offers: who gets a job from its submit, and which one."""

from typing import Any

import asyncpg

import factory
from interleave import Step
from mutation.scene import WAKING, Scene, catches


async def _offered(s: Scene, **options: Any) -> int:
    """A worker that lives and offers to start jobs of a queue with these options."""
    await factory.queue(s.conn, **options)
    worker = await s.worker()
    await (await s.connect()).execute("select penstock.lock_worker($1)", worker)
    await factory.offer(s.conn, worker)
    return worker


async def _submitted(s: Scene, conn: asyncpg.Connection | None = None) -> str:
    status: str = (await factory.submit_to_offers(conn or s.conn))["status"]
    return status


@catches("_submit_plain: stands", "_submit_plain: taken once")
async def an_offer_is_taken_once(s: Scene) -> None:
    await _offered(s)
    assert [await _submitted(s), await _submitted(s)] == ["running", "queued"]


@catches("_submit_plain: fresh")
async def a_worker_that_does_not_renew_its_offer_gets_nothing(s: Scene) -> None:
    await _offered(s)
    await s.clock.advance("4s")
    assert await _submitted(s) == "queued"


@catches("_submit_plain: worker lives")
async def nor_does_one_that_has_left(s: Scene) -> None:
    worker = await _offered(s)
    await s.conn.execute("select penstock.stop_worker($1)", worker)
    assert await _submitted(s) == "queued"


@catches("_submit_plain: offer has a handler")
async def nor_one_without_a_handler_for_the_kind(s: Scene) -> None:
    await factory.queue(s.conn)
    worker = await factory.worker(s.conn, lease="100 days", kinds=["another"])
    await (await s.connect()).execute("select penstock.lock_worker($1)", worker)
    await factory.offer(s.conn, worker)
    assert await _submitted(s) == "queued"


@catches("_submit_plain: key held")
async def nor_one_that_is_dead(s: Scene) -> None:
    await factory.queue(s.conn)
    await factory.offer(s.conn, await s.worker())
    assert await _submitted(s) == "queued"


@catches("_submit_plain: no limit")
async def a_start_in_a_queue_with_a_limit_is_counted(s: Scene) -> None:
    await _offered(s, concurrency=1)
    assert await _submitted(s) == "queued"


@catches("_submit_plain: no rate")
async def so_is_one_in_a_queue_with_a_rate(s: Scene) -> None:
    await _offered(s, rate="1/m")
    assert await _submitted(s) == "queued"


@catches("_submit_plain: paused")
async def nothing_starts_in_a_paused_queue(s: Scene) -> None:
    await _offered(s)
    await s.conn.execute("select penstock.pause_queue('q')")
    assert await _submitted(s) == "queued"


@catches("_submit_plain: closed")
async def nor_while_its_provider_is_away(s: Scene) -> None:
    await _offered(s)
    await s.conn.execute("select penstock.open_circuit('q')")
    assert await _submitted(s) == "queued"


@catches("_submit_plain: nobody before")
async def who_waits_is_not_overtaken(s: Scene) -> None:
    await _offered(s)
    await factory.submit(s.conn)
    assert await _submitted(s) == "queued"


@catches("_submit_plain: nobody due")
async def nor_is_who_is_due(s: Scene) -> None:
    worker = await _offered(s)
    await factory.submit(s.conn, delay_seconds=60)
    await s.clock.advance("2m")
    await factory.offer(s.conn, worker)
    assert await _submitted(s) == "queued"


@catches("_submit_plain: limits")
async def a_limit_does_not_come_under_a_submit_that_starts_its_job(s: Scene) -> None:
    worker = await _offered(s)
    app, operator = await s.connect(), await s.connect()
    async with app.transaction():
        assert await _submitted(s, app) == "running"
        limit = Step(
            operator, operator.execute("select penstock.edit_queue('q', '{\"concurrency\": 1}')")
        )
        await limit.waits(s.conn)
    await limit
    await factory.submit(s.conn)
    assert await factory.claim(s.conn, worker) == []


@catches("_submit_plain: latest", raises=asyncpg.SerializationError)
async def an_offer_that_changed_meanwhile_fails_no_submit(s: Scene) -> None:
    worker = await _offered(s)
    app = await s.connect()
    async with app.transaction(isolation="repeatable_read"):
        await app.execute("select from penstock.job")
        await factory.offer(s.conn, worker)
        assert await _submitted(s, app) == "queued"


@catches("_submit_plain: on disk")
async def what_a_worker_begins_is_on_the_disk_whatever_its_caller_thinks_of_that(s: Scene) -> None:
    await _offered(s)
    app = await s.connect()
    await app.execute("set synchronous_commit = off")

    async def submitted(_: int) -> None:
        await app.execute("delete from penstock.job; update penstock.offer set job_id = null")
        assert await _submitted(s, app) == "running"

    await s.all_reach_the_disk(submitted)


@catches("claim_jobs: offer back")
async def who_has_claimed_something_has_no_offer_any_more(s: Scene) -> None:
    worker = await _offered(s)
    await factory.submit(s.conn)
    await s.conn.execute("select from penstock.claim_jobs($1, 'q', 1, p_offered => true)", worker)
    assert await _submitted(s) == "queued"


@catches("offer_start: no other")
async def who_runs_what_it_was_given_gets_nothing_else(s: Scene) -> None:
    worker = await _offered(s)
    assert await _submitted(s) == "running"
    await factory.offer(s.conn, worker)
    assert await _submitted(s) == "queued"


@catches("offer_start: the start")
async def a_start_that_is_somebody_elses_by_now_is_not_told(s: Scene) -> None:
    worker = await _offered(s)
    job = (await factory.submit_to_offers(s.conn))["id"]
    assert await s.settle(job, 1, "released") == "done"
    await s.start(await s.worker())
    assert await factory.offer(s.conn, worker) is None


@catches("submit_waking: begun when safe", raises=asyncpg.InvalidTransactionTerminationError)
async def who_takes_an_offer_commits_once_when_the_disk_has_it(s: Scene) -> None:
    """In a transaction of the caller's it could not commit before that one does."""
    await _offered(s)
    async with s.conn.transaction():
        [told] = await s.conn.fetch(WAKING)
        assert told["status"] == "running"
