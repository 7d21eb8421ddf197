"""Plain jobs of several callers, accepted in one statement: each as if it were submitted alone."""

from typing import Any

import asyncpg
import pytest

from sql.queries.test_position import counted, fill, measure
from support import factory
from support.clock import Clock
from support.interleave import Step
from support.shapes import Connect

# The fields that differ between any two jobs.
OWN = ("id", "created_at", "updated_at", "run_at", "position", "eta_seconds")


async def accept(
    conn: asyncpg.Connection, *jobs: dict[str, Any], queue: str = "q", wake: bool = False
) -> dict[int, dict[str, Any]]:
    """The answers by position in the call; each of `jobs` may have kind, payload and options."""

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


async def test_each_job_is_answered_as_if_it_were_submitted_alone(
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
    for n, option in enumerate(options, 1):
        one = await alone(conn, **option)
        assert together[n].keys() == one.keys()
        mine, theirs = (
            {k: v for k, v in job.items() if k not in OWN} for job in (together[n], one)
        )
        assert mine == theirs
        stored = await factory.read(conn, together[n]["id"])
        assert {k: v for k, v in stored.items() if k != "position"}.items() <= together[n].items()


async def test_positions_follow_the_order_of_the_queue(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await fill(conn, 5)
    answers = await accept(conn, {}, {"priority": -1}, {}, {"priority": 5})
    assert [answers[n]["position"] for n in (1, 2, 3, 4)] == [7, 1, 8, 9]
    assert {job["waiting_for"] for job in answers.values()} == {"no_worker"}
    for job in answers.values():
        assert await counted(conn, job["id"]) == job["position"]


async def test_with_a_worker_each_job_has_its_own_eta(conn: asyncpg.Connection) -> None:
    await factory.queue(conn, concurrency=1)
    worker = await factory.worker(conn)
    await factory.submit(conn)
    assert await factory.claim(conn, worker)
    await conn.execute(
        "insert into penstock.pace (kind_id, seconds, samples, newest_at)"
        " select id, 10, 20, penstock.clock() from penstock.kind"
    )
    answers = await accept(conn, {}, {}, {})
    for job in answers.values():
        shown = await factory.read(conn, job["id"])
        assert (job["position"], job["waiting_for"]) == (shown["position"], shown["waiting_for"])
        assert job["eta_seconds"] == pytest.approx(shown["eta_seconds"], abs=1)
    assert answers[1]["eta_seconds"] < answers[2]["eta_seconds"] < answers[3]["eta_seconds"]


async def test_a_job_that_starts_at_once_is_first_with_an_eta_of_zero(
    conn: asyncpg.Connection,
) -> None:
    await factory.queue(conn)
    await factory.worker(conn)
    answers = await accept(conn, {})
    assert (answers[1]["position"], answers[1]["eta_seconds"], answers[1]["waiting_for"]) == (
        1,
        0,
        None,
    )


@pytest.mark.parametrize("measured", [False, True])
async def test_deep_in_a_queue_the_position_is_approximate_or_null(
    conn: asyncpg.Connection, *, measured: bool
) -> None:
    """No submit counts thousands of jobs: it uses the snapshot that upkeep takes."""
    await factory.queue(conn)
    await fill(conn, 3_000)
    if measured:
        assert await measure(conn)
    answers = await accept(conn, {}, {"priority": 9}, {}, {"priority": 9}, {"priority": -9})
    assert answers[5]["position"] == 1
    for n in (1, 2, 3, 4):
        true = await counted(conn, answers[n]["id"])
        assert answers[n]["position"] == (pytest.approx(true, rel=0.1) if measured else None)
    if measured:
        assert answers[3]["position"] == answers[1]["position"] + 1
        assert answers[4]["position"] == answers[2]["position"] + 1


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
async def test_a_job_that_is_not_plain_gets_no_row_and_does_not_affect_others(
    conn: asyncpg.Connection, odd: dict[str, Any]
) -> None:
    """Its caller submits it alone, and then gets the job or the reason."""
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
    answers = await accept(conn, {}, odd, {})
    assert sorted(answers) == [1, 3]
    assert await conn.fetchval("select count(*) from penstock.job") == 2
    assert [answers[n]["position"] for n in (1, 3)] == [1, 2]


async def test_a_kind_that_gets_an_account_meanwhile_is_no_longer_plain(
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


async def test_jobs_of_an_unknown_queue_are_not_accepted(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    assert await accept(conn, {}, queue="other") == {}


async def test_workers_are_notified_at_the_commit(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    woken: list[str] = []
    await conn.add_listener("penstock_job", lambda *arguments: woken.append(arguments[3]))
    await accept(conn, {"delay": (await conn.fetchval("select interval '1 hour'"))}, wake=True)
    await accept(conn, {}, {})
    assert woken == [], "no job is due, or the caller did not ask for a wake-up"
    await accept(conn, {}, {}, wake=True)
    await conn.execute("select 1")
    assert woken == ["q"]


async def test_reading_many_jobs_equals_reading_each_of_them(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    live, finished = await factory.submit(conn), await factory.submit(conn, account="u1")
    await conn.execute("select penstock.cancel_job($1)", finished)
    unknown = "00000000-0000-0000-0000-000000000000"
    rows = await conn.fetch(
        "select ordinal, job from penstock.read_jobs_of($1, $2, $3, $4)",
        [finished, unknown, live, finished, finished, live, live],
        [None, None, None, "u1", "u2", None, None],
        [None, None, None, None, None, "t", None],
        [None, None, None, None, None, None, finished],
    )
    assert {row["ordinal"]: row["job"] for row in rows} == {
        1: await factory.read(conn, finished),
        3: await factory.read(conn, live),
        4: await conn.fetchval("select penstock._public_job(penstock.read_job($1))", finished),
    }
