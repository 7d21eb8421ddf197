"""A crowd in the studio example: all click at once, and every book is right to the credit."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import asyncpg
import pytest

from journeys.processes import LOOK_SECONDS
from journeys.site import PATIENCE_SECONDS
from journeys.studio_site import ENDED, PNG, Customer, customer, running, urls_of
from support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

CROWD = 20
CLICKS = 4
PRICES = {"standard": 1, "high": 3}
VIDEO_FACTOR = 5


async def test_twenty_customers_click_at_once_and_the_books_balance(
    database: str, tmp_path: Path, conn: asyncpg.Connection
) -> None:
    """G1 to G4, G6, G7, G11, G13: what the page shows is what the ledger says, to the credit."""
    with running(database, tmp_path, model=False, customers=CROWD) as site:
        site.env["STUDIO_CONCURRENCY"] = "12"
        site.start_model("--latency", "0.01", "--slots", "8").wait_ready()
        for fault in (
            {"fault": "truncated_json", "chance": 0.12},
            {"fault": "refusal", "chance": 0.1},
            {"fault": "reset", "times": 2},
            {"fault": "status", "code": 500, "times": 2},
            {"fault": "empty", "what": "text", "chance": 0.05},
            {"fault": "storm", "form": "seconds", "after": 1, "times": 3},
        ):
            await site.fault(**fault)
        leaving = site.start_worker("leaving")
        site.start_worker("staying")
        async with AsyncExitStack() as stack:
            accounts = [f"customer-{number}" for number in range(1, CROWD + 1)]
            people = [await stack.enter_async_context(customer(site, one)) for one in accounts]
            for person in people[::3]:
                await person.become_operator()
            clicks = [_click(person, seed) for seed, person in enumerate(people)]
            answers = await asyncio.gather(*clicks)
            leaving.end()
            await _until_all_ended(conn)
            statuses = [status for told in answers for status in told]
            assert {201, 402} <= set(statuses) <= {201, 402, 429}, statuses
            orders = [one for person in people for one in await person.history()]
            assert len(orders) == statuses.count(201)
            assert {one["status"] for one in orders} == set(ENDED)
            assert any(0 < one["ready"] < one["images"] for one in orders), "no partial success"
            for person in people:
                await _assert_books_of(person, conn)
    assert await conn.fetch("select * from penstock.check()") == []
    kept = await conn.fetchval("select count(*) from studio.image")
    assert kept == sum(one["ready"] for one in orders)
    written = await conn.fetch(
        "select h.job_id, h.credits_reserved, h.credits_charged from studio.generation_jobs h"
        " except select r.job_id, r.reserved, r.charged from penstock.resolution r"
    )
    assert written == []
    assert await conn.fetchval("select count(*) from studio.generation_jobs") == (
        await conn.fetchval("select count(*) from penstock.resolution")
    )


async def _click(person: Customer, seed: int) -> list[int]:
    """Orders at the same moment, some of them clicked twice; one is cancelled, one buys."""
    random = Random(seed)

    async def once() -> tuple[int, str | None]:
        fields = {
            "job_type": random.choice(["tryon", "product", "freestyle", "workflow", "video"]),
            "images": random.randint(1, 8),
            "quality": random.choice(["standard", "standard", "high"]),
        }
        key = random.randbytes(12).hex()
        twice = random.choice([1, 2])
        both = await asyncio.gather(
            *(person.press_generate(key=key, **fields) for _ in range(twice))
        )
        assert len({one.status_code for one in both}) == 1 or 402 in {
            one.status_code for one in both
        }
        found = {one.json().get("job_id") for one in both if one.status_code == 201}
        assert len(found) <= 1, "a double click is one job"
        [status, *_] = sorted(one.status_code for one in both)
        return status, next(iter(found), None)

    told = await asyncio.gather(*(once() for _ in range(CLICKS)))
    if seed % 3 == 0:
        await asyncio.gather(*(person.buy(f"purchase-{seed}") for _ in range(3)))
    if seed % 2 == 0 and (jobs := [job for _, job in told if job]):
        await person.cancel(random.choice(jobs))
    return [status for status, _ in told]


async def _until_all_ended(conn: asyncpg.Connection) -> None:
    """And the app has been told of each end."""

    async def ended() -> bool:
        left = (
            "select exists (select from penstock.job)"
            " or exists (select from penstock.pending_on_finish)"
        )
        return not await conn.fetchval(left)

    # Not by the pages, which would take their time from those who draw.
    await eventually(ended, "all have ended", seconds=3 * PATIENCE_SECONDS, poll=LOOK_SECONDS)


async def _assert_books_of(person: Customer, conn: asyncpg.Connection) -> None:
    """Balance, history and pictures as the page shows them, against Penstock's books."""
    orders = await person.history()
    has = await person.has()
    account = await conn.fetchrow(
        "select a.id, a.balance, (select sum(l.amount) from penstock.ledger l"
        " where l.account_id = a.id) as summed from penstock.account a where a.name = $1",
        person.account,
    )
    assert account is not None
    assert has["balance"] == account["balance"] == account["summed"]
    granted = await conn.fetchval(
        "select sum(amount) from penstock.ledger where account_id = $1 and kind = 'grant'",
        account["id"],
    )
    charged = sum(one["credits"]["charged"] for one in orders)
    assert granted - charged == has["balance"]
    for one in orders:
        jobs = await conn.fetchval(
            "select job_ids from studio.generation where id = $1::text::uuid", one["job_id"]
        )
        settled = await conn.fetchrow(
            "select sum(reserved) as reserved, sum(charged) as charged, sum(refunded) as refunded"
            " from penstock.resolution where job_id = any ($1)",
            jobs,
        )
        assert settled is not None
        assert one["credits"] == dict(settled)
        moved = await conn.fetchval(
            "select -sum(amount) from penstock.ledger where job_id = any ($1)", jobs
        )
        assert moved == one["credits"]["charged"]
        each = PRICES[one["quality"]] * (VIDEO_FACTOR if one["job_type"] == "video" else 1)
        assert one["credits"]["reserved"] == each * one["images"]
        assert one["credits"]["charged"] == each * one["ready"] == each * len(urls_of(one))
        assert one == await person.look(one["job_id"])
        for url in urls_of(one):
            assert (await person.picture(url)).startswith(PNG)
