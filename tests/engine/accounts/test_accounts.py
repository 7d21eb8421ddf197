"""Accounts and credits through the engine: odd values are refused by name, in any driver."""

from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from penstock.engine.engine import Engine
from penstock.engine.jobs.jobs import NewJob
from penstock.errors import InsufficientCredits, Invalid, RateLimited, refusal
from support.caller_connections import BORROWERS

ODD_AMOUNTS = [0, -1, 10**12 + 1, 2**63, 2**70, 1.5, 5.0, True, "5", None, float("nan"), [1]]


@pytest.mark.parametrize("amount", ODD_AMOUNTS, ids=repr)
async def test_an_odd_amount_is_refused_by_name(
    engine: Engine, conn: asyncpg.Connection, amount: Any
) -> None:
    """G1: before the driver would fail on it."""
    for call in (
        engine.accounts.grant("u1", amount),
        engine.accounts.deduct("u1", amount, ref="r"),
    ):
        with pytest.raises(
            Invalid, match="amount must be a whole number from 1 to 10000"
        ) as caught:
            await call
        assert (caught.value.code, caught.value.field) == ("invalid_amount", "amount")
    assert await conn.fetchval("select count(*) from penstock.ledger") == 0


async def test_the_largest_amount_is_accepted(engine: Engine) -> None:
    answer = await engine.accounts.grant("u1", 10**12)
    assert answer["balance"] == 10**12


async def test_odd_texts_are_refused_by_name(engine: Engine) -> None:
    odd: Any = "a\x00b"
    accounts = engine.accounts
    for call, field in (
        (accounts.grant(odd, 1), "account"),
        (accounts.grant("u1", 1, ref=odd), "ref"),
        (accounts.grant("u1", 1, reason=odd), "reason"),
        (accounts.deduct("u1", 1, ref=odd), "ref"),
        (accounts.refund("u1", ref=odd), "ref"),
        (accounts.create(odd), "account"),
        (accounts.create("u1", plan=odd), "plan"),
        (accounts.set_plan("u1", odd), "plan"),
        (accounts.show(odd), "account"),
        (accounts.ledger(odd), "account"),
        (accounts.list(after=odd), "after"),
        (accounts.edit_plan(odd), "plan"),
        (accounts.reset_plan(odd), "plan"),
    ):
        with pytest.raises(Invalid, match=f"{field} holds a NUL character") as caught:
            await call
        assert (caught.value.code, caught.value.field) == (f"invalid_{field}", field)
    number: Any = 5
    with pytest.raises(Invalid, match="ref must be a text, not int"):
        await accounts.grant("u1", 1, ref=number)


@pytest.mark.parametrize("limit", [0, 1001, True, "5", 1.0, None], ids=repr)
async def test_an_odd_limit_is_refused_by_name(engine: Engine, limit: Any) -> None:
    for call in (engine.accounts.ledger("u1", limit=limit), engine.accounts.list(limit=limit)):
        with pytest.raises(Invalid, match="limit must be a whole number from 1 to 1000") as caught:
            await call
        assert caught.value.field == "limit"
    with pytest.raises(Invalid, match="before must be a whole number"):
        await engine.accounts.ledger("u1", before=2**64)


async def test_the_ledger_goes_page_by_page(engine: Engine) -> None:
    for n in range(1, 8):
        await engine.accounts.grant("u1", n)
    found, before = [], None
    while page := await engine.accounts.ledger("u1", limit=3, before=before):
        found += [line["amount"] for line in page]
        before = page[-1]["id"]
    assert found == [7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("driver", BORROWERS)
async def test_credits_move_in_the_callers_transaction(
    engine: Engine, database: str, driver: str
) -> None:
    """G1, G19: with any driver."""
    await engine.accounts.grant("u1", 10)
    async with BORROWERS[driver](database) as own:
        accounts = engine.accounts
        assert (await accounts.grant("u1", 5, reason="r", conn=own.conn))["balance"] == 15
        assert (await accounts.deduct("u1", 3, ref="d", conn=own.conn))["balance"] == 12
        assert (await accounts.refund("u1", ref="d", conn=own.conn))["balance"] == 15
        assert (await accounts.show("u1", conn=own.conn))["balance"] == 15
        await own.end(commits=False)
    assert (await engine.accounts.show("u1"))["balance"] == 10


@pytest.mark.parametrize("driver", BORROWERS)
async def test_a_split_request_is_read_in_any_driver(
    engine: Engine, database: str, driver: str
) -> None:
    """G11"""
    await engine.queues.declare("q")
    await engine.queues.declare_kind("k", "q", price=2, split_field="n", split_most=4)
    await engine.accounts.grant("u1", 10)
    async with BORROWERS[driver](database) as own:
        one = await engine.jobs.submit(
            NewJob(kind="k", payload={"n": 8}, account="u1"), conn=own.conn
        )
        many = await engine.jobs.submit_many(
            [NewJob(kind="k", payload={"n": 1}, account="u1", price=price) for price in (1, None)],
            batched=True,
            conn=own.conn,
        )
        await own.end(commits=True)
    assert (len(one.ids), one.ids[0], one.balance) == (2, one.id, 8)
    assert one.batch is not None
    assert {each.batch for each in many} == {many[0].batch} != {one.batch}
    assert [each.balance for each in many] == [5, 5]
    assert (await engine.jobs.read_batch(one.batch))["total"] == 2
    assert (await engine.jobs.cancel_batch(one.batch))["cancelled"] == 2
    assert (await engine.accounts.show("u1"))["balance"] == 7


async def test_many_jobs_are_a_batch_only_if_asked_for(engine: Engine) -> None:
    await engine.queues.declare("q")
    await engine.queues.declare_kind("k", "q")
    jobs = [NewJob(kind="k"), NewJob(kind="k")]
    assert [one.batch for one in await engine.jobs.submit_many(jobs)] == [None, None]


def test_refusals_have_their_figures_as_properties() -> None:
    """G2, G7"""
    short = refusal(
        "PS402", "too few", '{"code": "insufficient_credits", "balance": 3, "required": 5}'
    )
    assert isinstance(short, InsufficientCredits)
    assert (short.balance, short.required) == (3, 5)
    late = refusal(
        "PS429",
        "too many",
        '{"code": "rate_limited", "retry_after": 12.5, "next_at": "2026-11-15T10:00:00Z"}',
    )
    assert isinstance(late, RateLimited)
    assert late.retry_after == 12.5
    assert late.next_at == datetime(2026, 11, 15, 10, tzinfo=UTC)
