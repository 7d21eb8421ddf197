"""Simultaneous calls share a statement, and nothing else."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from penstock.engine.queries.events import Batcher
from support.http import kinds
from support.http.site import Site, problem
from support.waiting import eventually

MARK = {"kind": "mark", "payload": {"answer": "a"}}
# Whether a statement of the server waits for a lock.
_WAITS = (
    "select pid from pg_stat_activity where wait_event_type = 'Lock'"
    " and query like '%accept_jobs%' and pid <> pg_backend_pid()"
)


@pytest.fixture(autouse=True)
async def _started(site: Site) -> None:
    """Start the server and cache the key, so that later calls come without a pause."""
    kinds.declare(site)
    await site.app_client.get("/v1/jobs")


async def submit(site: Site, **more: Any) -> httpx.Response:
    return await site.app_client.post("/v1/jobs", json={**MARK, **more})


@asynccontextmanager
async def held(conn: asyncpg.Connection) -> AsyncIterator[None]:
    """Block all submits to the queue, as while an operator changes its order."""
    queue = await conn.fetchval("select id from penstock.queue where name = 'line'")
    await conn.execute("select pg_advisory_lock(1886413172, $1)", queue)
    try:
        yield
    finally:
        await conn.execute("select pg_advisory_unlock(1886413172, $1)", queue)


async def begun(
    site: Site, conn: asyncpg.Connection, *bodies: dict[str, Any]
) -> list[asyncio.Task[httpx.Response]]:
    """One submit waits in the database, and those with `bodies` have arrived after it."""
    loop = asyncio.get_running_loop()
    open_ones = site.api.state.requests
    tasks = [loop.create_task(submit(site))]
    await eventually(lambda: conn.fetchval(_WAITS), "the first is at the database")
    tasks += [loop.create_task(submit(site, **body)) for body in bodies]

    async def all_came() -> bool:
        return bool(open_ones.open == len(tasks))

    await eventually(all_came, "all have come")
    return tasks


async def commits(conn: asyncpg.Connection) -> int:
    """The number of transactions that wrote the jobs."""
    found: int = await conn.fetchval("select count(distinct xmin::text) from penstock.job")
    return found


async def test_submits_share_a_commit_and_each_gets_its_own_job(
    site: Site, conn: asyncpg.Connection
) -> None:
    async with held(conn):
        tasks = await begun(site, conn, *({"metadata": {"n": n}} for n in range(9)))
    answers = [await task for task in tasks]
    assert {answer.status_code for answer in answers} == {201}
    jobs = [answer.json() for answer in answers]
    assert [job["metadata"].get("n") for job in jobs] == [None, *range(9)]
    assert sorted(job["position"] for job in jobs) == list(range(1, 11))
    assert len({job["id"] for job in jobs}) == 10
    assert await commits(conn) == 2


async def test_one_refused_submit_refuses_no_other(site: Site, conn: asyncpg.Connection) -> None:
    """One has a poisoned payload: its own caller gets the refusal of a single submit."""
    poison: list[dict[str, Any]] = [
        {"topic": ""},
        {"metadata": {"m": "x" * 20_000}},
        {"run_at": "2100-01-01T00:00:00Z"},
    ]
    async with held(conn):
        tasks = await begun(site, conn, {}, *poison, {"topic": "t"}, {"kind": "nothing"})
        at_once = await submit(site, metadata={"m": "\x00"})
        assert problem(at_once, 422, "invalid_job")["field"] == "metadata"
    first, second, *bad, last, unknown = [await task for task in tasks]
    assert {answer.status_code for answer in (first, second, last)} == {201}
    for answer, field in zip(bad, ("topic", "metadata", "run_at"), strict=True):
        assert problem(answer, 422, "invalid_job")["field"] == field
    problem(unknown, 404, "unknown_kind")
    assert await conn.fetchval("select count(*) from penstock.job") == 3
    # The first was in the database before the others came; those shared a statement.
    assert await commits(conn) == 2


async def test_a_submit_that_is_not_plain_has_its_own_statement(
    site: Site, conn: asyncpg.Connection
) -> None:
    """With an account, a price or a key: these do not wait for the plain ones."""
    calls = [
        submit(site, account="u1"),
        submit(site, kind="twin", payload={"key": "k"}),
        submit(site, kind="twin", payload={"key": "k"}),
        submit(site, dedupe_key="d"),
        submit(site, price=0),
        submit(site, payload={"answer": "x" * 60_000}),
        submit(site, payload={"answer": "x" * 40_000}, metadata={"m": "x" * 15_000}),
        site.app_client.post("/v1/jobs", json=MARK, headers={"Idempotency-Key": "k"}),
        site.app_client.post("/v1/jobs", json=MARK, headers={"Idempotency-Key": "k"}),
    ]
    answers = await asyncio.gather(*calls)
    assert sorted(answer.status_code for answer in answers) == [200] + [201] * 8
    count = await conn.fetchval("select count(*) from penstock.job")
    assert count == await commits(conn) == 7


async def test_if_the_shared_statement_fails_each_submit_is_tried_alone(
    site: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deadlocked(*_: object, **__: object) -> None:
        raise asyncpg.DeadlockDetectedError("deadlock detected")

    monkeypatch.setattr(site.api.state.backend.engine.texts, "submit_together", deadlocked)
    answers = await asyncio.gather(*(submit(site) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {201}
    assert await conn.fetchval("select count(*) from penstock.job") == 5


async def test_if_the_commit_is_lost_all_get_503_and_none_is_repeated(
    site: Site, conn: asyncpg.Connection
) -> None:
    """Whether it took effect is unknown here: a second try might create a second job."""
    async with held(conn):
        tasks = await begun(site, conn, {}, {}, {})
        for lost in (tasks[:1], tasks[1:]):
            pid = await _waiting(conn)
            await conn.execute("select pg_terminate_backend($1)", pid)
            for task in lost:
                answer = await task
                problem(answer, 503, "unavailable")
                assert answer.headers["retry-after"]
    assert await conn.fetchval("select count(*) from penstock.job") == 0
    assert (await submit(site)).status_code == 201


async def test_if_only_the_answer_is_lost_no_job_is_created_twice(
    site: Site, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the driver this is an error of the server, like a refusal; but it is not one."""
    pool = site.api.state.backend.engine._pool
    fetch = pool.fetch

    async def lost(sql: str, *args: object, **named: object) -> object:
        rows = await fetch(sql, *args, **named)
        if "accept_job" in sql:
            raise asyncpg.ConnectionDoesNotExistError("connection was closed")
        return rows

    monkeypatch.setattr(pool, "fetch", lost)
    for answer in await asyncio.gather(*(submit(site) for _ in range(5))):
        problem(answer, 503, "unavailable")
    assert await conn.fetchval("select count(*) from penstock.job") == 5


async def _waiting(conn: asyncpg.Connection) -> int:
    found: list[int] = []

    async def one_waits() -> bool:
        found[:] = [row["pid"] for row in await conn.fetch(_WAITS)]
        return bool(found)

    await eventually(one_waits, "a statement waits")
    return found[0]


async def test_another_queue_does_not_wait_for_this_one(
    site: Site, conn: asyncpg.Connection
) -> None:
    other = site.penstock.queue("other")

    @site.penstock.job(queue=other)
    async def elsewhere() -> None: ...

    await site.penstock.engine()
    async with held(conn):
        [task] = await begun(site, conn)
        answer = await submit(site, kind="elsewhere", payload={})
        assert answer.status_code == 201, answer.text
        assert not task.done()
    assert (await task).status_code == 201


async def test_simultaneous_reads_get_their_own_answers(site: Site) -> None:
    mine = (await submit(site, account="u1")).json()["id"]
    theirs = (await submit(site, account="u2")).json()["id"]
    me, them = await site.account_client("u1"), await site.account_client("u2")
    asked = [
        (me, mine, 200),
        (them, mine, 404),
        (me, theirs, 404),
        (them, theirs, 200),
        (site.app_client, mine, 200),
        (site.app_client, str(uuid4()), 404),
    ] * 4
    answers = await asyncio.gather(*(client.get(f"/v1/jobs/{job}") for client, job, _ in asked))
    for (_, job, status), answer in zip(asked, answers, strict=True):
        assert answer.status_code == status
        if status == 200:
            assert answer.json()["id"] == job
        else:
            problem(answer, 404, "unknown_job")


async def test_a_batcher_has_a_limited_number_of_batches_in_progress() -> None:
    calls: list[Sequence[int]] = []
    go = asyncio.Event()

    async def ask(questions: Sequence[int]) -> Sequence[int]:
        calls.append(questions)
        await go.wait()
        return [-one for one in questions]

    batcher = Batcher(ask, most=3, at_once=2)
    loop = asyncio.get_running_loop()
    tasks = []
    for n in range(8):
        tasks.append(loop.create_task(batcher.ask(n)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert calls == [[0], [1]], "the others gather"
    go.set()
    assert await asyncio.gather(*tasks) == [-n for n in range(8)]
    assert calls[2:] == [[2, 3, 4], [5, 6, 7]]
    assert await batcher.ask(9) == -9
