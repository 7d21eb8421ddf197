"""The engine for code without an event loop: the same answers, and nothing left behind."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from borrowers import BLOCKING, BORROWERS
from penstock.db.borrowed import blocks
from penstock.engine import Engine
from penstock.engine.blocking import BlockingEngine
from penstock.engine.jobs import NewJob, Submitted, Verdict
from penstock.engine.outcomes import Succeeded
from penstock.errors import Invalid, NotFound, Unavailable
from penstock.states import JobStatus


@pytest.fixture
def engine(database: str) -> Iterator[BlockingEngine]:
    with BlockingEngine(database, max_connections=4) as engine:
        engine.queues.declare("q")
        engine.queues.declare_kind("k", "q")
        yield engine


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "penstock-blocking"]


def test_a_job_goes_from_submit_to_its_result(engine: BlockingEngine) -> None:
    ticket = engine.jobs.submit(NewJob(kind="k", payload={"n": 1}))
    assert ticket == Submitted(ticket.id, JobStatus.QUEUED, deduplicated=False)
    worker = engine.workers.register("w")
    [job] = engine.jobs.claim(worker, "q", 5)
    assert (job.id, job.payload) == (ticket.id, {"n": 1})
    assert engine.jobs.finish(worker, [(job, Succeeded(7))]) == [
        Verdict(ticket.id, "done", JobStatus.SUCCEEDED)
    ]
    assert engine.jobs.read(ticket.id)["result"] == 7
    assert engine.upkeep.check() == []


def test_every_part_and_verb_is_there(engine: BlockingEngine) -> None:
    for name in ("jobs", "queues", "accounts", "workers", "upkeep"):
        mine, theirs = getattr(engine, name), getattr(engine._engine, name)
        verbs = [verb for verb in dir(theirs) if not verb.startswith("_")]
        assert verbs
        for verb in verbs:
            assert getattr(mine, verb).__doc__ == getattr(theirs, verb).__doc__
    with pytest.raises(AttributeError, match="sumbit"):
        _ = engine.jobs.sumbit


def test_errors_are_the_same(engine: BlockingEngine) -> None:
    with pytest.raises(NotFound, match="there is no job kind nope") as caught:
        engine.jobs.submit(NewJob(kind="nope"))
    assert (caught.value.code, caught.value.field) == ("unknown_kind", "kind")
    with pytest.raises(Invalid, match="payload is not JSON"):
        engine.jobs.submit(NewJob(kind="k", payload={"n": {1}}))
    with pytest.raises(Invalid, match="conn must be a connection"):
        engine.jobs.submit(NewJob(kind="k"), conn=5)


def test_several_threads_share_one_engine(engine: BlockingEngine) -> None:
    """A web server's threads; each gets its own answer."""

    def submit(n: int) -> UUID:
        number: UUID = engine.jobs.submit(NewJob(kind="k", payload={"n": n})).id
        return number

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(submit, range(40)))
    assert len(set(ids)) == 40
    assert len(threads()) == 1


async def test_it_works_inside_a_running_loop_too(engine: BlockingEngine) -> None:
    """In a notebook there is always one."""
    assert asyncio.get_running_loop()
    assert engine.jobs.submit(NewJob(kind="k")).status is JobStatus.QUEUED


@pytest.mark.parametrize("driver", BLOCKING)
@pytest.mark.parametrize("commits", [True, False])
async def test_the_callers_connection_is_used_in_the_callers_thread(
    engine: BlockingEngine, database: str, driver: str, commits: bool
) -> None:
    """E3: from Django, Flask or a script; such a connection belongs to its thread."""
    async with BORROWERS[driver](database) as app:
        assert blocks(app.conn)
        ticket = engine.jobs.submit(NewJob(kind="k"), conn=app.conn)
        many = engine.jobs.submit_many([NewJob(kind="k")] * 2, conn=app.conn)
        assert engine.jobs.read(ticket.id, conn=app.conn)["status"] == "queued"
        with psycopg.connect(database) as other:
            assert other.execute("select count(*) from penstock.job").fetchall() == [(0,)]
        await app.end(commits=commits)
    worker = engine.workers.register("w")
    started = {job.id for job in engine.jobs.claim(worker, "q", 9)}
    assert started == ({ticket.id, *(t.id for t in many)} if commits else set())


@pytest.mark.parametrize("driver", BLOCKING)
async def test_a_refusal_on_the_callers_connection_is_ours(
    engine: BlockingEngine, database: str, driver: str
) -> None:
    async with BORROWERS[driver](database) as app:
        with pytest.raises(NotFound, match="there is no job kind nope") as caught:
            engine.jobs.submit(NewJob(kind="nope"), conn=app.conn)
        assert caught.value.code == "unknown_kind"
        await app.end(commits=False)


@pytest.mark.parametrize("driver", [name for name in BORROWERS if name not in BLOCKING])
async def test_which_connections_need_a_loop_is_known(database: str, driver: str) -> None:
    async with BORROWERS[driver](database) as app:
        assert not blocks(app.conn)
        await app.end(commits=False)


def test_the_loop_is_not_touched_for_the_callers_connection(
    engine: BlockingEngine, database: str
) -> None:
    """A loop that is busy with something long does not hold the caller up."""
    release = threading.Event()
    engine._loop.call_soon_threadsafe(release.wait)
    with psycopg.connect(database) as conn:
        ticket = engine.jobs.submit(NewJob(kind="k", delay=timedelta(hours=1)), conn=conn)
        assert ticket.status is JobStatus.SCHEDULED
    release.set()


def test_closing_leaves_no_thread_and_no_connection(database: str) -> None:
    engine = BlockingEngine(database)
    engine.upkeep.check()
    engine.close()
    assert threads() == []
    with psycopg.connect(database) as conn:
        others = "select count(*) from pg_stat_activity where datname = current_database()"
        assert conn.execute(f"{others} and pid <> pg_backend_pid()").fetchall() == [(0,)]


def test_a_second_close_does_nothing_and_a_later_call_says_so(database: str) -> None:
    engine = BlockingEngine(database)
    engine.close()
    engine.close()
    with pytest.raises(Unavailable, match="closed"):
        engine.jobs.submit(NewJob(kind="k"))


def test_an_engine_that_cannot_connect_leaves_no_thread() -> None:
    with pytest.raises(Unavailable):
        BlockingEngine("postgresql://nobody@127.0.0.1:1/none")
    assert threads() == []


async def test_both_kinds_live_side_by_side(engine: BlockingEngine, database: str) -> None:
    ticket = engine.jobs.submit(NewJob(kind="k"))
    async with await Engine.open(database) as other:
        assert await other.jobs.read(ticket.id) == engine.jobs.read(ticket.id)
