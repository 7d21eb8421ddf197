"""Jobs that were submitted together: a request that is split, and many jobs at once."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from penstock import (
    Batch,
    BatchTicket,
    Constant,
    Fail,
    InsufficientCredits,
    Invalid,
    Job,
    JobCancelled,
    JobFailed,
    Kind,
    NotFound,
    Penstock,
)
from support.shapes import Connect
from support.worker.crew import working


@pytest.fixture
async def draw(app: Penstock) -> Kind[..., Any]:
    """Eight images are two jobs; account u1 has 100 credits, an image costs 3."""
    app.queue("q")

    @app.job(
        queue="q", account=Constant("u1"), price={"per": "images", "each": 3}, split=("images", 4)
    )
    async def draw(images: int | list[str], job: Job, fail: str = "") -> list[Any]:
        names = images if isinstance(images, list) else [str(n) for n in range(images)]
        if fail and fail in names:
            raise Fail(f"cannot draw {fail}")
        await job.progress(len(names), len(names), partial=names)
        return names

    await app.accounts.grant("u1", 100)
    return draw


async def test_eight_images_are_two_jobs_of_four_and_one_ticket(
    draw: Kind[..., Any], conn: asyncpg.Connection
) -> None:
    """G11"""
    ticket = await draw.submit(images=8)
    assert isinstance(ticket, BatchTicket)
    assert (ticket.kind, ticket.balance, len(ticket.tickets)) == ("draw", 76, 2)
    assert ticket.id == ticket.tickets[0].id != ticket.tickets[1].id
    assert {each.batch for each in ticket.tickets} == {ticket.batch}
    rows = await conn.fetch("select payload, batch_id, reserved from penstock.job order by id")
    assert [(row["payload"]["images"], row["reserved"]) for row in rows] == [(4, 12), (4, 12)]
    assert {row["batch_id"] for row in rows} == {ticket.batch}
    status = await ticket.status()
    assert (status["id"], status["total"], status["queued"]) == (str(ticket.batch), 2, 2)
    assert status["credits"] == {"reserved": 24, "charged": 0, "refunded": 0}
    assert [item["id"] for item in status["items"]] == [str(each.id) for each in ticket.tickets]


@pytest.mark.parametrize(
    ("images", "pieces"), [(1, [1]), (4, [4]), (5, [4, 1]), (9, [4, 4, 1]), (12, [4, 4, 4])]
)
async def test_each_job_is_as_large_as_allowed(
    draw: Kind[..., Any], images: int, pieces: list[int]
) -> None:
    """G11: a small request is a batch, too, so that its answer has the same form."""
    ticket = await draw.submit(images=images)
    assert isinstance(ticket, BatchTicket)
    counts = [(await each.status())["credits"]["reserved"] // 3 for each in ticket.tickets]
    assert counts == pieces


async def test_the_results_are_in_order(database: str, app: Penstock, draw: Kind[..., Any]) -> None:
    """G11: reported in the order of the request, whichever job finished first."""
    names = [f"i{n}" for n in range(10)]
    ticket = await draw.submit(images=names)
    assert ticket.batch is not None
    async with working(database, app):
        assert await ticket.result(timeout="20s") == [names[:4], names[4:8], names[8:]]
    assert await app.batch(ticket.batch).result() == [names[:4], names[4:8], names[8:]]
    assert await app.batch(str(ticket.batch)).result(timeout=0) == await ticket.result(timeout=0)
    status = await ticket.status()
    assert (status["status"], status["succeeded"], status["progress"]["done"]) == (
        "succeeded",
        3,
        3,
    )
    assert status["progress"]["partial"] == [names[:4], names[4:8], names[8:]]
    assert status["credits"] == {"reserved": 30, "charged": 30, "refunded": 0}


async def test_a_failed_job_has_no_result_and_is_refunded(
    database: str, app: Penstock, draw: Kind[..., Any]
) -> None:
    """G11, G3"""
    names = [f"i{n}" for n in range(8)]
    ticket = await draw.submit(images=names, fail="i2")
    async with working(database, app):
        assert await ticket.result(timeout="20s") == [None, names[4:]]
    status = await ticket.status()
    assert (status["status"], status["succeeded"], status["failed"]) == ("succeeded", 1, 1)
    assert status["credits"] == {"reserved": 24, "charged": 12, "refunded": 12}
    assert (await app.accounts.show("u1"))["balance"] == 88


async def test_if_no_job_succeeds_the_first_failure_is_raised(
    database: str, app: Penstock, draw: Kind[..., Any]
) -> None:
    ticket = await draw.submit(images=["x"] * 8, fail="x")
    assert ticket.batch is not None
    async with working(database, app):
        with pytest.raises(JobFailed, match=r"\(draw\) failed: .*cannot draw x") as caught:
            await ticket.result(timeout="20s")
    assert caught.value.job_id == ticket.id
    with pytest.raises(JobFailed, match="cannot draw x"):
        await app.batch(ticket.batch).result()
    assert (await app.accounts.show("u1"))["balance"] == 100


async def test_cancelling_a_batch_cancels_every_job(app: Penstock, draw: Kind[..., Any]) -> None:
    """G13, G3"""
    ticket = await draw.submit(images=12)
    assert isinstance(ticket, BatchTicket)
    cancelled = await ticket.cancel()
    assert (cancelled["status"], cancelled["cancelled"]) == ("cancelled", 3)
    assert {(await each.status())["status"] for each in ticket.tickets} == {"cancelled"}
    assert (await app.accounts.show("u1"))["balance"] == 100
    with pytest.raises(JobCancelled, match=f"batch {ticket.batch} was cancelled"):
        await ticket.result()


async def test_the_wait_is_no_longer_than_the_timeout(draw: Kind[..., Any]) -> None:
    ticket = await draw.submit(images=8)
    with pytest.raises(TimeoutError, match=f"batch {ticket.batch} has not finished within 0.03 s"):
        await ticket.result(timeout=0.03)
    assert (await ticket.status())["status"] == "queued"


async def test_all_of_it_is_paid_or_nothing_is_queued(
    draw: Kind[..., Any], conn: asyncpg.Connection
) -> None:
    """G2: one decision for the whole request, although the first piece alone could be paid."""
    with pytest.raises(InsufficientCredits) as caught:
        await draw.submit(images=36)
    assert (caught.value.balance, caught.value.required) == (100, 108)
    assert await conn.fetchval("select count(*) from penstock.job") == 0


async def test_a_given_price_is_shared_by_the_jobs(
    draw: Kind[..., Any], conn: asyncpg.Connection
) -> None:
    """Together they cost exactly the given price."""
    ticket = await draw.using(price=10).submit(images=9)
    assert ticket.balance == 90
    rows = await conn.fetch("select reserved from penstock.job order by id")
    assert sum(row["reserved"] for row in rows) == 10


async def test_a_price_function_is_called_once_for_the_whole_request(
    app: Penstock, conn: asyncpg.Connection
) -> None:
    app.queue("q")
    asked: list[int] = []

    def price(payload: dict[str, Any]) -> int:
        asked.append(payload["images"])
        return 11

    @app.job(queue="q", account=Constant("u1"), price=price, split=("images", 4))
    async def draw(images: int) -> None: ...

    await app.accounts.grant("u1", 20)
    assert (await draw.submit(images=8)).balance == 9
    assert asked == [8]
    assert await conn.fetchval("select sum(reserved) from penstock.job") == 11


async def test_a_split_needs_no_price(app: Penstock) -> None:
    app.queue("q")

    @app.job(queue="q", split=("n", 2))
    async def work(n: int = 5) -> None: ...

    ticket = await work.submit()
    assert isinstance(ticket, BatchTicket)
    assert len(ticket.tickets) == 3
    assert (await ticket.status())["credits"] is None


async def test_a_repeated_submit_returns_the_same_batch(draw: Kind[..., Any]) -> None:
    using = draw.using(idempotency_key="k1")
    first, again = await using.submit(images=8), await using.submit(images=8)
    assert isinstance(again, BatchTicket)
    assert (first.replayed, again.replayed) == (False, True)
    assert (again.id, again.batch) == (first.id, first.batch)
    assert [each.id for each in again.tickets] == [
        each.id for each in getattr(first, "tickets", ())
    ]
    assert again.balance == 76


@pytest.mark.parametrize("images", [0, -1, []])
async def test_a_wrong_count_is_refused_with_its_field(draw: Kind[..., Any], images: Any) -> None:
    with pytest.raises(Invalid, match="images must be a whole number") as caught:
        await draw.submit(images=images)
    assert (caught.value.code, caught.value.field) == ("invalid_payload", "images")


async def test_submit_many_refuses_rows_to_split_and_split_refuses_a_dedupe_key(
    draw: Kind[..., Any],
) -> None:
    with pytest.raises(Invalid, match=r"^row 2: images may be at most 4") as caught:
        await draw.submit_many([{"images": 4}, {"images": 5}])
    assert caught.value.field == "images"
    with pytest.raises(Invalid, match="dedupe_key") as caught:
        await draw.using(dedupe_key="k").submit(images=8)
    assert (caught.value.code, caught.value.field) == ("invalid_job", "dedupe_key")


async def test_jobs_submitted_together_are_one_batch(database: str, app: Penstock) -> None:
    app.queue("q")

    @app.job(queue="q")
    async def double(n: int) -> int:
        return 2 * n

    alone = await double.submit(n=1)
    assert alone.batch is None
    tickets = await double.submit_many([{"n": n} for n in range(5)])
    [batch] = {each.batch for each in tickets}
    assert batch is not None
    assert (await app.batch(batch).status())["total"] == 5
    async with working(database, app):
        assert await app.batch(batch).result(timeout="20s") == [0, 2, 4, 6, 8]
    assert [await each.result() for each in tickets] == [0, 2, 4, 6, 8]


async def test_a_batch_too_large_to_list_has_no_partial_result(app: Penstock) -> None:
    app.queue("q")

    @app.job(queue="q")
    async def nothing(n: int) -> None: ...

    tickets = await nothing.submit_many([{"n": n} for n in range(1_001)])
    assert tickets[0].batch is not None
    batch = app.batch(tickets[0].batch)
    assert (await batch.cancel())["cancelled"] == 1_001
    with pytest.raises(NotFound, match="has 1001 jobs, but returns the results of at most"):
        await batch.result()


async def test_an_unknown_batch_is_refused(app: Penstock) -> None:
    unknown = uuid4()
    assert app.batch(unknown) == Batch(unknown, app=app)
    for call in (app.batch(unknown).status(), app.batch(unknown).cancel()):
        with pytest.raises(NotFound, match=f"there is no batch {unknown}") as caught:
            await call
        assert caught.value.code == "unknown_batch"
    with pytest.raises(Invalid, match="id must be the id of a batch"):
        app.batch("nope")


async def test_inline_every_job_has_run_when_submit_returns(
    app: Penstock, connect: Connect
) -> None:
    """F10: an inline queue, with the same credits."""
    app.queue("q", inline=True)

    @app.job(
        queue="q", account=Constant("u1"), price={"per": "images", "each": 2}, split=("images", 4)
    )
    async def draw(images: int, job: Job) -> int:
        await job.charge(units=images - 1)
        return images

    await app.accounts.grant("u1", 50)
    ticket = await draw.submit(images=7)
    assert (ticket.balance, await ticket.result(timeout=0)) == (36, [4, 3])
    assert (await app.accounts.show("u1"))["balance"] == 40  # 2 of 7 were not delivered
    own = await connect()
    async with own.transaction():
        later = await draw.using(conn=own).submit(images=5)
    assert await later.result(timeout=10) == [4, 1]


async def test_blocking_callers_have_batches_too(app: Penstock, draw: Kind[..., Any]) -> None:
    def block() -> Mapping[str, Any]:
        ticket = app.sync.submit(draw, images=8)
        assert isinstance(ticket, BatchTicket)
        assert ticket.batch is not None
        assert app.sync.status(ticket)["queued"] == 2
        assert app.sync.status(app.batch(ticket.batch)) == app.sync.status(ticket)
        many = app.sync.submit_many(draw, [{"images": 1}, {"images": 2}])
        assert many[0].batch == many[1].batch != ticket.batch
        cancelled = app.sync.cancel(ticket)
        with pytest.raises(JobCancelled):
            app.sync.result(ticket)
        app.sync.close()
        return cancelled

    assert (await asyncio.to_thread(block))["cancelled"] == 2
