"""Driving queues by HTTP alone: bounded calls, one at a time, each of which starts the next."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from penstock import Job, Penstock, Retries
from penstock.engine.jobs.jobs import NewJob
from penstock.errors import Misconfigured
from penstock.net import drive_call
from penstock.security.roots import Roots
from support.http.site import Site, problem
from support.shapes import Connect
from support.signing import SECRET
from support.waiting import eventually

ADDRESS = "https://queue.example.org"


class Called:
    """Records the calls that a server would send to itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queues: list[str] = []
        self.bases: set[str] = set()
        self.bodies: list[Any] = []
        monkeypatch.setattr("penstock.client.drive.call", self._call)

    async def _call(self, roots: Roots, base: str, queue: str, body: Any = None) -> bool:
        assert roots
        self.bases.add(base)
        self.queues.append(queue)
        self.bodies.append(body)
        return True


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Called:
    monkeypatch.setenv("PENSTOCK_PUBLIC_URL", ADDRESS)
    return Called(monkeypatch)


async def test_a_call_runs_due_jobs_and_returns(site: Site, called: Called) -> None:
    """M12: bounded, authorised, and it reports what it did."""
    queue = site.penstock.queue("marks")

    @site.penstock.job(queue=queue)
    async def mark(n: int) -> int:
        return n

    tickets = await mark.submit_many([{"n": n} for n in range(20)])
    client = site.client(await site.make_key("process"))
    began = time.monotonic()
    done = await client.post("/v1/queues/marks/process", json={"seconds": 30})
    assert done.json() == {
        "processed": 20,
        "given_back": 0,
        "remaining": 0,
        "chained": False,
        "busy": False,
    }
    assert time.monotonic() - began < 10
    assert await tickets[19].result(timeout=1) == 19
    assert (await client.post("/v1/queues/marks/process")).json()["processed"] == 0
    assert called.queues == []


async def test_only_permitted_callers_may_drive(site: Site) -> None:
    """M13: a key of kind process or admin, or the chain's own token for this queue."""
    queue = site.penstock.queue("marks")
    other = site.penstock.queue("other")

    @site.penstock.job(queue=queue)
    async def mark() -> None: ...

    @site.penstock.job(queue=other)
    async def mark_other() -> None: ...

    call = "/v1/queues/marks/process"
    problem(await site.anonymous.post(call), 401, "unauthorized")
    problem(await site.app_client.post(call), 403, "not_allowed")
    problem(await (await site.account_client("u1")).post(call), 403, "not_allowed")
    roots = Roots((SECRET,))
    ours = site.client(drive_call.make_token(roots, "marks"))
    assert (await ours.post(call)).status_code == 200
    problem(await ours.post("/v1/queues/other/process"), 401, "unauthorized")
    problem(await ours.get("/v1/jobs"), 401, "unauthorized")
    forged = site.client(drive_call.make_token(Roots(("another-secret-of-nobody",)), "marks"))
    problem(await forged.post(call), 401, "unauthorized")
    for odd in ("pd_", "pd_.", "pd_a.b", "pd_" + "x" * 50, "pd_é"):
        assert not drive_call.is_token(roots, odd, "marks")


async def test_invalid_calls_are_refused(site: Site) -> None:
    await site.engine.queues.declare("elsewhere")
    problem(await site.admin.post("/v1/queues/nope/process"), 404, "unknown_queue")
    refusal = problem(await site.admin.post("/v1/queues/elsewhere/process"), 422, "no_handler")
    assert "penstock serve APP" in refusal["hint"]
    for body, field in (
        ({"seconds": 0.5}, "seconds"),
        ({"seconds": 301}, "seconds"),
        ({"max_jobs": 0}, "max_jobs"),
        ({"chain": "yes"}, "chain"),
        ({"minutes": 1}, "minutes"),
    ):
        refused = await site.admin.post("/v1/queues/elsewhere/process", json=body)
        assert problem(refused, 422, "invalid_request")["field"] == field


async def test_it_chains_while_work_remains(site: Site, called: Called) -> None:
    """M12: the next call is started, with the same body, until nothing is due."""
    queue = site.penstock.queue("marks", drive="http")

    @site.penstock.job(queue=queue)
    async def mark(n: int) -> int:
        return n

    await site.start()
    await site.engine.jobs.submit_many([_new("mark", n=n) for n in range(5)])
    body = {"seconds": 20, "max_jobs": 2}
    rounds = [await site.admin.post("/v1/queues/marks/process", json=body) for _ in range(3)]
    assert [one.json()["processed"] for one in rounds] == [2, 2, 1]
    assert [one.json()["remaining"] for one in rounds] == [3, 1, 0]
    assert [one.json()["chained"] for one in rounds] == [True, True, False]
    assert (called.queues, called.bodies[0]) == (["marks", "marks"], body)
    await site.engine.jobs.submit_many([_new("mark", n=n) for n in range(3)])
    done = await site.admin.post("/v1/queues/marks/process", json={"max_jobs": 1, "chain": False})
    assert (done.json()["remaining"], done.json()["chained"]) == (2, False)
    await site.engine.queues.pause("marks")
    done = await site.admin.post("/v1/queues/marks/process", json={"seconds": 20, "chain": True})
    assert (done.json()["processed"], done.json()["chained"]) == (0, False)


async def test_no_request_decides_where_the_next_call_goes(
    site: Site, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends a token that may drive the queue: a caller's Host header could send it elsewhere."""
    site.penstock.queue("marks", drive="http")

    @site.penstock.job(queue="marks")
    async def mark(n: int) -> int:
        return n

    await site.start()
    await site.engine.jobs.submit_many([_new("mark", n=n) for n in range(3)])
    lies = {"host": "evil.example", "x-forwarded-host": "evil.example"}
    call, body = "/v1/queues/marks/process", {"max_jobs": 1, "chain": True}
    done = (await site.admin.post(call, json=body, headers=lies)).json()
    assert (done["chained"], called.bases) == (True, {ADDRESS})

    monkeypatch.delenv("PENSTOCK_PUBLIC_URL")
    mounted = Site(site.dsn, Penstock(site.dsn, name="mounted"), site.engine, site.clock)
    mounted.penstock.queue("marks", drive="http")

    @mounted.penstock.job(queue="marks", name="mark")
    async def mark_mounted(n: int) -> int:
        return n

    called.bases.clear()
    try:
        refused = await mounted.admin.post(call, json=body, headers=lies)
        refusal = problem(refused, 422, "no_public_url")
        assert refusal["field"] == "chain"
        assert "PENSTOCK_PUBLIC_URL" in refusal["hint"]
        assert (await site.engine.drive.state("marks")).due == 2, "nothing was begun"
        done = (await mounted.admin.post(call, json={"max_jobs": 1}, headers=lies)).json()
        assert (done["processed"], done["chained"], called.bases) == (1, False, set())
    finally:
        await mounted.close()


async def test_one_call_per_queue_at_a_time(site: Site) -> None:
    """M12: calls do not multiply; the second one returns at once."""
    queue = site.penstock.queue("marks", drive="http")
    going, go = asyncio.Event(), asyncio.Event()

    @site.penstock.job(queue=queue)
    async def mark() -> None:
        going.set()
        await go.wait()

    await site.start()
    await site.engine.jobs.submit_many([_new("mark")])
    first = asyncio.ensure_future(site.admin.post("/v1/queues/marks/process"))
    await asyncio.wait_for(going.wait(), 10)
    second = (await site.admin.post("/v1/queues/marks/process")).json()
    assert (second["busy"], second["processed"], second["chained"]) == (True, 0, False)
    go.set()
    assert (await first).json()["processed"] == 1


@pytest.mark.usefixtures("called")
async def test_attempts_that_do_not_finish_in_time_are_released(
    site: Site, conn: asyncpg.Connection
) -> None:
    """M12: without a failure, and a call in which none finished does not start the next."""
    queue = site.penstock.queue("marks", drive="http", retry=Retries(attempts=1))

    @site.penstock.job(queue=queue)
    async def mark() -> None:
        await asyncio.sleep(600)

    await site.start()
    await site.engine.jobs.submit_many([_new("mark")])
    began = time.monotonic()
    done = (await site.admin.post("/v1/queues/marks/process", json={"seconds": 1})).json()
    assert 1 <= time.monotonic() - began < 8
    assert (done["processed"], done["given_back"], done["remaining"]) == (0, 1, 1)
    assert not done["chained"]
    job = await conn.fetchrow("select status::text, failures, crashes from penstock.job")
    assert job is not None
    assert tuple(job) == ("queued", 0, 0)


@pytest.mark.usefixtures("called")
async def test_it_starts_nothing_that_it_could_not_finish(
    site: Site, conn: asyncpg.Connection
) -> None:
    """M12: by the durations of the kind's attempts; the first job of a call may always start."""
    queue = site.penstock.queue("marks", concurrency=1)

    @site.penstock.job(queue=queue)
    async def mark(n: int) -> int:
        await asyncio.sleep(0.7)
        return n

    await site.start()
    await site.engine.jobs.submit_many([_new("mark", n=n) for n in range(20)])
    done = (
        await site.admin.post("/v1/queues/marks/process", json={"seconds": 3, "chain": True})
    ).json()
    # Before the first finished, the kind's duration was unknown; from then on it is 0.7 s.
    assert 2 <= done["processed"] <= 4
    assert done["given_back"] == 0
    assert done["remaining"] == 20 - done["processed"]
    assert done["chained"]
    starts = await conn.fetchval("select sum(attempt) from penstock.job")
    assert starts == 0, "the others were not even begun"


async def test_a_call_does_upkeep(site: Site) -> None:
    """M12: it recovers a lost worker's jobs, and runs on_finish callbacks that are due."""
    queue = site.penstock.queue("marks")
    notified: list[str] = []

    @site.penstock.job(queue=queue)
    async def mark() -> str:
        return "done"

    @mark.on_finish
    async def store(job: Any, conn: Any) -> None:
        assert conn
        notified.append(job.status)

    ticket = await mark.submit()
    await site.start()
    gone = await site.engine.workers.register("gone", lease=timedelta(seconds=5))
    assert await site.engine.jobs.claim(gone, "marks", 1)
    cancelled = await mark.submit()
    await cancelled.cancel()
    await site.clock.advance("1m")
    done = (await site.admin.post("/v1/queues/marks/process", json={"seconds": 30})).json()
    assert (done["processed"], done["remaining"]) == (1, 0)
    assert await ticket.result(timeout=1) == "done"
    assert sorted(notified) == ["cancelled", "succeeded"]


async def test_the_next_call_continues_after_a_dead_driver(site: Site, connect: Connect) -> None:
    """M12: the driver's session holds a lock; its end frees the queue at once."""
    queue = site.penstock.queue("marks")

    @site.penstock.job(queue=queue)
    async def mark(n: int) -> int:
        return n

    await mark.submit(n=1)
    await site.start()
    other = await connect()
    assert await other.fetchval("select penstock.begin_drive('marks')")
    busy = (await site.admin.post("/v1/queues/marks/process")).json()
    assert (busy["busy"], busy["remaining"]) == (True, 1)
    other.terminate()

    async def driven() -> bool:
        done = (await site.admin.post("/v1/queues/marks/process")).json()
        return bool(done["processed"] == 1)

    await eventually(driven, "the next call works")


async def test_a_standing_server_restarts_a_lost_chain(site: Site, connect: Connect) -> None:
    """M12: it finds due jobs of a queue that no call drives."""
    site.penstock.queue("marks", drive="http")
    site.penstock.queue("plain")

    @site.penstock.job(queue="marks")
    async def mark() -> None: ...

    @site.penstock.job(queue="plain")
    async def mark_plain() -> None: ...

    await site.start()
    assert await site.engine.drive.due() == []
    await site.engine.jobs.submit_many([_new("mark"), _new("mark_plain")])
    assert await site.engine.drive.due() == ["marks"]
    other = await connect()
    await other.fetchval("select penstock.begin_drive('marks')")
    assert await site.engine.drive.due() == []
    await other.execute("select penstock.end_drive('marks')")
    assert await site.engine.drive.due() == ["marks"]
    await site.engine.queues.pause("marks")
    assert await site.engine.drive.due() == []


async def test_a_submit_over_http_starts_the_first_call(
    site: Site, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M12: after its commit."""
    monkeypatch.setenv("PENSTOCK_PUBLIC_URL", "https://queue.example.org")
    site.penstock.queue("marks", drive="http")
    site.penstock.queue("plain")

    @site.penstock.job(queue="marks")
    async def mark() -> None: ...

    @site.penstock.job(queue="plain")
    async def mark_plain() -> None: ...

    plain = await site.app_client.post("/v1/jobs", json={"kind": "mark_plain", "payload": {}})
    assert plain.status_code == 201
    sent = await site.app_client.post("/v1/jobs", json={"kind": "mark", "payload": {}})
    assert sent.status_code == 201
    await eventually(lambda: _is(called.queues == ["marks"]), "a call")


async def test_without_an_address_a_driven_submit_says_what_to_set(site: Site) -> None:
    """M12"""
    site.penstock.queue("marks", drive="http")

    @site.penstock.job(queue="marks")
    async def mark() -> None: ...

    with pytest.raises(Misconfigured, match="PENSTOCK_PUBLIC_URL"):
        await mark.submit()


async def test_a_job_that_reports_is_one_attempt(site: Site) -> None:
    """Reports of a job during a call reach the database before the answer is sent."""
    queue = site.penstock.queue("marks")

    @site.penstock.job(queue=queue)
    async def mark(job: Job) -> None:
        await job.progress(1, 2)
        job.charge(units=0)

    ticket = await mark.submit()
    assert (await site.admin.post("/v1/queues/marks/process")).json()["processed"] == 1
    assert (await ticket.status())["progress"]["done"] == 1


async def _is(value: bool) -> bool:
    return value


def _new(kind: str, **payload: Any) -> NewJob:
    return NewJob(kind=kind, payload=payload)


async def test_a_call_that_dispatches_returns_and_the_callback_starts_the_next(
    site: Site, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M12 with M5: the function keeps the slot until it calls back; the call does not wait."""
    monkeypatch.setenv("PENSTOCK_PUBLIC_URL", "https://queue.example.org")
    queue = site.penstock.queue("marks", concurrency=1, drive="http")
    handed: list[tuple[str, str]] = []

    @site.penstock.job(queue=queue)
    async def mark(job: Job) -> None:
        over = await job.hand_over()
        handed.append((str(job.id), over.token))

    await site.start()
    await site.engine.jobs.submit_many([_new("mark"), _new("mark")])
    for left in (1, 0):
        began = time.monotonic()
        done = (await site.admin.post("/v1/queues/marks/process", json={"seconds": 60})).json()
        assert time.monotonic() - began < 20, "it does not wait for the function"
        assert (done["remaining"], done["chained"]) == (left, False)
        assert await site.engine.drive.due() == [], "nothing could start now"
        called.queues.clear()
        job, token = handed[-1]
        answer = await site.anonymous.post(
            f"/v1/callbacks/{job}",
            json={"job_id": job, "token": token, "status": "succeeded", "result": 1},
            headers={"Authorization": f"Bearer {token}"},
        )
        assert answer.json()["results"][0]["outcome"] == "accepted"
        await eventually(lambda: _is(called.queues == ["marks"]), "the callback starts a call")
    assert len(handed) == 2


@pytest.mark.usefixtures("called")
async def test_no_job_is_overtaken_by_a_shorter_one(site: Site, conn: asyncpg.Connection) -> None:
    """M12: if the next job would not finish in time, the call returns; the next begins with it."""
    queue = site.penstock.queue("marks", concurrency=1)

    @site.penstock.job(queue=queue)
    async def short() -> None:
        await asyncio.sleep(0.5)

    @site.penstock.job(queue=queue)
    async def long() -> None: ...

    await site.start()
    for kind, seconds in (("short", 0.5), ("long", 100.0)):
        await conn.execute(
            "insert into penstock.pace (kind_id, seconds, samples, newest_at)"
            " select id, $2, 10, penstock.clock() from penstock.kind where name = $1",
            kind,
            seconds,
        )
    await site.engine.jobs.submit_many([_new("short"), _new("long"), _new("short")])
    done = (await site.admin.post("/v1/queues/marks/process", json={"seconds": 3})).json()
    assert (done["processed"], done["given_back"], done["remaining"]) == (1, 0, 2)
    assert await site.engine.drive.next_kind("marks") == "long"
    done = (await site.admin.post("/v1/queues/marks/process", json={"seconds": 3})).json()
    assert (done["processed"], done["remaining"]) == (2, 0)


@pytest.mark.parametrize("order", ["aging", "strict", "fair"])
async def test_the_next_job_is_known_in_every_order(site: Site, order: Any) -> None:
    """M12: jobs without a lane, and in lanes of accounts with a limit."""
    site.penstock.plan("free", concurrency=1)
    site.penstock.queue("marks", order=order)
    await site.start()
    for kind in ("a", "b", "c"):
        await site.engine.queues.declare_kind(kind, "marks")
    await site.engine.jobs.submit(NewJob(kind="a", account="u1", priority=5))
    await site.engine.jobs.submit(NewJob(kind="b", account="u2", priority=1))
    await site.engine.jobs.submit(NewJob(kind="c"))
    worker = await site.engine.workers.register("w")
    for _ in range(3):
        expected = await site.engine.drive.next_kind("marks")
        [claimed] = await site.engine.jobs.claim(worker, "marks", 1)
        assert claimed.kind == expected
    assert await site.engine.drive.next_kind("marks") is None


async def test_a_call_waits_for_a_job_that_is_due_soon(site: Site) -> None:
    """M12: this call runs a job that backs off for a second, but not one that waits an hour."""
    retry = Retries(attempts=2, backoff="constant", delay="1s")
    queue = site.penstock.queue("marks", retry=retry)

    @site.penstock.job(queue=queue)
    async def mark(job: Job) -> int:
        if job.attempt == 1:
            raise ValueError
        return job.attempt

    ticket = await mark.submit()
    await mark.using(delay="1h").submit()
    done = (await site.admin.post("/v1/queues/marks/process", json={"seconds": 40})).json()
    assert (done["processed"], done["remaining"]) == (2, 0)
    assert await ticket.result(timeout=1) == 2
