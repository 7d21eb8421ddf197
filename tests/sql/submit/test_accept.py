"""Plain jobs of several callers, accepted in one statement: each as if it had come alone."""

from typing import Any

import asyncpg
import pytest

from sql.queries.test_position import counted, fill, measure
from support import factory
from support.clock import Clock
from support.interleave import Step
from support.shapes import Connect

# What no two jobs share.
OWN = ("id", "created_at", "updated_at", "run_at", "position", "eta_seconds")


async def accept(
    conn: asyncpg.Connection, *jobs: dict[str, Any], queue: str = "q", wake: bool = False
) -> dict[int, dict[str, Any]]:
    """The answers by place in the call; each of `jobs` may say its kind, payload and options."""

    def column(name: str) -> list[Any]:
        return [job.get(name) for job in jobs]

    rows = await conn.fetch(
        "select ordinal, job from penstock.accept_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10,"
        " $11, $12)",
        queue,
        [job.get("kind", "q") for job in jobs],
        [job.get("payload", {}) for job in jobs],
        *(
            column(name)
            for name in ("topic", "priority", "run_at", "delay", "max_attempts", "timeout")
        ),
        *(column(name) for name in ("expires", "metadata")),
        wake,
    )
    return {row["ordinal"]: row["job"] for row in rows}


async def alone(conn: asyncpg.Connection, **options: Any) -> dict[str, Any]:
    named = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(options, 2))
    job: dict[str, Any] = await conn.fetchval(
        f"select penstock.accept_job('q', $1{', ' if named else ''}{named})",
        {},
        *options.values(),
    )
    return job


async def test_each_is_answered_as_if_it_had_come_alone(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    await factory.queue(conn)
    due = await clock.now()
    options: list[dict[str, Any]] = [
        {},
        {"topic": "t", "priority": -3, "metadata": {"m": 1}},
        {"max_attempts": 7, "run_at": due.replace(year=due.year + 1)},
    ]
    together = await accept(conn, *options)
    for n, said in enumerate(options, 1):
        one = await alone(conn, **said)
        assert together[n].keys() == one.keys()
        mine, theirs = (
            {k: v for k, v in job.items() if k not in OWN} for job in (together[n], one)
        )
        assert mine == theirs
        stored = await factory.read(conn, together[n]["id"])
        assert {k: v for k, v in stored.items() if k != "position"}.items() <= together[n].items()


async def test_places_are_told_in_the_order_of_the_queue(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await fill(conn, 5)
    told = await accept(conn, {}, {"priority": -1}, {}, {"priority": 5})
    assert [told[n]["position"] for n in (1, 2, 3, 4)] == [7, 1, 8, 9]
    assert {job["waiting_for"] for job in told.values()} == {"no_worker"}
    for job in told.values():
        assert await counted(conn, job["id"]) == job["position"]


async def test_with_a_worker_each_is_told_its_own_wait(conn: asyncpg.Connection) -> None:
    await factory.queue(conn, concurrency=1)
    worker = await factory.worker(conn)
    await factory.submit(conn)
    assert await factory.claim(conn, worker)
    await conn.execute(
        "insert into penstock.pace (kind_id, seconds, samples, newest_at)"
        " select id, 10, 20, penstock.clock() from penstock.kind"
    )
    told = await accept(conn, {}, {}, {})
    for job in told.values():
        shown = await factory.read(conn, job["id"])
        assert (job["position"], job["waiting_for"]) == (shown["position"], shown["waiting_for"])
        assert job["eta_seconds"] == pytest.approx(shown["eta_seconds"], abs=1)
    assert told[1]["eta_seconds"] < told[2]["eta_seconds"] < told[3]["eta_seconds"]


async def test_one_that_starts_at_once_is_told_so(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await factory.worker(conn)
    told = await accept(conn, {})
    assert (told[1]["position"], told[1]["eta_seconds"], told[1]["waiting_for"]) == (1, 0, None)


@pytest.mark.parametrize("measured", [False, True])
async def test_deep_in_a_queue_the_place_is_near_or_not_told(
    conn: asyncpg.Connection, *, measured: bool
) -> None:
    """Nobody counts thousands of jobs within a submit: there is upkeep's snapshot."""
    await factory.queue(conn)
    await fill(conn, 3_000)
    if measured:
        assert await measure(conn)
    told = await accept(conn, {}, {"priority": 9}, {}, {"priority": 9}, {"priority": -9})
    assert told[5]["position"] == 1
    for n in (1, 2, 3, 4):
        true = await counted(conn, told[n]["id"])
        assert told[n]["position"] == (pytest.approx(true, rel=0.1) if measured else None)
    if measured:
        assert told[3]["position"] == told[1]["position"] + 1
        assert told[4]["position"] == told[2]["position"] + 1


@pytest.mark.parametrize(
    "odd",
    [
        {"kind": "nothing"},
        {"kind": "elsewhere"},
        {"kind": "mine"},
        {"kind": "theirs", "payload": {"who": "u1"}},
        {"kind": "once"},
        {"kind": "dear"},
        {"kind": "pieces", "payload": {"n": 9}},
        {"payload": 1},
        {"payload": {"a": "x" * 1_100_000}},
        {"priority": 1001},
        {"max_attempts": 0},
        {"topic": ""},
        {"metadata": 1},
    ],
    ids=lambda odd: str(odd)[:40],
)
async def test_what_is_odd_is_not_taken_and_spoils_nothing(
    conn: asyncpg.Connection, odd: dict[str, Any]
) -> None:
    """It has no row: who asks for it alone hears why, or gets it."""
    await factory.queue(conn)
    await factory.queue(conn, "elsewhere")
    for name, options in {
        "mine": {"account": "u1"},
        "theirs": {"account_field": "who"},
        "once": {"dedupe": "k"},
        "dear": {"price": 3},
        "pieces": {"split_field": "n", "split_most": 4},
    }.items():
        await conn.execute("select penstock.declare_kind($1, 'q', $2)", name, options)
    told = await accept(conn, {}, odd, {})
    assert sorted(told) == [1, 3]
    assert await conn.fetchval("select count(*) from penstock.job") == 2
    assert [told[n]["position"] for n in (1, 3)] == [1, 2]


async def test_a_kind_that_gets_an_account_meanwhile_is_not_plain_any_more(
    conn: asyncpg.Connection, connect: Connect
) -> None:
    """The submit has read the kind and waits for the lock of its queue when the kind changes."""
    await factory.queue(conn)
    queue = await conn.fetchval("select id from penstock.queue")
    operator, alone, together = [await connect() for _ in range(3)]
    async with operator.transaction():
        await operator.execute("select pg_advisory_xact_lock(1886413172, $1)", queue)
        one = Step(alone, alone.fetch("select id from penstock.submit_one('q', '{}')"))
        many = Step(together, accept(together, {}))
        assert [await step.waits(conn) for step in (one, many)] == [True, True]
        await conn.execute("select penstock.declare_kind('q', 'q', '{\"account\": \"u1\"}')")
    await one
    assert await many == {}
    owners = await conn.fetch(
        "select a.name from penstock.job j join penstock.account a on a.id = j.account_id"
    )
    assert [row["name"] for row in owners] == ["u1"]


async def test_nobody_takes_jobs_of_a_queue_that_is_not_there(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    assert await accept(conn, {}, queue="other") == {}


async def test_workers_are_told_with_the_commit(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    heard: list[str] = []
    await conn.add_listener("penstock_job", lambda *told: heard.append(told[3]))
    await accept(conn, {"delay": (await conn.fetchval("select interval '1 hour'"))}, wake=True)
    await accept(conn, {}, {})
    assert heard == [], "nothing is due, or nobody asked for it"
    await accept(conn, {}, {}, wake=True)
    await conn.execute("select 1")
    assert heard == ["q"]


async def test_many_looks_are_as_one(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    lives, ended = await factory.submit(conn), await factory.submit(conn, account="u1")
    await conn.execute("select penstock.cancel_job($1)", ended)
    unknown = "00000000-0000-0000-0000-000000000000"
    rows = await conn.fetch(
        "select ordinal, job from penstock.read_jobs_of($1, $2, $3, $4)",
        [ended, unknown, lives, ended, ended, lives, lives],
        [None, None, None, "u1", "u2", None, None],
        [None, None, None, None, None, "t", None],
        [None, None, None, None, None, None, ended],
    )
    assert {row["ordinal"]: row["job"] for row in rows} == {
        1: await factory.read(conn, ended),
        3: await factory.read(conn, lives),
        4: await conn.fetchval("select penstock._public_job(penstock.read_job($1))", ended),
    }
