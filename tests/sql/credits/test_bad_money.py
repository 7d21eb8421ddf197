"""Invalid amounts and prices: refused with the field's name, and no row changes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import refused

MOST = 10**12  # of one amount or price
FULL = 10**15  # of a balance
BIGINT = 2**63 - 1
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)

# Not whole numbers from 0 to a million million, in JSON.
NO_PRICE: list[Any] = [-1, 1.5, 0.001, MOST + 1, 10**13, BIGINT, 1e30, "3", "", True, False, [], {}]

KINDS: dict[str, dict[str, Any]] = {
    "free": {},
    "fixed": {"price": 3},
    "cost": {"price": {"field": "cost", "trusted": True}},
    "per": {"price": {"per": "images", "each": 2}},
    "by": {"price": {"by": "quality", "standard": 1, "high": 3}},
    "both": {"price": {"per": "images", "by": "quality", "standard": 1, "high": 3}},
    "dear": {"price": {"per": "images", "each": MOST}},
    "split": {"price": {"per": "images", "each": 2}, "split_field": "images", "split_most": 4},
    "mine": {"price": 3, "account_field": "user"},
}


@pytest.fixture
async def ready(conn: asyncpg.Connection) -> asyncpg.Connection:
    """Declare a kind for each form of price, and give u1 990 credits."""
    await factory.queue(conn)
    await factory.plan(conn)
    for kind, options in KINDS.items():
        await conn.execute("select penstock.declare_kind($1, 'q', $2)", kind, options)
    await grant(conn, "u1", 1_000, "first", "g1")
    await deduct(conn, "u1", 10, "tenth", "d1")
    return conn


async def grant(conn: asyncpg.Connection, *arguments: Any) -> Any:
    return await _call(conn, "grant_credits", arguments)


async def deduct(conn: asyncpg.Connection, *arguments: Any) -> Any:
    return await _call(conn, "deduct_credits", arguments)


async def refund(conn: asyncpg.Connection, *arguments: Any) -> Any:
    return await _call(conn, "refund_credits", arguments)


async def _call(conn: asyncpg.Connection, name: str, arguments: tuple[Any, ...]) -> Any:
    placeholders = ", ".join(f"${n}" for n, _ in enumerate(arguments, 1))
    return await conn.fetchval(f"select penstock.{name}({placeholders})", *arguments)


async def submit_job(conn: asyncpg.Connection, kind: str, payload: Any, **arguments: Any) -> Any:
    named = {"kind": kind, "payload": payload} | arguments
    call = ", ".join(f"{name} => ${n}" for n, name in enumerate(named, 1))
    return await conn.fetchval(f"select penstock.submit_job({call})", *named.values())


# All tables that a refused call could have changed, in one query: there are hundreds of refusals.
PRINT = "select " + ", ".join(
    f"(select coalesce(md5(string_agg(t::text, '|' order by t::text)), '') from penstock.{name} t)"
    for name in (
        "account",
        "ledger",
        "resolution",
        "recent_submit",
        "job",
        "finished",
        "batch",
        "kind",
        "plan",
        "lane",
        "idempotency",
    )
)


async def content(conn: asyncpg.Connection) -> tuple[Any, ...]:
    row = await conn.fetchrow(PRINT)
    assert row
    return tuple(row)


@asynccontextmanager
async def nothing_moves(
    conn: asyncpg.Connection, status: int, code: str, field: str, case: Any = None
) -> AsyncIterator[dict[str, Any]]:
    """Expect the block to be refused in one sentence that names the field, and no row to change."""
    before = await content(conn)
    try:
        with refused(status, code, field) as error:
            yield error
    except (AssertionError, pytest.fail.Exception) as wrong:
        raise AssertionError(f"{case}: {wrong}") from wrong
    assert 10 < len(error["message"]) < 300, case
    # A refusal by the hourly limit is about the plan; the account is in a member of its own.
    assert field in error["message"] or status == 429, case
    assert await content(conn) == before, case


async def test_an_invalid_amount_is_refused(ready: asyncpg.Connection) -> None:
    """G19, R-S3: a negative amount would create credits."""
    for amount in (-1, 0, None, MOST + 1, 10**13, BIGINT, -BIGINT - 1):
        for account in ("u1", "new"):
            async with nothing_moves(ready, 422, "invalid_amount", "amount", amount):
                await grant(ready, account, amount)
            async with nothing_moves(ready, 422, "invalid_amount", "amount", amount):
                await deduct(ready, account, amount, None, "r")


async def test_the_smallest_and_the_largest_amount_are_accepted(ready: asyncpg.Connection) -> None:
    """G19"""
    assert (await grant(ready, "u1", MOST))["balance"] == 990 + MOST
    assert (await deduct(ready, "u1", MOST, None, "all"))["balance"] == 990
    assert (await grant(ready, "u1", 1))["balance"] == 991
    assert (await deduct(ready, "u1", 1, None, "one"))["balance"] == 990
    assert (await refund(ready, "u1", "all"))["balance"] == 990 + MOST


# As plain SQL may write it, and the error of Postgres.
NO_BIGINT = {
    "1.5": "42883",
    "1.0": "42883",
    "1::float8": "42883",
    "9223372036854775808": "42883",
    "true": "42883",
    "to_jsonb(1.5)": "42883",
    "'1.5'": "22P02",
    "'1e3'": "22P02",
    "''": "22P02",
    "'NaN'": "22P02",
    "'9223372036854775808'": "22003",
}


async def test_part_of_a_credit_is_not_rounded_to_a_whole_one(ready: asyncpg.Connection) -> None:
    """G19: no function takes such a value, so none rounds it."""
    before = await content(ready)
    for amount, sqlstate in NO_BIGINT.items():
        for call in (
            f"grant_credits('u1', {amount})",
            f"deduct_credits('u1', {amount}, ref => 'r')",
            f"submit_job('free', '{{}}', account => 'u1', price => {amount})",
        ):
            with pytest.raises(asyncpg.PostgresError) as caught:
                await ready.execute(f"select penstock.{call}")
            assert caught.value.sqlstate == sqlstate, call
    assert await content(ready) == before


async def test_a_balance_has_a_maximum_and_refunds_of_jobs_still_fit(
    ready: asyncpg.Connection,
) -> None:
    """G19"""
    await ready.execute(
        "select penstock.grant_credits('rich', 1000000000000) from generate_series(1, 1000)"
    )
    async with nothing_moves(ready, 422, "invalid_amount", "amount"):
        await grant(ready, "rich", 1)
    await deduct(ready, "rich", 10, None, "r")
    async with nothing_moves(ready, 422, "invalid_amount", "amount"):
        await grant(ready, "rich", 11)
    assert (await grant(ready, "rich", 10))["balance"] == FULL
    async with nothing_moves(ready, 422, "invalid_amount", "amount"):
        await refund(ready, "rich", "r")
    # A finished job is refunded in any case: otherwise it could not finish.
    job = await submit_job(ready, "fixed", {}, account="rich")
    await grant(ready, "rich", 3)
    cancelled = await ready.fetchval("select penstock.cancel_job($1)", job["id"])
    assert cancelled["status"] == "cancelled"
    assert cancelled["credits"]["refunded"] == 3


async def test_invalid_references_reasons_and_accounts_are_refused(
    ready: asyncpg.Connection,
) -> None:
    """G19"""
    for reason in ("", "r" * 501):
        for call, rest in ((grant, (5, reason)), (deduct, (5, reason, "r"))):
            async with nothing_moves(ready, 422, "invalid_reason", "reason"):
                await call(ready, "u1", *rest)
        async with nothing_moves(ready, 422, "invalid_reason", "reason"):
            await refund(ready, "u1", "d1", reason)
    for ref in ("", "r" * 201):
        for call in (grant, deduct):
            async with nothing_moves(ready, 422, "invalid_ref", "ref"):
                await call(ready, "u1", 5, None, ref)
        async with nothing_moves(ready, 422, "invalid_ref", "ref"):
            await refund(ready, "u1", ref)
    async with nothing_moves(ready, 422, "invalid_ref", "ref"):
        await deduct(ready, "u1", 5)
    for account in (None, "", "a" * 201):
        async with nothing_moves(ready, 422, "invalid_account", "account"):
            await grant(ready, account, 5)
    longest = await grant(ready, "😀" * 200, 5, "ü" * 500, "ü" * 200)
    assert (longest["balance"], longest["replayed"]) == (5, False)


async def test_unknown_accounts_references_and_plans_are_refused(ready: asyncpg.Connection) -> None:
    """G19"""
    for account in ("u2", None, "", "U1", "a" * 201):
        async with nothing_moves(ready, 404, "unknown_account", "account"):
            await deduct(ready, account, 5, None, "r")
        async with nothing_moves(ready, 404, "unknown_account", "account"):
            await refund(ready, account, "d1")
    await grant(ready, "u2", 5, None, "g2")
    await deduct(ready, "u2", 5, None, "d2")
    # A reference that was never used, one of a grant, and one of another account.
    for ref in ("nope", None, "g1", "d2"):
        async with nothing_moves(ready, 404, "unknown_ref", "ref", ref):
            await refund(ready, "u1", ref)
    for sql in (
        "create_account('u3', 'nope')",
        "set_account_plan('u1', 'nope')",
        "edit_plan('nope', '{}')",
        "reset_plan('nope')",
    ):
        async with nothing_moves(ready, 404, "unknown_plan", "plan", sql):
            await ready.execute(f"select penstock.{sql}")
    await ready.execute("update penstock.setting set accounts_strict = true")
    async with nothing_moves(ready, 404, "unknown_account", "account"):
        await grant(ready, "u3", 5)


async def test_a_reference_stands_for_one_amount(ready: asyncpg.Connection) -> None:
    """G19"""
    for call, ref, amount in ((grant, "g1", 1_000), (deduct, "d1", 10)):
        for other in (amount - 1, amount + 1, MOST):
            async with nothing_moves(ready, 409, "ref_reused", "ref", other):
                await call(ready, "u1", other, None, ref)
    await refund(ready, "u1", "d1")
    before = await content(ready)
    for again in (
        await grant(ready, "u1", 1_000, "other words", "g1"),
        await deduct(ready, "u1", 10, None, "d1"),
        await refund(ready, "u1", "d1"),
    ):
        assert (again["replayed"], again["balance"]) == (True, 1_000)
    assert await content(ready) == before


async def test_the_refusal_of_too_few_credits_has_both_figures(ready: asyncpg.Connection) -> None:
    """G1"""
    async with nothing_moves(ready, 402, "insufficient_credits", "account") as error:
        await deduct(ready, "u1", 991, None, "r")
    assert (error["balance"], error["required"]) == (990, 991)
    async with nothing_moves(ready, 402, "insufficient_credits", "account") as error:
        await submit_job(ready, "per", {"images": 496}, account="u1")
    assert (error["balance"], error["required"]) == (990, 992)
    # Several jobs in one decision; and a job of an account that its submit creates.
    async with nothing_moves(ready, 402, "insufficient_credits", "account") as error:
        await factory.submit_rows(
            ready, [{"kind": "cost", "account": "u1", "payload": {"cost": 331}}] * 3
        )
    assert (error["balance"], error["required"]) == (990, 993)
    async with nothing_moves(ready, 402, "insufficient_credits", "account") as error:
        await submit_job(ready, "fixed", {}, account="new")
    assert (error["balance"], error["required"]) == (0, 3)
    assert (await submit_job(ready, "per", {"images": 495}, account="u1"))["balance"] == 0


TABLES: list[dict[str, Any]] = [
    {"per": "images"},
    {"by": "quality"},
    {"each": 2},
    {"standard": 1},
    {"per": "images", "by": "quality"},
    {"per": "images", "standard": 1},
    {"per": "images", "each": 2, "standard": 1},
    {"by": "quality", "each": 2},
    {"per": "images", "by": "quality", "each": 2},
    {"per": "images", "by": "quality", "each": 2, "standard": 1},
    {"per": "images", "by": "images", "standard": 1},
    {"per": None, "each": 2},
    {"by": None, "standard": 1},
    {"per": "images", "by": None, "each": 2},
    {"per": "images", "each": None},
    {"by": "quality", "standard": None},
    {"by": "quality", "standard": 1, "high": None},
]


@pytest.mark.parametrize("shape", ["number", "each", "by", "table"])
async def test_a_kind_with_an_invalid_price_is_not_declared(
    ready: asyncpg.Connection, shape: str
) -> None:
    """G18"""
    wrong: list[Any] = {
        "number": NO_PRICE,
        "each": [{"per": "images", "each": price} for price in NO_PRICE],
        "by": [{"by": "quality", "standard": price, "high": 3} for price in NO_PRICE],
        "table": TABLES,
    }[shape]
    for price in wrong:
        for kind in ("new", "fixed"):
            async with nothing_moves(ready, 422, "invalid_option", "price", price):
                await ready.execute(
                    "select penstock.declare_kind($1, 'q', $2)", kind, {"price": price}
                )


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"price": {"field": 5, "trusted": True}}, "price"),
    ({"price": {"field": "", "trusted": True}}, "price"),
    ({"price": {"field": "c" * 201, "trusted": True}}, "price"),
    ({"price": {"field": True, "trusted": True}}, "price"),
    ({"price": {"per": 5, "each": 1}}, "per"),
    ({"price": {"per": "", "each": 1}}, "per"),
    ({"price": {"by": [], "standard": 1}}, "by"),
    ({"split_field": "images"}, "split"),
    ({"split_most": 4}, "split"),
    ({"split_field": "images", "split_most": 0}, "split_most"),
    ({"split_field": "images", "split_most": -1}, "split_most"),
    ({"split_field": "images", "split_most": 1.5}, "split_most"),
    ({"split_field": "images", "split_most": "4"}, "split_most"),
    ({"split_field": "images", "split_most": 4, "dedupe": "k"}, "split"),
    ({"split_field": "images", "split_most": 4, "dedupe_field": "k"}, "split"),
]


async def test_other_invalid_options_of_a_price_are_named(ready: asyncpg.Connection) -> None:
    """G18"""
    for options, field in OPTIONS:
        async with nothing_moves(ready, 422, "invalid_option", field, options):
            await ready.execute("select penstock.declare_kind('new', 'q', $1)", options)


# Prices as some languages write them into JSON, and the price of a job with each.
WHOLE = {
    "null": 0,
    "0": 0,
    "0.0": 0,
    "3": 3,
    "3.0": 3,
    "1e2": 100,
    '{"per": "images", "each": 2.0}': 4,
    '{"by": "quality", "high": 30e-1}': 3,
    '{"per": "images", "each": 0}': 0,
    '{"by": "quality", "high": 0, "standard": 5}': 0,
}


async def test_a_whole_number_is_one_however_it_is_written(ready: asyncpg.Connection) -> None:
    """G18"""
    balance = 990
    for n, (price, reserved) in enumerate(WHOLE.items()):
        await ready.execute(
            "select penstock.declare_kind($1, 'q', jsonb_build_object('price', $2::text::jsonb))",
            f"new{n}",
            price,
        )
        payload = {"images": 2.0, "quality": "high"}
        job = await submit_job(ready, f"new{n}", payload, account="u1")
        balance -= reserved
        assert job["balance"] == balance, price
        assert (job["credits"] or {"reserved": 0})["reserved"] == reserved, price


async def test_a_price_of_3_point_0_in_a_batch_is_a_whole_number(
    ready: asyncpg.Connection,
) -> None:
    """G18"""
    [job] = await factory.submit_rows(ready, [{"kind": "free", "account": "u1", "price": 3.0}])
    assert (await factory.read(ready, job))["credits"]["reserved"] == 3


MISSING = object()
# Values of the payload's field from which no price can be computed.
NO_COUNT = [MISSING, None, 0, -1, 1.5, 10**6 + 1, BIGINT, 1e30, "3", "", True, [], {}]
NO_QUALITY = [MISSING, None, "", "ultra", "High", "each", "per", "by", 1, True, [], ["high"], {}]


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        ("cost", "cost", [MISSING, None, *NO_PRICE]),
        ("per", "images", NO_COUNT),
        ("both", "images", NO_COUNT),
        ("split", "images", NO_COUNT),
        ("dear", "images", [*NO_COUNT, 2, [1, 2], 10**6]),
        ("by", "quality", NO_QUALITY),
        ("both", "quality", NO_QUALITY),
    ],
)
async def test_a_payload_without_a_price_is_refused_with_its_field(
    ready: asyncpg.Connection, kind: str, field: str, values: list[Any]
) -> None:
    """G18"""
    for value in values:
        payload = {"images": 1, "quality": "high"} | {field: value}
        if value is MISSING:
            del payload[field]
        async with nothing_moves(ready, 422, "invalid_payload", field, value):
            await submit_job(ready, kind, payload, account="u1")
        good = {"kind": "free", "account": "u1"}
        async with nothing_moves(ready, 422, "invalid_payload", field, value) as error:
            await factory.submit_rows(ready, [good, good | {"kind": kind, "payload": payload}])
        assert error["index"] == 1


async def test_a_caller_cannot_set_a_price_in_a_field_that_the_kind_does_not_read(
    ready: asyncpg.Connection,
) -> None:
    """G18: the server computes it."""
    job = await submit_job(ready, "fixed", {"price": 0, "cost": 0, "reserved": 0}, account="u1")
    assert job["credits"]["reserved"] == 3
    payload = {"images": 2, "quality": "high", "each": 0, "high": 0, "price": 0}
    job = await submit_job(ready, "both", payload, account="u1")
    assert job["credits"]["reserved"] == 6
    assert job["balance"] == 981


async def test_an_invalid_price_of_one_job_is_refused(ready: asyncpg.Connection) -> None:
    """G18"""
    for kind, payload in (("free", {}), ("fixed", {}), ("split", {"images": 12})):
        for price in (-1, -BIGINT - 1, MOST + 1, 2 * MOST, BIGINT):
            async with nothing_moves(ready, 422, "invalid_job", "price", (kind, price)):
                await submit_job(ready, kind, payload, account="u1", price=price)
            async with nothing_moves(ready, 422, "invalid_job", "price", (kind, price)):
                await ready.execute(
                    "select penstock.submit_many(array[$1], array[$2::jsonb], array['u1'],"
                    " p_prices => array[$3::bigint])",
                    kind,
                    payload,
                    price,
                )
    good = {"kind": "free", "account": "u1"}
    for price in NO_PRICE:
        async with nothing_moves(ready, 422, "invalid_job", "price", price) as error:
            await factory.submit_rows(ready, [good, good, good | {"price": price}])
        assert error["index"] == 2
    # Without a price the kind's price counts; 0 makes a job free, also of a kind with a price.
    for given, balance in ((None, 987), (0, 987), (7, 980)):
        job = await submit_job(ready, "fixed", {}, account="u1", price=given)
        assert job["balance"] == balance


async def test_a_price_for_the_whole_is_shared_by_its_pieces(ready: asyncpg.Connection) -> None:
    """G11: to the last credit."""
    for images, price in ((12, 100), (9, 1), (5, 0), (10, 7)):
        balance = await ready.fetchval("select balance from penstock.account where name = 'u1'")
        job = await submit_job(ready, "split", {"images": images}, account="u1", price=price)
        assert job["balance"] == balance - price
        shares = await ready.fetch(
            "select reserved from penstock.job where batch_id = $1 order by id", job["batch"]
        )
        assert sum(row["reserved"] for row in shares) == price
        assert len(shares) == -(-images // 4)


async def test_a_request_becomes_at_most_1000_jobs(
    ready: asyncpg.Connection,
) -> None:
    """G11: checked before a piece is made, since the caller may not be able to pay for even one."""
    for images in (10**6, 4_001, [1] * 4_001):
        async with nothing_moves(ready, 422, "invalid_payload", "images"):
            await submit_job(ready, "split", {"images": images, "text": "x" * 1_000}, account="u2")
    await grant(ready, "u2", 8_000)
    job = await submit_job(ready, "split", {"images": 4_000}, account="u2")
    batch = await ready.fetchval("select penstock.read_batch($1)", job["batch"])
    assert (job["balance"], batch["total"]) == (0, 1_000)


async def test_a_job_with_a_price_needs_an_account(ready: asyncpg.Connection) -> None:
    """G1: a price of 0 needs no account."""
    for kind, payload, more in (
        ("fixed", {}, {}),
        ("cost", {"cost": 1}, {}),
        ("per", {"images": 1}, {}),
        ("free", {}, {"price": 1}),
        ("split", {"images": 9}, {}),
        ("mine", {}, {}),
        ("mine", {"user": None}, {}),
    ):
        async with nothing_moves(ready, 422, "account_required", "account", kind):
            await submit_job(ready, kind, payload, **more)
    good = {"kind": "free"}
    async with nothing_moves(ready, 422, "account_required", "account") as error:
        await factory.submit_rows(ready, [good, good | {"kind": "fixed"}])
    assert error["index"] == 1
    async with nothing_moves(ready, 422, "invalid_job", "account"):
        await submit_job(ready, "mine", {}, account="")
    async with nothing_moves(ready, 422, "invalid_job", "account"):
        await submit_job(ready, "mine", {"user": ""})
    for kind, payload, price in (("cost", {"cost": 0}, None), ("fixed", {}, 0), ("free", {}, 0)):
        job = await submit_job(ready, kind, payload, price=price)
        assert (job["balance"], job["credits"]) == (None, None)


async def test_delivered_units_cannot_be_negative(ready: asyncpg.Connection) -> None:
    """G4: negative units would charge less than nothing, and the job could not finish."""
    worker = await factory.worker(ready)
    await submit_job(ready, "per", {"images": 4}, account="u1")
    [attempt] = await factory.claim(ready, worker)
    arguments = "$1, array[$2::uuid], array[$3::integer]"
    for call in (
        f"finish_jobs({arguments}, array['succeeded'], p_units => array[-1])",
        f"report_progress({arguments}, array[null], array[null], array[null::jsonb], array[-1])",
    ):
        before = await content(ready)
        with pytest.raises(asyncpg.PostgresError) as caught:
            await ready.execute(
                f"select * from penstock.{call}", worker, attempt["id"], attempt["attempt"]
            )
        assert caught.value.sqlstate == "PS422", call
        assert json.loads(caught.value.detail or "{}")["field"] == "units"
        assert await content(ready) == before
    # More units than requested are charged as those requested.
    await ready.execute(
        "select * from penstock.finish_jobs($1, array[$2::uuid], array[$3::integer],"
        f" array['succeeded'], p_units => array[{BIGINT}])",
        worker,
        attempt["id"],
        attempt["attempt"],
    )
    job = await factory.read(ready, attempt["id"])
    assert job["credits"] == {"reserved": 8, "charged": 8, "refunded": 0}


NO_LIMIT: list[Any] = [0, -1, 1.5, "5", True, [], 10**12]


async def test_an_invalid_limit_of_a_plan_is_refused(ready: asyncpg.Connection) -> None:
    """G7"""
    for option in ("per_hour", "concurrency"):
        for value in NO_LIMIT:
            for sql in ("declare_plan('new', $1)", "edit_plan('free', $1)"):
                async with nothing_moves(ready, 422, "invalid_option", option, value):
                    await ready.execute(f"select penstock.{sql}", {option: value})


async def test_a_refusal_over_the_hourly_limit_says_when_the_next_submit_is_accepted(
    ready: asyncpg.Connection, clock: Clock
) -> None:
    """G7: one second before that time is still too early."""
    await factory.plan(ready, "few", per_hour=2)
    await ready.execute("select penstock.set_account_plan('u1', 'few')")

    async def pass_at(seconds: float) -> None:
        await clock.freeze(NOON + timedelta(seconds=seconds))
        await submit_job(ready, "fixed", {}, account="u1")

    async def refused_at(seconds: float, until: float) -> None:
        await clock.freeze(NOON + timedelta(seconds=seconds))
        next_at = None
        for kind in ("fixed", "free"):
            async with nothing_moves(ready, 429, "rate_limited", "account") as error:
                await submit_job(ready, kind, {}, account="u1")
            assert datetime.fromisoformat(error["next_at"]) == NOON + timedelta(seconds=until)
            assert error["retry_after"] == -(-(until - seconds) // 1)
            assert (error["plan"], error["per_hour"]) == ("few", 2)
            assert error["next_at"] in error["message"]
            next_at = error["next_at"]
        account = await ready.fetchval("select penstock.read_account('u1')")
        assert account["next_submit_at"] == next_at
        assert account["submitted_last_hour"] == 2

    await pass_at(0)
    await pass_at(600)
    await refused_at(600, 3600)
    await refused_at(1_200, 3600)
    await refused_at(3_599, 3600)
    await refused_at(3_599.5, 3600)
    await refused_at(3_599.999, 3600)
    await pass_at(3_600)
    await refused_at(3_600, 4_200)
    await refused_at(4_199, 4_200)
    await pass_at(4_200)
    # Other accounts have their own limits.
    await grant(ready, "u2", 3)
    await submit_job(ready, "fixed", {}, account="u2")


async def test_jobs_submitted_together_are_accepted_when_the_limit_allows_all(
    ready: asyncpg.Connection, clock: Clock
) -> None:
    """G7"""
    await factory.plan(ready, "few", per_hour=3)
    await ready.execute("select penstock.set_account_plan('u1', 'few')")
    job = {"kind": "fixed", "account": "u1"}
    # More jobs than the plan ever allows: the message says so, and names no time.
    for n in (4, 50):
        async with nothing_moves(ready, 429, "rate_limited", "account") as error:
            await factory.submit_rows(ready, [job | {"kind": "free"}] * n)
        assert not {"next_at", "retry_after"} & error.keys()
        assert f"and this submit has {n}" in error["message"]
    for seconds in (0, 60, 120):
        await clock.freeze(NOON + timedelta(seconds=seconds))
        await factory.submit(ready, **job)
    for n, until in ((1, 3_600), (2, 3_660), (3, 3_720)):
        async with nothing_moves(ready, 429, "rate_limited", "account") as error:
            await factory.submit_rows(ready, [job] * n)
        assert datetime.fromisoformat(error["next_at"]) == NOON + timedelta(seconds=until)
    await clock.freeze(NOON + timedelta(seconds=3_719))
    async with nothing_moves(ready, 429, "rate_limited", "account") as error:
        await factory.submit_rows(ready, [job] * 3)
    assert error["retry_after"] == 1
    await clock.advance("1s")
    await factory.submit_rows(ready, [job] * 3)


async def test_refused_and_repeated_submits_do_not_count_in_the_hour(
    ready: asyncpg.Connection,
) -> None:
    """G7, G11: each piece of a request counts."""
    await factory.plan(ready, "few", per_hour=12)
    await ready.execute("select penstock.set_account_plan('u1', 'few')")
    for _ in range(4):
        async with nothing_moves(ready, 402, "insufficient_credits", "account"):
            await submit_job(ready, "cost", {"cost": 991}, account="u1")
        async with nothing_moves(ready, 422, "invalid_payload", "cost"):
            await submit_job(ready, "cost", {"cost": -1}, account="u1")
    for _ in range(4):
        await submit_job(ready, "fixed", {}, account="u1", dedupe_key="k")
        await submit_job(ready, "fixed", {}, account="u1", idempotency_key="i")
    await submit_job(ready, "split", {"images": 40}, account="u1")
    account = await ready.fetchval("select penstock.read_account('u1')")
    assert (account["submitted_last_hour"], account["balance"]) == (12, 990 - 3 - 3 - 80)
    async with nothing_moves(ready, 429, "rate_limited", "account"):
        await submit_job(ready, "free", {}, account="u1")
    # A repeated submit is answered even when the hourly limit is reached.
    again = await submit_job(ready, "fixed", {}, account="u1", dedupe_key="k")
    assert again["deduplicated"]
    again = await submit_job(ready, "fixed", {}, account="u1", idempotency_key="i")
    assert again["replayed"]


async def test_a_refused_batch_takes_no_credits_from_any_account(
    ready: asyncpg.Connection,
) -> None:
    """G1: all or none, also if the accounts are different."""
    await grant(ready, "u2", 2)
    await factory.plan(ready, "few", per_hour=1)
    await ready.execute("select penstock.create_account('u3', 'few')")
    rich = {"kind": "fixed", "account": "u1"}
    async with nothing_moves(ready, 402, "insufficient_credits", "account") as error:
        await factory.submit_rows(ready, [rich, rich | {"account": "u2"}])
    assert (error["account"], error["balance"], error["required"]) == ("u2", 2, 3)
    async with nothing_moves(ready, 429, "rate_limited", "account") as error:
        await factory.submit_rows(ready, [rich, *[{"kind": "free", "account": "u3"}] * 2])
    assert error["account"] == "u3"
