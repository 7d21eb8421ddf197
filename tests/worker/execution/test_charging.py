"""What a handler reports as delivered is charged; also for an attempt that did not succeed."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock import Constant, Fail, Job, Penstock, Retries, Retry
from penstock.engine.jobs.attempts import Progress, Report
from penstock.errors import Invalid
from penstock.worker.attempts import attempt
from penstock.worker.reporting import progress
from support.factory import submit
from support.waiting import eventually
from support.worker.charges import PRICE
from support.worker.charges import app as charges
from support.worker.crew import until_finished, working


@pytest.fixture
async def granted(conn: asyncpg.Connection) -> None:
    await conn.execute("select penstock.grant_credits('u1', 100)")


def new_app() -> Penstock:
    app = Penstock(name="charging")
    app.queue("q", retry=Retries(attempts=2, backoff="constant", delay="0s"))
    return app


async def credits_of(conn: asyncpg.Connection, job: UUID) -> tuple[int, int, int]:
    """Reserved, charged, refunded; and the ledger agrees."""
    row = await conn.fetchrow("select * from penstock.resolution where job_id = $1", job)
    assert row is not None
    moved = await conn.fetchval("select sum(amount) from penstock.ledger where job_id = $1", job)
    assert moved == -row["charged"]
    return row["reserved"], row["charged"], row["refunded"]


async def balance(conn: asyncpg.Connection) -> int:
    found: int = await conn.fetchval("select balance from penstock.account where name = 'u1'")
    return found


@pytest.mark.usefixtures("granted")
@pytest.mark.parametrize("mode", ["async", "thread", "process"])
async def test_three_of_four_are_charged_and_one_is_refunded(
    database: str, conn: asyncpg.Connection, mode: str
) -> None:
    """G4: the last report counts, from the loop, a thread and another process."""
    async with working(database, charges):
        some = await submit(conn, mode, payload={"images": 4, "good": 3})
        none = await submit(conn, mode, payload={"images": 4, "good": 0})
        more = await submit(conn, mode, payload={"images": 4, "good": 9})
        await until_finished(conn, [some, none, more])
    assert await credits_of(conn, some) == (8, 6, 2)
    assert await credits_of(conn, none) == (8, 0, 8)
    assert await credits_of(conn, more) == (8, 8, 0)
    assert await balance(conn) == 100 - 6 - 8


@pytest.mark.usefixtures("granted")
async def test_without_a_report_all_is_charged_and_for_a_failure_nothing(
    database: str, conn: asyncpg.Connection
) -> None:
    """G3, G4: and what a failed attempt delivered does not count for the next one."""
    app = new_app()

    @app.job(queue="q", account=Constant("u1"), price=5)
    async def work(how: str, job: Job) -> None:
        if how == "fails":
            await job.charge(units=3)
            raise Fail("no")
        if how == "second" and job.attempt == 1:
            await job.charge(units=1)
            await job.progress(1, 5)
            await asyncio.sleep(2 * progress.PACE_SECONDS)
            raise Retry("again", after="0s")

    async with working(database, app):
        jobs = [
            await submit(conn, "work", payload={"how": how}) for how in ("ends", "fails", "second")
        ]
        await until_finished(conn, jobs)
    assert [await credits_of(conn, job) for job in jobs] == [(5, 5, 0), (5, 0, 5), (5, 5, 0)]


@pytest.mark.usefixtures("granted")
@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_units_are_known_while_the_job_runs_and_charged_at_a_cancel(
    database: str, conn: asyncpg.Connection, mode: str
) -> None:
    """G13, G4: a job that is cancelled while it runs costs what it had delivered until then."""
    app = new_app()
    if mode == "async":

        @app.job(queue="q", account=Constant("u1"), price=PRICE)
        async def draw(images: int, job: Job) -> None:
            await job.charge(units=images - 1)
            await asyncio.Event().wait()

    else:

        @app.job(queue="q", name="draw", account=Constant("u1"), price=PRICE)
        def draw_in_thread(images: int, job: Job) -> None:
            job.charge(units=images - 1)
            while not job.cancelled:
                pass

    async def is_known() -> bool:
        return bool(await conn.fetchval("select units = 3 from penstock.job where id = $1", job))

    async with working(database, app):
        job = await submit(conn, "draw", payload={"images": 4})
        await eventually(is_known, "the units to be known while it runs")
        await conn.execute("select penstock.cancel_job($1)", job)
        [row] = await until_finished(conn, [job])
    if mode == "async":
        assert row["status"] == "cancelled"
    assert await credits_of(conn, job) == (8, 6, 2)


@pytest.mark.usefixtures("granted")
async def test_the_database_alone_can_charge_a_cancelled_run(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G4: the worker never writes the outcome; what it reported before is what counts."""
    app = new_app()

    @app.job(queue="q", account=Constant("u1"), price=PRICE, timeout="1h")
    async def draw(images: int, job: Job) -> None:
        await job.charge(units=images - 1)
        await asyncio.Event().wait()

    async def is_known() -> bool:
        return bool(await conn.fetchval("select units = 3 from penstock.job where id = $1", job))

    monkeypatch.setattr(attempt, "CANCEL_SECONDS", 0.0)
    async with working(database, app):
        job = await submit(conn, "draw", payload={"images": 4})
        await eventually(is_known, "the units to be known while it runs")
        # An outcome without units, as upkeep and a callback write it.
        verdict = await conn.fetchval(
            "select f.verdict from penstock.job j cross join lateral penstock.finish_jobs("
            "j.worker_id, array[j.id], array[j.attempt], array['cancelled'],"
            " p_accounts => array[j.account_id]) f where j.id = $1",
            job,
        )
        assert verdict == "done"
    assert await credits_of(conn, job) == (8, 6, 2)


@pytest.mark.usefixtures("granted")
async def test_many_reports_of_units_are_few_writes(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: and no write at all if the outcome has the same units."""
    app = new_app()
    written: list[int | None] = []
    write = Progress.report

    async def counted(self: Progress, worker: int, reports: list[Report]) -> Any:
        written.extend(report[-1] for report in reports)
        return await write(self, worker, reports)

    monkeypatch.setattr(Progress, "report", counted)

    @app.job(queue="q", account=Constant("u1"), price=50)
    async def work(slow: bool, job: Job) -> None:
        for n in range(31):
            await job.charge(units=n)
            if slow:
                await asyncio.sleep(0.01)

    async with working(database, app):
        quick = await submit(conn, "work", payload={"slow": False})
        await until_finished(conn, [quick])
        assert written == []
        slow = await submit(conn, "work", payload={"slow": True})
        await until_finished(conn, [slow])
    assert 1 <= len(written) <= 6
    assert written == sorted(written, key=lambda units: units or 0)
    assert await credits_of(conn, quick) == await credits_of(conn, slow) == (50, 30, 20)


@pytest.mark.usefixtures("granted")
async def test_units_are_written_with_other_reports_and_outlive_an_outage(
    database: str, conn: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: what could not be written is kept, and newer reports win."""
    app = new_app()
    write, unavailable = Progress.report, True
    refused, reported_more = asyncio.Event(), asyncio.Event()

    async def maybe(self: Progress, worker: int, reports: list[Report]) -> Any:
        if unavailable:
            refused.set()
            await reported_more.wait()
            raise ConnectionRefusedError
        return await write(self, worker, reports)

    monkeypatch.setattr(Progress, "report", maybe)
    monkeypatch.setattr(attempt, "UNAVAILABLE_SECONDS", (0.02, 0.02))
    go_on = asyncio.Event()

    @app.job(queue="q", account=Constant("u1"), price=10)
    async def work(job: Job) -> None:
        await job.charge(units=2)
        await refused.wait()
        await job.stage("LATER")
        await job.progress(1, 2)
        reported_more.set()
        await go_on.wait()

    async def is_known() -> bool:
        row = await conn.fetchrow(
            "select units, stage, progress ->> 'done' as done from penstock.job where id = $1", job
        )
        return row is not None and tuple(row) == (2, "LATER", "1")

    async with working(database, app):
        job = await submit(conn, "work")
        await reported_more.wait()
        unavailable = False
        await eventually(is_known, "all reports")
        go_on.set()
        await until_finished(conn, [job])
    assert await credits_of(conn, job) == (10, 2, 8)


ODD: list[Any] = [-1, True, 1.5, "3", None, 10**12 + 1, 2**70]


@pytest.mark.usefixtures("granted")
async def test_invalid_units_are_the_handlers_bug_and_named(
    database: str, conn: asyncpg.Connection
) -> None:
    app = new_app()
    fields: list[str] = []

    def refused(call: Callable[..., Any], units: Any) -> None:
        with pytest.raises(Invalid, match=r"^units must be a whole number from 0 to 10") as caught:
            call(units=units)
        fields.append(str(caught.value.field))

    @app.job(queue="q", account=Constant("u1"), price=3)
    async def work(job: Job) -> None:
        await job.charge(units=1)
        for units in ODD:
            refused(job.charge, units)

    async with working(database, app):
        job = await submit(conn, "work")
        [row] = await until_finished(conn, [job])
    assert (row["status"], fields) == ("succeeded", ["units"] * len(ODD))
    assert await credits_of(conn, job) == (3, 1, 2)


@pytest.mark.usefixtures("granted")
async def test_each_kind_has_its_own_handler_and_none_of_them_charges(
    database: str, conn: asyncpg.Connection
) -> None:
    """G10: the price was reserved before; a handler that runs twice is paid for once."""
    app = new_app()
    ran: list[tuple[str, int]] = []

    @app.job(queue="q", account=Constant("u1"), price=2)
    async def tryon(job: Job) -> str:
        ran.append(("tryon", job.attempt))
        if job.attempt == 1:
            raise Retry("once more", after=0)
        return "tryon"

    @app.job(queue="q", account=Constant("u1"), price=5)
    async def video(job: Job) -> str:
        ran.append(("video", job.attempt))
        return "video"

    async with working(database, app):
        jobs = [await submit(conn, kind) for kind in ("tryon", "video")]
        finished = await until_finished(conn, jobs)
    assert [row["result"] for row in finished] == ["tryon", "video"]
    assert sorted(ran) == [("tryon", 1), ("tryon", 2), ("video", 1)]
    assert await balance(conn) == 93
