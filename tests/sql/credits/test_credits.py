"""Credits: reserved with the submit, settled once with the job, and never more than there are."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support import factory
from support.clock import Clock
from support.factory import refused

GRANT = "select penstock.grant_credits($1, $2, $3, $4)"
DEDUCT = "select penstock.deduct_credits($1, $2, $3, $4)"
REFUND = "select penstock.refund_credits($1, $2)"


async def rich(conn: asyncpg.Connection, account: str = "u1", amount: int = 100) -> str:
    await conn.execute(GRANT, account, amount, None, None)
    return account


async def balance(conn: asyncpg.Connection, account: str = "u1") -> int:
    credits_left: int = await conn.fetchval(
        "select balance from penstock.account where name = $1", account
    )
    return credits_left


async def ledger(conn: asyncpg.Connection, account: str = "u1") -> list[tuple[str, int]]:
    rows = await conn.fetch(
        "select l.kind, l.amount from penstock.ledger l join penstock.account a"
        " on a.id = l.account_id where a.name = $1 order by l.id",
        account,
    )
    return [(row["kind"], row["amount"]) for row in rows]


async def credits_of(conn: asyncpg.Connection, job: UUID) -> dict[str, int]:
    amounts: dict[str, int] = (await factory.read(conn, job))["credits"]
    return amounts


async def priced(conn: asyncpg.Connection, price: Any = 4, **options: Any) -> str:
    await factory.queue(conn)
    await conn.execute("select penstock.declare_kind('q', 'q', $1)", {"price": price, **options})
    return "q"


async def started(conn: asyncpg.Connection, **fields: Any) -> tuple[int, factory.Row]:
    worker = await factory.worker(conn, lease="100 days")
    await factory.submit(conn, account="u1", **fields)
    [row] = await factory.claim(conn, worker)
    return worker, row


async def test_a_submit_reserves_the_price_and_returns_the_balance(
    conn: asyncpg.Connection,
) -> None:
    """G1, G9"""
    await priced(conn)
    await rich(conn)
    job = await conn.fetchval("select penstock.submit_job('q', '{}', account => 'u1')")
    assert (job["balance"], job["credits"]) == (96, {"reserved": 4, "charged": 0, "refunded": 0})
    assert await ledger(conn) == [("grant", 100), ("reserve", -4)]


async def test_too_few_credits_refuse_the_job_with_balance_and_price(
    conn: asyncpg.Connection,
) -> None:
    """G2"""
    await priced(conn)
    await rich(conn, amount=3)
    with refused(402, "insufficient_credits", "account") as caught:
        await factory.submit(conn, account="u1")
    assert (caught["balance"], caught["required"]) == (3, 4)
    assert await conn.fetchval("select count(*) from penstock.job") == 0
    assert await ledger(conn) == [("grant", 3)]


async def test_a_batch_is_paid_as_a_whole_or_not_at_all(conn: asyncpg.Connection) -> None:
    """G1"""
    await priced(conn)
    await rich(conn, amount=11)
    with refused(402, "insufficient_credits", "account") as caught:
        await factory.submit_rows(conn, [{"kind": "q", "account": "u1"}] * 3)
    assert (caught["balance"], caught["required"]) == (11, 12)
    assert await balance(conn) == 11
    await factory.submit_rows(conn, [{"kind": "q", "account": "u1"}] * 2)
    assert await balance(conn) == 3


async def test_a_live_twin_costs_nothing(conn: asyncpg.Connection) -> None:
    await priced(conn)
    await rich(conn)
    for _ in range(3):
        await factory.submit(conn, account="u1", dedupe_key="k")
    assert await balance(conn) == 96


async def test_success_charges_all_and_writes_no_further_line(conn: asyncpg.Connection) -> None:
    await priced(conn)
    await rich(conn)
    worker, row = await started(conn)
    await factory.finish(conn, worker, [row])
    assert await credits_of(conn, row["id"]) == {"reserved": 4, "charged": 4, "refunded": 0}
    assert await ledger(conn) == [("grant", 100), ("reserve", -4)]


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "retry"])
async def test_a_failed_job_is_refunded_once(conn: asyncpg.Connection, outcome: str) -> None:
    """G3"""
    await priced(conn)
    await rich(conn)
    worker, row = await started(conn, max_attempts=1)
    for _ in range(2):
        await factory.finish(conn, worker, [row], outcome)
    assert await credits_of(conn, row["id"]) == {"reserved": 4, "charged": 0, "refunded": 4}
    assert await ledger(conn) == [("grant", 100), ("reserve", -4), ("refund", 4)]


async def test_a_retry_keeps_its_reservation(conn: asyncpg.Connection) -> None:
    await priced(conn)
    await rich(conn)
    worker, row = await started(conn)
    await factory.finish(conn, worker, [row], "retry", delay="0")
    assert await balance(conn) == 96
    [again] = await factory.claim(conn, worker)
    await factory.finish(conn, worker, [again])
    assert await ledger(conn) == [("grant", 100), ("reserve", -4)]


async def test_a_job_that_is_cancelled_while_it_waits_costs_nothing(
    conn: asyncpg.Connection,
) -> None:
    """G3, G13"""
    await priced(conn)
    await rich(conn)
    job = await factory.submit(conn, account="u1")
    for _ in range(2):
        await conn.execute("select penstock.cancel_job($1)", job)
    assert await credits_of(conn, job) == {"reserved": 4, "charged": 0, "refunded": 4}
    assert await balance(conn) == 100


async def test_an_expired_job_is_refunded(conn: asyncpg.Connection, clock: Clock) -> None:
    """G17"""
    await priced(conn)
    await rich(conn)
    job = await factory.submit(conn, account="u1", expires_seconds=60)
    await clock.advance("2m")
    assert await factory.claim(conn, await factory.worker(conn)) == []
    assert await factory.status(conn, job) == "failed"
    assert await balance(conn) == 100


async def test_a_stale_job_is_failed_and_refunded_without_an_operator(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """G3, G17"""
    await priced(conn)
    await rich(conn)
    _, row = await started(conn, max_attempts=1)
    await clock.advance("10m")
    await factory.recover(conn)
    assert await factory.status(conn, row["id"]) == "failed"
    assert await ledger(conn) == [("grant", 100), ("reserve", -4), ("refund", 4)]


PER_IMAGE = {"per": "images", "by": "quality", "standard": 1, "high": 3}


async def finish_with_units(
    conn: asyncpg.Connection, worker: int, row: factory.Row, outcome: str, units: int | None
) -> None:
    await conn.execute(
        "select status::text from penstock.finish_jobs($1, array[$2::uuid], array[$3::integer],"
        " array[$4], p_units => array[$5::bigint])",
        worker,
        row["id"],
        row["attempt"],
        outcome,
        units,
    )


@pytest.mark.parametrize(("units", "charged"), [(3, 9), (0, 0), (4, 12), (9, 12), (None, 12)])
async def test_partial_success_charges_the_delivered_units(
    conn: asyncpg.Connection, units: int | None, charged: int
) -> None:
    """G4, G18: three of four images at three credits each."""
    await priced(conn, PER_IMAGE)
    await rich(conn)
    worker, row = await started(conn, payload={"images": 4, "quality": "high"})
    await finish_with_units(conn, worker, row, "succeeded", units)
    assert await credits_of(conn, row["id"]) == {
        "reserved": 12,
        "charged": charged,
        "refunded": 12 - charged,
    }
    assert await balance(conn) == 100 - charged


async def test_without_units_of_its_own_a_price_is_settled_in_credits(
    conn: asyncpg.Connection,
) -> None:
    await priced(conn, 40)
    await rich(conn)
    worker, row = await started(conn)
    await finish_with_units(conn, worker, row, "succeeded", 7)
    assert await balance(conn) == 93


async def test_a_job_cancelled_while_it_runs_is_charged_for_delivered_units(
    conn: asyncpg.Connection, clock: Clock
) -> None:
    """G13: as its attempt last reported, even if its worker is never heard of again."""
    await priced(conn, PER_IMAGE)
    await rich(conn)
    worker, row = await started(conn, payload={"images": 4, "quality": "standard"})
    await conn.execute(
        "select penstock.report_progress($1, array[$2::uuid], array[1], null, null, null,"
        " array[2::bigint])",
        worker,
        row["id"],
    )
    await conn.execute("select penstock.cancel_job($1)", row["id"])
    assert await balance(conn) == 96
    await clock.advance("1m")
    await factory.recover(conn)
    assert await factory.status(conn, row["id"]) == "cancelled"
    assert await credits_of(conn, row["id"]) == {"reserved": 4, "charged": 2, "refunded": 2}


@pytest.mark.parametrize("way", ["cancel", "expire"])
async def test_units_delivered_before_a_retry_are_charged_when_the_job_is_cancelled(
    conn: asyncpg.Connection, clock: Clock, way: str
) -> None:
    """G13: the images are on the page; a job that expires has failed and is refunded in full."""
    await priced(conn, PER_IMAGE)
    await rich(conn)
    worker, row = await started(conn, payload={"images": 4, "quality": "standard"})
    await conn.execute(
        "select penstock.report_progress($1, array[$2::uuid], array[1], null, null, null,"
        " array[3::bigint])",
        worker,
        row["id"],
    )
    await factory.finish(conn, worker, [row], "retry")
    assert await factory.status(conn, row["id"]) == "scheduled"
    if way == "cancel":
        await conn.execute("select penstock.cancel_job($1)", row["id"])
    else:
        await conn.execute(
            "update penstock.job set expires_at = penstock.clock() + interval '1 second'"
        )
        await clock.advance("1m")
        await factory.claim(conn, await factory.worker(conn))
    charged = 3 if way == "cancel" else 0
    assert (await credits_of(conn, row["id"]))["charged"] == charged
    assert await balance(conn) == 100 - charged


async def test_a_new_attempt_begins_with_no_delivered_units(conn: asyncpg.Connection) -> None:
    await priced(conn, PER_IMAGE)
    await rich(conn)
    worker, row = await started(conn, payload={"images": 4, "quality": "standard"})
    await conn.execute(
        "select penstock.report_progress($1, array[$2::uuid], array[1], null, null, null,"
        " array[3::bigint])",
        worker,
        row["id"],
    )
    await factory.finish(conn, worker, [row], "retry", delay="0")
    [again] = await factory.claim(conn, worker)
    await factory.finish(conn, worker, [again], "cancelled")
    assert await balance(conn) == 100


@pytest.mark.parametrize(
    ("price", "payload", "expected"),
    [
        (3, {}, 3),
        (0, {}, 0),
        ({"per": "images", "each": 2}, {"images": 5}, 10),
        ({"per": "pages", "each": 2}, {"pages": ["a", "b"]}, 4),
        (PER_IMAGE, {"images": 2, "quality": "high"}, 6),
        ({"by": "quality", "standard": 1, "high": 3}, {"quality": "high"}, 3),
    ],
)
async def test_the_server_computes_the_price_from_the_payload(
    conn: asyncpg.Connection, price: Any, payload: dict[str, Any], expected: int
) -> None:
    """G18"""
    await priced(conn, price)
    await rich(conn)
    await factory.submit(conn, account="u1", payload=payload)
    assert await balance(conn) == 100 - expected


TRUSTED = {"price": {"field": "cost", "trusted": True}}


@pytest.mark.parametrize(
    "price",
    [
        "cost",
        {"field": "cost"},
        {"field": "cost", "trusted": False},
        {"field": "cost", "trusted": "true"},
        {"field": "cost", "trusted": True, "each": 1},
    ],
)
async def test_a_price_from_a_payload_field_must_be_declared_trusted(
    conn: asyncpg.Connection, price: Any
) -> None:
    """G18: an account key could submit at a price of 0."""
    await factory.queue(conn)
    with refused(422, "invalid_option", "price"):
        await conn.execute("select penstock.declare_kind('q', 'q', $1)", {"price": price})


async def test_a_field_of_the_payload_can_be_the_price(conn: asyncpg.Connection) -> None:
    await factory.queue(conn)
    await conn.execute("select penstock.declare_kind('q', 'q', $1)", TRUSTED)
    await rich(conn)
    await factory.submit(conn, account="u1", payload={"cost": 17})
    assert await balance(conn) == 83


async def test_a_backend_may_set_the_price(conn: asyncpg.Connection) -> None:
    await priced(conn)
    await rich(conn)
    await factory.submit(conn, account="u1", price=30)
    await factory.submit(conn, account="u1", price=0)
    assert await balance(conn) == 70


async def test_a_priced_job_needs_an_account(conn: asyncpg.Connection) -> None:
    await priced(conn)
    with refused(422, "account_required", "account"):
        await factory.submit(conn)
    with refused(422, "account_required", "account"):
        await conn.execute("select penstock.submit_job('q', '{}')")


async def test_the_reservation_belongs_to_the_callers_transaction(
    conn: asyncpg.Connection,
) -> None:
    """E3, G1"""
    await priced(conn)
    await rich(conn)
    undone = conn.transaction()
    await undone.start()
    await factory.submit(conn, account="u1")
    assert await balance(conn) == 96
    await undone.rollback()
    assert await balance(conn) == 100


async def test_a_retry_by_hand_reserves_again_what_the_job_had(conn: asyncpg.Connection) -> None:
    """Whatever the kind costs now: no declaration has a piece's share or a caller's price."""
    await priced(conn)
    await rich(conn)
    worker = await factory.worker(conn)
    for price in (None, 9, 0):
        await factory.submit(conn, account="u1", price=price)
    for row in await factory.claim(conn, worker, limit=3):
        await factory.finish(conn, worker, [row], "failed")
    await conn.execute("select penstock.declare_kind('q', 'q', '{\"price\": 6}')")
    rows = await conn.fetch("select penstock.retry_job(id) as job from penstock.finished")
    reserved = [(row["job"]["credits"] or {"reserved": 0})["reserved"] for row in rows]
    assert sorted(reserved) == [0, 4, 9]
    assert await balance(conn) == 87


async def test_a_refusal_names_the_account_with_too_few_credits(conn: asyncpg.Connection) -> None:
    """G2"""
    await priced(conn, 6)
    await rich(conn, "a", 10)
    await rich(conn, "b", 1)
    with refused(402, "insufficient_credits", "account") as error:
        await factory.submit_rows(conn, [{"kind": "q", "account": name} for name in "ab"])
    assert (error["account"], error["balance"], error["required"]) == ("b", 1, 6)


async def test_an_idempotent_submit_reserves_once(conn: asyncpg.Connection) -> None:
    """R-S19"""
    await priced(conn)
    await rich(conn)
    answers = [
        await conn.fetchval(
            "select penstock.submit_job('q', '{}', account => 'u1', idempotency_key => 'k')"
        )
        for _ in range(3)
    ]
    assert len({answer["id"] for answer in answers}) == 1
    assert [answer["balance"] for answer in answers] == [96, 96, 96]


async def test_grants_count_once_for_each_reference(conn: asyncpg.Connection) -> None:
    first = await conn.fetchval(GRANT, "u1", 50, "bought", "payment-1")
    again = await conn.fetchval(GRANT, "u1", 50, "bought", "payment-1")
    assert (first["balance"], first["replayed"]) == (50, False)
    assert (again["balance"], again["replayed"]) == (50, True)
    with refused(409, "ref_reused", "ref"):
        await conn.execute(GRANT, "u1", 51, "bought", "payment-1")
    await conn.execute(GRANT, "u2", 51, "bought", "payment-1")
    assert await ledger(conn) == [("grant", 50)]


async def test_credits_work_without_a_job(conn: asyncpg.Connection) -> None:
    """G19"""
    await rich(conn)
    for _ in range(2):
        deducted = await conn.fetchval(DEDUCT, "u1", 30, "a print", "order-1")
        assert deducted["balance"] == 70
    for _ in range(2):
        refunded = await conn.fetchval(REFUND, "u1", "order-1")
        assert refunded["balance"] == 100
    assert await ledger(conn) == [("grant", 100), ("deduct", -30), ("refund", 30)]
    with refused(402, "insufficient_credits", "account") as caught:
        await conn.execute(DEDUCT, "u1", 101, None, "order-2")
    assert (caught["balance"], caught["required"]) == (100, 101)
    with refused(404, "unknown_ref", "ref"):
        await conn.execute(REFUND, "u1", "order-2")


async def test_the_ledger_is_append_only(conn: asyncpg.Connection) -> None:
    """R-S18: also for the owner."""
    await rich(conn)
    for sql in (
        "update penstock.ledger set amount = 1000",
        "delete from penstock.ledger",
        "truncate penstock.ledger",
        "delete from penstock.resolution",
    ):
        with refused(403, "append_only", "ledger"):
            await conn.execute(sql)


async def test_the_ledger_reads_newest_first_in_pages(conn: asyncpg.Connection) -> None:
    for n in range(5):
        await conn.execute(GRANT, "u1", n + 1, None, f"r{n}")
    rows = await conn.fetch("select penstock.read_ledger('u1', 2) as line")
    assert [row["line"]["amount"] for row in rows] == [5, 4]
    assert [row["line"]["balance_after"] for row in rows] == [15, 10]
    rows = await conn.fetch(
        "select penstock.read_ledger('u1', 10, $1) as line", rows[-1]["line"]["id"]
    )
    assert [row["line"]["amount"] for row in rows] == [3, 2, 1]


@pytest.mark.unsound
async def test_check_and_the_reconciler_find_a_balance_that_is_not_the_ledgers(
    conn: asyncpg.Connection,
) -> None:
    await rich(conn)
    await conn.execute("update penstock.account set balance = 99 where name = 'u1'")
    breaches = await conn.fetch("select invariant from penstock.check()")
    assert [row["invariant"][:2] for row in breaches] == ["M1"]
    repaired = await conn.fetch("select what, was, now from penstock.reconcile()")
    assert [tuple(row) for row in repaired] == [("account.balance", "99", "100")]
    assert await conn.fetch("select * from penstock.check()") == []
