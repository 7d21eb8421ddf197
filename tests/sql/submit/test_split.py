"""Large requests are split into several jobs, with one answer, one decision and one total."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from sql.credits.test_credits import balance, rich
from support import factory
from support.factory import refused

SPLIT = {"split_field": "images", "split_most": 4, "price": {"per": "images", "each": 2}}


async def studio(conn: asyncpg.Connection, **options: Any) -> None:
    await factory.queue(conn)
    await conn.execute("select penstock.declare_kind('q', 'q', $1)", {**SPLIT, **options})
    await rich(conn)


async def ask(conn: asyncpg.Connection, images: Any, **more: Any) -> asyncpg.Record:
    """As Python submits it."""
    row = await conn.fetchrow(
        "select * from penstock.submit_one('q', $1, 'u1', p_key => $2, p_price => $3)",
        {"images": images, "prompt": "x"},
        more.get("key"),
        more.get("price"),
    )
    assert row
    return row


async def batch(conn: asyncpg.Connection, number: UUID) -> dict[str, Any]:
    answer: dict[str, Any] = await conn.fetchval("select penstock.read_batch($1)", number)
    return answer


async def test_a_request_for_eight_images_becomes_two_jobs_of_four(
    conn: asyncpg.Connection,
) -> None:
    """G11"""
    await studio(conn)
    row = await ask(conn, 8)
    assert len(row["ids"]) == 2
    assert row["id"] == row["ids"][0]
    assert row["balance"] == 84
    payloads = await conn.fetch("select payload from penstock.job order by id")
    assert [one["payload"] for one in payloads] == [{"images": 4, "prompt": "x"}] * 2
    answer = await batch(conn, row["batch"])
    assert (answer["total"], answer["queued"], answer["status"]) == (2, 2, "queued")
    assert answer["credits"] == {"reserved": 16, "charged": 0, "refunded": 0}
    assert [item["id"] for item in answer["items"]] == [str(one) for one in row["ids"]]


@pytest.mark.parametrize(
    ("images", "pieces"),
    [
        (1, [1]),
        (4, [4]),
        (5, [4, 1]),
        (9, [4, 4, 1]),
        (["a", "b", "c", "d", "e"], [["a", "b", "c", "d"], ["e"]]),
    ],
)
async def test_the_pieces_add_up_to_the_request(
    conn: asyncpg.Connection, images: Any, pieces: list[Any]
) -> None:
    """G11"""
    await studio(conn)
    await ask(conn, images)
    rows = await conn.fetch("select payload -> 'images' as images from penstock.job order by id")
    assert [row["images"] for row in rows] == pieces


async def test_a_price_for_the_whole_is_shared_out_exactly(conn: asyncpg.Connection) -> None:
    await studio(conn)
    await ask(conn, 9, price=10)
    rows = await conn.fetch("select reserved from penstock.job order by id")
    assert [row["reserved"] for row in rows] == [4, 4, 2]


async def test_a_request_that_cannot_be_paid_as_a_whole_makes_no_job(
    conn: asyncpg.Connection,
) -> None:
    """G2, G11"""
    await studio(conn)
    with refused(402, "insufficient_credits", "account") as error:
        await ask(conn, 60)
    assert (error["balance"], error["required"]) == (100, 120)
    assert await conn.fetchval("select count(*) from penstock.job") == 0


async def test_a_batch_shows_its_results_so_far(conn: asyncpg.Connection) -> None:
    """G4, G12"""
    await studio(conn)
    row = await ask(conn, 12)
    worker = await factory.worker(conn)
    one, two, three = await factory.claim(conn, worker, limit=3)
    await factory.finish(conn, worker, [one], result={"images": ["a", "b"]})
    await conn.execute(
        "select penstock.report_progress($1, array[$2::uuid], array[1], null, null, $3)",
        worker,
        two["id"],
        [{"done": 1, "total": 4, "partial": ["c"]}],
    )
    answer = await batch(conn, row["batch"])
    assert answer["progress"] == {
        "done": 1.25,
        "total": 3,
        "partial": [{"images": ["a", "b"]}, ["c"], None],
    }
    assert (answer["status"], answer["succeeded"], answer["running"]) == ("running", 1, 2)
    await factory.finish(conn, worker, [two], "failed")
    await factory.finish(conn, worker, [three], "failed")
    answer = await batch(conn, row["batch"])
    assert (answer["status"], answer["succeeded"], answer["failed"]) == ("succeeded", 1, 2)
    assert answer["credits"] == {"reserved": 24, "charged": 8, "refunded": 16}


async def test_cancelling_a_batch_cancels_waiting_jobs_and_asks_running_ones(
    conn: asyncpg.Connection,
) -> None:
    """G13"""
    await studio(conn)
    row = await ask(conn, 8)
    worker = await factory.worker(conn)
    [running] = await factory.claim(conn, worker)
    answer = await conn.fetchval("select penstock.cancel_batch($1)", row["batch"])
    assert (answer["cancelled"], answer["running"]) == (1, 1)
    await factory.finish(conn, worker, [running], "cancelled")
    assert (await batch(conn, row["batch"]))["status"] == "cancelled"
    assert await balance(conn) == 100
    with refused(404, "unknown_batch", "id"):
        await conn.fetchval("select penstock.cancel_batch(gen_random_uuid())")


async def test_a_repeated_request_gets_the_same_jobs(conn: asyncpg.Connection) -> None:
    """R-S19"""
    await studio(conn)
    first, again = await ask(conn, 8, key="click"), await ask(conn, 8, key="click")
    assert again["replayed"]
    for field in ("id", "batch", "ids", "balance"):
        assert again[field] == first[field]


async def test_a_request_that_cannot_be_split_is_refused_with_its_field(
    conn: asyncpg.Connection,
) -> None:
    await studio(conn)
    odd: Any
    for odd in (0, -1, 1.5, "4", None, []):
        with refused(422, "invalid_payload", "images"):
            await ask(conn, odd)
    with refused(422, "invalid_payload", "images"):
        await factory.submit_rows(conn, [{"kind": "q", "account": "u1", "payload": {"images": 5}}])
    with refused(422, "invalid_job", "dedupe_key"):
        await conn.execute(
            "select penstock.submit_job('q', '{\"images\": 1}', account => 'u1', dedupe_key => 'k')"
        )
    for options, field in (
        ({"split_field": "images"}, "split"),
        ({"split_most": 4}, "split"),
        ({**SPLIT, "dedupe_field": "x"}, "split"),
        ({**SPLIT, "split_most": 0}, "split_most"),
    ):
        with refused(422, "invalid_option", field):
            await conn.execute("select penstock.declare_kind('z', 'q', $1)", options)


async def test_jobs_submitted_together_are_a_batch(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    ids = await factory.submit_rows(conn, [{"kind": "q", "account": f"u{n}"} for n in range(3)])
    number = (await factory.read(conn, ids[0]))["batch"]
    answer = await batch(conn, number)
    assert (answer["total"], answer["account"], answer["credits"]) == (3, None, None)


async def test_a_batch_is_forgotten_with_its_last_job(conn: asyncpg.Connection, clock: Any) -> None:
    """M14"""
    await factory.queue(conn)
    await factory.submit_rows(conn, [{"kind": "q"}])
    worker = await factory.worker(conn, lease="100 days")
    await factory.finish(conn, worker, await factory.claim(conn, worker))
    await clock.advance("30d")
    await factory.prune(conn)
    assert await conn.fetchval("select count(*) from penstock.batch") == 0


@pytest.mark.parametrize("price", [{"price": 10}, {"price": {"field": "cost", "trusted": True}}])
async def test_the_price_is_for_the_request_and_not_for_each_piece(
    conn: asyncpg.Connection, price: dict[str, Any]
) -> None:
    """G18: the request is billed as one."""
    await factory.queue(conn)
    await conn.execute(
        "select penstock.declare_kind('q', 'q', $1)",
        {"split_field": "images", "split_most": 4, **price},
    )
    await rich(conn)
    for images in (4, 8, 9):
        before = await balance(conn)
        await conn.execute(
            "select penstock.submit_job('q', $1, account => 'u1')", {"images": images, "cost": 10}
        )
        assert before - await balance(conn) == 10


async def test_split_and_a_computed_dedupe_exclude_one_another(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    with refused(422, "invalid_option", "split"):
        await conn.execute(
            "select penstock.declare_kind('z', 'q', $1)", {**SPLIT, "computed": ["dedupe"]}
        )
