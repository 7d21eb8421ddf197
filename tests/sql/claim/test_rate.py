"""A queue's rate: jobs start evenly, a burst is bounded, and a new rate is in force at once."""

import asyncio

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.shapes import Connect, Scale


async def starts(conn: asyncpg.Connection, worker: int, ask: int = 1_000) -> int:
    started = await factory.claim(conn, worker, limit=ask)
    await factory.finish(conn, worker, started)
    return len(started)


async def flooded(conn: asyncpg.Connection, rate: str, burst: int | None = None) -> int:
    """Make a queue with more jobs than any rate below allows, and a worker for it."""
    await factory.queue(conn, rate=rate, burst=burst)
    await conn.execute(
        "select count(*) from penstock.submit_many(array_fill('q'::text, array[3000]),"
        " array_fill('{}'::jsonb, array[3000]))"
    )
    return await factory.worker(conn, lease="10 days")


async def test_jobs_start_at_an_even_rate(conn: asyncpg.Connection, clock: Clock) -> None:
    await clock.freeze()
    worker = await flooded(conn, "60/min")
    assert await starts(conn, worker) == 1
    assert await starts(conn, worker) == 0
    await clock.advance(0.9)
    assert await starts(conn, worker) == 0
    await clock.advance(0.1)
    assert await starts(conn, worker) == 1


@pytest.mark.parametrize(
    ("rate", "burst", "at_once"),
    [
        ("60/min", None, 1),
        ("500/min", None, 9),
        ("10/s", None, 10),
        ("3/h", None, 1),
        ("3/h", 3, 3),
    ],
)
async def test_an_idle_queue_starts_one_burst_and_no_more(
    conn: asyncpg.Connection, clock: Clock, rate: str, burst: int | None, at_once: int
) -> None:
    await clock.freeze()
    worker = await flooded(conn, rate, burst)
    for _ in range(2):
        assert await starts(conn, worker) == at_once
        await clock.advance("2d")  # a longer idle time allows no more


async def test_a_rate_holds_in_every_window(conn: asyncpg.Connection, clock: Clock) -> None:
    await clock.freeze()
    worker = await flooded(conn, "500/min")
    seconds = [await starts(conn, worker)]
    for _ in range(119):
        await clock.advance(1)
        seconds.append(await starts(conn, worker))
    for begin in range(61):
        in_a_minute = sum(seconds[begin : begin + 60])
        assert 490 <= in_a_minute <= 500 + 9, f"from second {begin}: {in_a_minute}"


@pytest.mark.one_version
async def test_sixty_a_minute_from_four_claimers_at_once(
    conn: asyncpg.Connection, clock: Clock, connect: Connect, scale: Scale
) -> None:
    """In any sliding minute, at most the rate and one burst."""
    seconds = scale(100, 240)
    await clock.freeze()
    worker = await flooded(conn, "60/min", burst=5)
    claimers = [await connect() for _ in range(4)]
    moments: list[float] = []
    for tenth in range(10 * seconds):
        found = await asyncio.gather(*(starts(each, worker, 10) for each in claimers))
        moments += [tenth / 10] * sum(found)
        await clock.advance(0.1)
    assert len(moments) >= seconds - 1
    for n, begin in enumerate(moments):
        within = sum(moment < begin + 60 for moment in moments[n:])
        assert within <= 60 + 5, f"{within} from {begin} s on"


async def test_a_smaller_claim_uses_no_more_of_the_rate(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    worker = await flooded(conn, "10/s")
    assert [await starts(conn, worker, ask=4) for _ in range(4)] == [4, 4, 2, 0]


async def test_rate_and_concurrency_hold_together(conn: asyncpg.Connection, clock: Clock) -> None:
    await clock.freeze()
    worker = await flooded(conn, "10/s")
    await conn.execute("select penstock.edit_queue('q', $1)", {"concurrency": 3})
    running = await factory.claim(conn, worker, limit=50)
    assert len(running) == 3
    await clock.advance("1m", beats=True)
    assert await starts(conn, worker) == 0
    await factory.finish(conn, worker, running)
    assert await starts(conn, worker) == 3


async def test_a_new_rate_is_in_force_at_once(conn: asyncpg.Connection, clock: Clock) -> None:
    """A delay until tomorrow by the old rate must not hold under the new one."""
    await clock.freeze()
    worker = await flooded(conn, "1/d")
    assert await starts(conn, worker) == 1
    await conn.execute("select penstock.edit_queue('q', $1)", {"rate": "10/s"})
    assert await starts(conn, worker) == 0  # the change allows no second burst
    await clock.advance(1)
    assert await starts(conn, worker) == 10


async def test_without_its_rate_a_queue_starts_everything(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await clock.freeze()
    worker = await flooded(conn, "1/d")
    assert await starts(conn, worker) == 1
    await conn.execute("select penstock.declare_queue('q', '{}')")
    assert await starts(conn, worker, ask=100) == 100


async def test_the_fastest_rate_works(conn: asyncpg.Connection, clock: Clock) -> None:
    await clock.freeze()
    worker = await flooded(conn, "1000000/s", 50)
    assert await starts(conn, worker) == 50
