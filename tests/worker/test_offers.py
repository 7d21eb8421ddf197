"""Offers: a worker that runs nothing begins what is submitted, unclaimed, and each job once."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

import factory
from penstock import Penstock
from penstock.engine.workers import Workers
from penstock.errors import Misconfigured, Unavailable
from penstock.worker import offers, running
from penstock.worker.offers import Offers
from shapes import Connect
from waiting import eventually
from worker.crew import Crew, outcomes, until_finished, working


class Counted:
    """An app whose handlers count their calls, by what they were called with."""

    def __init__(self, dsn: str) -> None:
        self.app = Penstock(dsn, name="offers")
        self.app.queue("q")
        self.calls: list[str] = []
        self.go_on = asyncio.Event()

        @self.app.job(queue="q")
        async def quick(word: str = "") -> int:
            self.calls.append(word)
            return len(word)

        @self.app.job(queue="q")
        async def slow(word: str = "") -> None:
            self.calls.append(word)
            await self.go_on.wait()

        @self.app.job(queue="q")
        def plain(word: str = "") -> int:
            self.calls.append(word)
            return len(word)

        self.quick, self.slow, self.plain = quick, slow, plain


@pytest.fixture
async def counted(database: str) -> Any:
    counted = Counted(database)
    yield counted
    await counted.app.close()


def standing(conn: asyncpg.Connection, n: int = 1) -> Callable[[], Awaitable[bool]]:
    """Whether so many offers stand, of workers whose key is held."""

    async def look() -> bool:
        found = await conn.fetchval(
            "select count(distinct w.id) from penstock.offer o"
            " join penstock.worker w on w.id = o.worker_id and w.lost_at is null"
            " join pg_locks l on w.id = (l.classid::bigint << 32) | l.objid::bigint"
            " and l.locktype = 'advisory' and l.objsubid = 1 where o.job_id is null"
        )
        return bool(found == n)

    return look


async def was_given(conn: asyncpg.Connection, job: Any) -> bool:
    """Whether it began with its submit: it has never waited."""
    [row] = await until_finished(conn, [job])
    return bool(row["created_at"] == row["started_at"] and row["attempt"] == 1)


@pytest.mark.parametrize("kind", ["quick", "plain"])
@pytest.mark.parametrize("word", ["short", "w" * 20_000], ids=["told", "asked for"])
async def test_a_resting_worker_begins_what_is_submitted(
    database: str, conn: asyncpg.Connection, counted: Counted, kind: str, word: str
) -> None:
    """In a thread as in the loop, whether it can be told or has to be asked for."""
    async with working(database, counted.app):
        for n in range(1, 4):
            await eventually(standing(conn), "an offer")
            ticket = await getattr(counted, kind).submit(word=word)
            assert ticket.position == 1
            assert await ticket.result(timeout=10) == len(word)
            assert counted.calls == [word] * n
            assert await was_given(conn, ticket.id)


async def test_what_it_did_not_hear_of_begins_a_poll_later(
    database: str, conn: asyncpg.Connection, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener that was away, or a notification that was lost."""
    monkeypatch.setattr(Offers, "hear", lambda _self, _word: None)
    async with working(database, counted.app, poll=0.2):
        await eventually(standing(conn), "an offer")
        ticket = await counted.quick.submit()
        assert await ticket.result(timeout=3) == 0
        assert await was_given(conn, ticket.id)
    assert counted.calls == [""]


async def test_what_is_told_again_and_again_begins_once(
    database: str, conn: asyncpg.Connection, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    hear = Offers.hear
    words: list[str] = []

    def hear_all(self: Offers, word: str) -> None:
        words.append(word)
        for one in words:
            hear(self, one)

    monkeypatch.setattr(Offers, "hear", hear_all)
    async with working(database, counted.app, poll=0.05):
        for n in range(5):
            await eventually(standing(conn), "an offer")
            ticket = await counted.quick.submit(word=str(n))
            await ticket.result(timeout=3)
    assert counted.calls == ["0", "1", "2", "3", "4"]


async def test_who_runs_something_offers_nothing(
    database: str, conn: asyncpg.Connection, counted: Counted
) -> None:
    """What it runs may block it: the next job goes to whoever comes for it."""
    async with working(database, counted.app):
        await eventually(standing(conn), "an offer")
        first = await counted.slow.submit(word="first")
        second = await counted.slow.submit(word="second")
        third = await counted.quick.submit(word="third")
        assert await third.result(timeout=5) == len("third")
        assert not await was_given(conn, third.id)
        assert not await standing(conn)()
        counted.go_on.set()
        await until_finished(conn, [first.id, second.id])
        await eventually(standing(conn), "an offer again")


async def test_a_claim_takes_the_offer_back(
    database: str, conn: asyncpg.Connection, counted: Counted
) -> None:
    async with working(database, counted.app, poll=0.1):
        await eventually(standing(conn), "an offer")
        await factory.submit(conn, "slow", payload={"word": "claimed"})
        await eventually(standing(conn, 0), "no offer")
        counted.go_on.set()
        await eventually(standing(conn), "an offer again")
    assert counted.calls == ["claimed"]


async def test_one_slot_is_for_claims(
    database: str, conn: asyncpg.Connection, counted: Counted
) -> None:
    """Kept for an offer, it would keep out whatever does not take one."""
    async with working(database, counted.app, concurrency=1, poll=0.1):
        job = await factory.submit(conn, "quick")
        await until_finished(conn, [job])
        ticket = await counted.quick.submit()
        await ticket.result(timeout=5)
        assert not await was_given(conn, ticket.id)


async def test_no_more_begin_than_it_has_slots(
    database: str, conn: asyncpg.Connection, counted: Counted
) -> None:
    async with working(database, counted.app, concurrency=2, poll=0.05):
        await eventually(standing(conn), "an offer")
        tickets = [await counted.slow.submit(word=str(n)) for n in range(4)]
        await eventually(_are(counted, 2), "two have begun")
        await asyncio.sleep(0.2)
        assert len(counted.calls) == 2
        counted.go_on.set()
        await until_finished(conn, [ticket.id for ticket in tickets])


def _any(found: list[Any]) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        return bool(found)

    return there


def _are(counted: Counted, n: int) -> Callable[[], Awaitable[bool]]:
    async def begun() -> bool:
        return len(counted.calls) == n

    return begun


async def test_what_it_is_given_counts(
    database: str, conn: asyncpg.Connection, counted: Counted
) -> None:
    """`--max-jobs`: it leaves after so many, however they came to it."""
    async with working(database, counted.app, max_jobs=3, poll=0.1) as here:
        for n in range(3):
            await eventually(standing(conn), "an offer")
            await (await counted.quick.submit(word=str(n))).result(timeout=5)
        ran = await here.ran()
        assert (ran.processed - ran.given_back, ran.reason) == (3, "max_jobs")
        late = await counted.quick.submit(word="late")
    assert counted.calls == ["0", "1", "2"]
    assert (await late.status())["status"] == "queued"


async def test_what_it_has_to_ask_for_is_one_job_all_the_same(
    database: str, conn: asyncpg.Connection, counted: Counted
) -> None:
    """It runs something now; who comes next is claimed, at once."""
    async with working(database, counted.app):
        await eventually(standing(conn), "an offer")
        await counted.slow.submit(word="w" * 9_000)
        await eventually(_are(counted, 1), "it has begun")
        await (await counted.quick.submit(word="next")).result(timeout=3)
        counted.go_on.set()


async def test_a_word_that_comes_after_its_start_was_given_back_begins_nothing(
    database: str, conn: asyncpg.Connection, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of who was frozen for longer than a start may be unknown to its worker."""
    late: list[tuple[Offers, str]] = []
    hear = Offers.hear
    monkeypatch.setattr(Offers, "hear", lambda self, word: late.append((self, word)))
    monkeypatch.setattr(running, "FORGOTTEN", timedelta(0))
    async with working(database, counted.app, poll=30.0) as here:
        await eventually(standing(conn), "an offer")
        ticket = await counted.quick.submit()
        await eventually(_any(late), "the word of it")
        worker = await conn.fetchval("select id from penstock.worker")
        assert await here.worker._running.give_back_forgotten(worker) == 1
        hear(*late[0])
        assert counted.calls == []
        here.worker.claims.wake()
        await ticket.result(timeout=5)
        assert await outcomes(conn, ticket.id) == ["released", "succeeded"]
        await eventually(standing(conn), "an offer again")
    assert counted.calls == [""]


async def test_who_was_away_asks_what_it_has_missed(
    database: str, conn: asyncpg.Connection, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Offers, "hear", lambda _self, _word: None)
    async with working(database, counted.app, poll=30.0):
        await eventually(standing(conn), "an offer")
        ticket = await counted.quick.submit()
        await conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'penstock control' and datname = current_database()"
        )
        assert await ticket.result(timeout=5) == 0
        assert await was_given(conn, ticket.id)


async def test_a_kind_that_moved_to_its_queue_from_another_runs_too(
    database: str, conn: asyncpg.Connection
) -> None:
    """A newer version of the app has declared it there; one of them in a sort of its own."""
    app = Penstock(database, name="moving")
    app.queue("q")
    app.queue("other")

    @app.job(queue="q")
    async def stays() -> None:
        return

    @app.job(queue="other")
    async def moves() -> None:
        return

    @app.job(queue="other")
    def moves_apart() -> None:
        return

    async with working(database, app, queues=("q",)):
        await eventually(standing(conn), "an offer")
        await conn.execute(
            "select penstock.declare_kind(k.name, 'q', k.declared - 'queue', k.declared_by)"
            " from penstock.kind k where k.name ~ 'moves'"
        )
        for kind in ("moves", "moves_apart", "moves"):
            await eventually(standing(conn), "an offer")
            given = await conn.fetchrow(
                "select id, status::text from penstock.submit_one($1, '{}', p_offers => true)", kind
            )
            assert given is not None
            assert given["status"] == "running"
            await until_finished(conn, [given["id"]])
        jobs = [await factory.submit(conn, kind) for kind in ("moves", "moves_apart")]
        await until_finished(conn, jobs)
        await eventually(standing(conn), "an offer again")


async def test_who_may_not_make_offers_works_without(
    database: str,
    counted: Counted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a role that was granted its rights before there were any."""

    async def refuse(*_: Any) -> None:
        raise Misconfigured("The role may not.")

    monkeypatch.setattr(Workers, "offer", refuse)
    monkeypatch.setattr(offers, "RIGHTS_SECONDS", 0.0)
    async with working(database, counted.app, concurrency=2, poll=0.05):
        for _ in range(4):
            await (await counted.quick.submit()).result(timeout=5)
        tickets = [await counted.slow.submit(word=str(n)) for n in range(2)]
        await eventually(_are(counted, 6), "both slots are there")
        counted.go_on.set()
        for ticket in tickets:
            await ticket.result(timeout=5)
    said = [one.getMessage() for one in caplog.records if "offers" in one.getMessage()]
    assert said == ["this worker makes no offers: The role may not."]


async def test_who_leaves_while_the_database_is_away_tells_what_it_has_done(
    database: str, conn: asyncpg.Connection, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a job is worth more than the end of an offer."""
    async with working(database, counted.app) as here:
        await eventually(standing(conn), "an offer")
        await factory.submit(conn, "slow", payload={"word": "claimed"})
        answer = Workers.offer
        failures = iter([Unavailable("away")] * 5)

        async def offer(*given: Any) -> Any:
            for failure in failures:
                raise failure
            return await answer(*given)

        monkeypatch.setattr(Workers, "offer", offer)
        await eventually(_are(counted, 1), "it has begun")
        counted.go_on.set()
        here.worker.stop()
        assert (await here.ran()).processed == 1


async def test_who_leaves_takes_it_back(crew: Crew, conn: asyncpg.Connection) -> None:
    worker = await crew.start("w")
    await eventually(standing(conn), "an offer")
    worker.signal(signal.SIGTERM)
    assert (await worker.ended())["reason"] == "stopped"
    assert await conn.fetchval("select count(*) from penstock.offer") == 0


async def test_who_leaves_while_it_is_being_taken_gives_the_job_back(
    database: str, conn: asyncpg.Connection, connect: Connect, counted: Counted
) -> None:
    """F6: the submit waits for its disk."""
    other = await connect()
    async with working(database, counted.app) as here:
        await eventually(standing(conn), "an offer")
        async with other.transaction():
            [given] = await other.fetch(
                "select * from penstock.submit_one('quick', '{}', p_wake => 'q', p_offers => true)"
            )
            assert given["status"] == "running"
            here.worker.stop()
            await asyncio.sleep(0.2)
            assert not here.task.done()
        await here.ran()
    assert await outcomes(conn, given["id"]) == ["released"]
    assert counted.calls == []


async def test_a_killed_worker_gets_nothing(crew: Crew, conn: asyncpg.Connection) -> None:
    """Its offer stands for seconds, but its key is free at once."""
    worker = await crew.start("w")
    await eventually(standing(conn), "an offer")
    worker.kill()
    await eventually(
        lambda: conn.fetchval("select not exists (select from pg_locks where objsubid = 1)"),
        "its sessions are gone",
    )
    assert await conn.fetchval("select count(*) from penstock.offer") == 1
    status = await conn.fetchval(
        "select status::text from penstock.submit_one('rest', '{}', p_offers => true)"
    )
    assert status == "queued"


async def test_a_worker_that_was_frozen_asks_whether_its_start_is_still_its_own(
    crew: Crew, conn: asyncpg.Connection
) -> None:
    """By then somebody else has run it; it would run it again, for nothing."""
    frozen = await crew.start("frozen", lease=5.0, beat=1.0)
    await eventually(standing(conn), "an offer")
    frozen.signal(signal.SIGSTOP)
    job = await conn.fetchval(
        "select id from penstock.submit_one('nap', '{\"seconds\": 0}', p_offers => true)"
    )
    assert await conn.fetchval("select status::text from penstock.job") == "running"
    await crew.start("other", lease=5.0, beat=1.0)
    await until_finished(conn, [job], seconds=20)
    frozen.signal(signal.SIGCONT)
    await eventually(standing(conn, 2), "it has begun a new life", seconds=20)
    assert len(crew.noted("start")) == 1
    assert await outcomes(conn, job) == ["lost", "succeeded"]
