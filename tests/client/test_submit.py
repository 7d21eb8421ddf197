"""Submits: the database has exactly the requested job, also in the caller's transaction."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from penstock import Constant, Invalid, Kind, NotFound, Penstock
from support.caller_connections import BORROWERS
from support.waiting import eventually

# One driver of each style; tests/engine has all of them.
DRIVERS = [
    "asyncpg",
    "psycopg",
    "psycopg async",
    "DB-API",
    "SQLAlchemy Session",
    "SQLAlchemy AsyncSession, asyncpg",
]


@dataclass
class Shop:
    """An app with a few kinds of job."""

    app: Penstock
    mark: Kind[..., Any]
    fixed: Kind[..., Any]
    computed: Kind[..., Any]


@pytest.fixture
def shop(app: Penstock) -> Shop:
    queue = app.queue("q")

    @app.job(queue=queue, dedupe="sid", topic="lesson", account="teacher")
    async def mark(
        sid: str, lesson: str = "L0", teacher: str | None = None, n: int = 1
    ) -> None: ...

    @app.job(queue=queue, topic=Constant("everything"), account=Constant("house"))
    def fixed(n: int) -> None: ...

    @app.job(
        queue=queue,
        dedupe=lambda p: p["n"] % 10,
        topic=lambda p: f"t{p['n']}",
        account=lambda p: None if p["n"] == 0 else "a",
    )
    def computed(n: int) -> None: ...

    return Shop(app, mark, fixed, computed)


async def stored(conn: asyncpg.Connection, job_id: Any) -> dict[str, Any]:
    row = await conn.fetchrow(
        "select a.name as account, j.topic, j.dedupe_key, j.payload, j.priority, j.max_attempts,"
        " j.metadata, j.status::text, j.run_at, j.created_at from penstock.job j"
        " left join penstock.account a on a.id = j.account_id and j.account_id <> 0"
        " where j.id = $1",
        job_id,
    )
    assert row is not None
    return dict(row)


async def test_a_submit_returns_a_ticket(shop: Shop, conn: asyncpg.Connection) -> None:
    """E1: it is validated and stored, and its id returned at once."""
    ticket = await shop.mark.submit(sid="s1", teacher="t1", n="5")
    assert (ticket.kind, ticket.deduplicated, ticket.replayed) == ("mark", False, False)
    job = await stored(conn, ticket.id)
    assert (job["account"], job["topic"], job["dedupe_key"]) == ("t1", "L0", "s1")
    assert job["payload"] == {"sid": "s1", "lesson": "L0", "teacher": "t1", "n": 5}


async def test_a_constant_applies_to_every_job(shop: Shop, conn: asyncpg.Connection) -> None:
    job = await stored(conn, (await shop.fixed.submit(n=1)).id)
    assert (job["account"], job["topic"], job["dedupe_key"]) == ("house", "everything", None)


async def test_a_function_is_called_with_the_payload(shop: Shop, conn: asyncpg.Connection) -> None:
    job = await stored(conn, (await shop.computed.submit(n="7")).id)
    assert (job["account"], job["topic"], job["dedupe_key"]) == ("a", "t7", "7")
    assert (await stored(conn, (await shop.computed.submit(n=0)).id))["account"] is None
    twin = await shop.computed.submit(n=17)
    assert twin.deduplicated


async def test_a_function_that_returns_a_wrong_type_is_refused(shop: Shop) -> None:
    @shop.app.job(queue="q", topic=lambda _: ["x"])  # type: ignore[arg-type]  # the point
    def odd(n: int) -> None: ...

    with pytest.raises(Invalid, match=r"the function for topic must return a text.*, not list"):
        await odd.submit(n=1)


async def test_options_of_the_submit_override_the_kind(
    shop: Shop, conn: asyncpg.Connection
) -> None:
    for kind, payload in ((shop.mark, {"sid": "s"}), (shop.computed, {"n": 1})):
        job = await stored(
            conn,
            (await kind.using(account="u1", topic="mine", dedupe_key="k").submit(**payload)).id,
        )
        assert (job["account"], job["topic"], job["dedupe_key"]) == ("u1", "mine", "k")


async def test_every_option_of_using_reaches_the_job(shop: Shop, conn: asyncpg.Connection) -> None:
    using = shop.mark.using(priority=-3, delay="5m", max_attempts=9, timeout="10s")
    ticket = await using.using(expires="1h", metadata={"a": 1}).submit(sid="s")
    job = await stored(conn, ticket.id)
    assert (job["priority"], job["max_attempts"], job["metadata"]) == (-3, 9, {"a": 1})
    assert job["status"] == "scheduled"
    assert job["run_at"] - job["created_at"] == timedelta(minutes=5)
    row = await conn.fetchrow("select timeout, expires_at, created_at from penstock.job")
    assert row is not None
    assert row["timeout"] == timedelta(seconds=10)
    assert row["expires_at"] - row["created_at"] >= timedelta(hours=1)
    moment = datetime(2031, 1, 1, tzinfo=UTC)
    later = await shop.mark.using(run_at=moment).submit(sid="s2")
    assert (await stored(conn, later.id))["run_at"] == moment


async def test_an_idempotency_key_replays(shop: Shop) -> None:
    using = shop.mark.using(idempotency_key="i1")
    first, second = await using.submit(sid="s"), await using.submit(sid="s")
    assert (first.replayed, second.replayed) == (False, True)
    assert first.id == second.id
    with pytest.raises(Invalid, match="used with other arguments"):
        await using.submit(sid="other")


async def test_a_double_click_is_one_job(shop: Shop) -> None:
    first, second = await shop.mark.submit(sid="s"), await shop.mark.submit(sid="s")
    assert second.deduplicated
    assert first.id == second.id


async def test_a_bulk_submit_is_all_or_none_and_in_order(
    shop: Shop, conn: asyncpg.Connection
) -> None:
    tickets = await shop.mark.submit_many({"sid": f"s{n % 4}"} for n in range(5))
    assert [ticket.deduplicated for ticket in tickets] == [False] * 4 + [True]
    assert tickets[4].id == tickets[0].id
    with pytest.raises(Invalid, match="sid of job kind mark is required") as caught:
        await shop.mark.submit_many([{"sid": "new"}, {}])
    assert caught.value.members["index"] == 1
    assert await conn.fetchval("select count(*) from penstock.job") == 4
    assert await shop.mark.submit_many([]) == []
    with pytest.raises(Invalid, match="idempotency_key is for one job"):
        await shop.mark.using(idempotency_key="i").submit_many([{"sid": "x"}])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"delay": "soon"}, "delay"),
        ({"timeout": -1}, "timeout"),
        ({"expires": "x"}, "expires"),
        ({"priority": 5000}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at"),  # noqa: DTZ001  # the point
        ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 5}, "run_at"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"metadata": [1]}, "metadata"),
        ({"account": ""}, "account"),
        ({"topic": "a\x00b"}, "topic"),
        ({"dedupe_key": 5}, "dedupe_key"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"conn": 5}, "conn"),
    ],
)
async def test_a_wrong_option_of_a_submit_is_named(
    shop: Shop, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await shop.mark.using(**options).submit(sid="s")
    assert caught.value.field == field


async def test_nothing_wrong_reaches_the_database(shop: Shop) -> None:
    """E1, E14: refused without a connection to the database."""
    with pytest.raises(Invalid, match="sid of job kind mark must be a valid string"):
        await shop.mark.submit(sid=5)
    assert not shop.app._engines.any_open


async def test_plain_sql_cannot_submit_a_kind_that_needs_the_apps_code(
    shop: Shop, conn: asyncpg.Connection
) -> None:
    await shop.app.engine()
    with pytest.raises(asyncpg.PostgresError, match="dedupe of job kind computed is a function"):
        await conn.execute("select penstock.submit_job('computed', '{\"n\": 1}')")
    await conn.execute("select penstock.submit_job('fixed', '{\"n\": 1}')")


async def test_the_wrong_row_of_a_bulk_submit_is_named(
    shop: Shop, conn: asyncpg.Connection
) -> None:
    rows: list[dict[str, Any]] = [{"n": 1}, {"n": 2}, {"n": "many"}]
    with pytest.raises(Invalid, match=r"^row 3: n of job kind fixed must be") as caught:
        await shop.fixed.submit_many(rows)
    assert (caught.value.field, caught.value.members["index"]) == ("n", 2)
    with pytest.raises(Invalid, match=r"^row 2: dedupe_key must be a text of 1 to 500") as caught:
        await shop.mark.submit_many([{"sid": "a"}, {"sid": "x" * 501}])
    assert caught.value.members["index"] == 1
    for refused in (shop.fixed.using(priority=5000), shop.fixed.using(account="")):
        with pytest.raises(Invalid, match=r"^(priority|account) must be"):  # given for all of them
            await refused.submit_many([{"n": 1}])
    with pytest.raises(Invalid, match=r"^n of job kind"):
        await shop.fixed.submit(n="many")
    assert await conn.fetchval("select count(*) from penstock.job") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout is 0; it may be more than 0, and at most ten years"),
        ({"expires": "0s"}, "expires is '0s'; it may be more than 0, and at most ten years"),
        ({"delay": "3651d"}, "delay is '3651d'; it may be 0 or more, and at most ten years"),
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay and run_at exclude one"),
    ],
)
def test_refusals_have_the_options_own_names(
    shop: Shop, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid, match=f"^{message}") as caught:
        shop.mark.using(**options)
    assert caught.value.code == "invalid_job"
    assert caught.value.field in options


async def test_payloads_are_given_by_name(shop: Shop) -> None:
    submit: Any = shop.mark.submit
    with pytest.raises(
        Invalid, match=r"given by name: submit\(sid=\.\.\.\), for a job of kind mark"
    ):
        await submit("s1")
    blocking: Any = shop.app.sync.submit
    with pytest.raises(Invalid, match="given by name"):
        blocking(shop.mark, "s1")


async def test_a_kind_declared_later_is_known_at_its_submit(shop: Shop) -> None:
    await shop.mark.submit(sid="s")
    shop.app.queue("late", concurrency=3)

    @shop.app.job(queue="late")
    def later(n: int) -> None: ...

    assert (await (await later.submit(n=1)).status())["queue"] == "late"


async def test_strict_accounts_refuse_unknown_ones(database: str) -> None:
    app = Penstock(database, accounts="strict")
    app.queue("q")

    @app.job(queue="q")
    def task(n: int) -> None: ...

    with pytest.raises(NotFound, match="there is no account u1") as caught:
        await task.using(account="u1").submit(n=1)
    assert caught.value.hint == "Accounts are strict here: create it first."
    await (await app.engine()).accounts.create("u1")
    await task.using(account="u1").submit(n=1)
    await app.close()


@pytest.fixture
async def woken(conn: asyncpg.Connection) -> list[str]:
    """Collect the queues in notifications to workers."""
    found: list[str] = []
    await conn.add_listener("penstock_job", lambda *arguments: found.append(str(arguments[-1])))
    return found


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("commits", [True, False])
async def test_the_callers_transaction_decides(
    *,
    shop: Shop,
    database: str,
    conn: asyncpg.Connection,
    woken: list[str],
    driver: str,
    commits: bool,
) -> None:
    """E3: the app's own write, the job and the wake-up are committed together, or not at all."""
    async with BORROWERS[driver](database) as caller:
        ticket = await shop.mark.using(conn=caller.conn).submit(sid="s1")
        await shop.mark.using(conn=caller.conn).submit_many([{"sid": "s1"}, {"sid": "s2"}])
        assert await conn.fetchval("select count(*) from penstock.job") == 0
        assert woken == []
        await caller.end(commits=commits)
    assert await conn.fetchval("select count(*) from penstock.job") == (2 if commits else 0)

    async def was_woken() -> bool:
        await conn.fetchval("select 1")
        return woken == (["q"] if commits else [])

    await eventually(was_woken, "the wake-up after the commit")
    if commits:
        assert (await ticket.status())["status"] == "queued"


async def test_workers_are_notified_of_due_jobs_only(
    shop: Shop, conn: asyncpg.Connection, woken: list[str]
) -> None:
    await shop.mark.using(delay="1h").submit(sid="later")
    await shop.mark.submit(sid="now")
    await shop.mark.submit(sid="now")  # deduplicated
    await shop.app.close()  # sends pending wake-ups
    await conn.fetchval("select 1")
    assert woken == ["q"]
