"""`app.accounts` and `app.sync.accounts`: accounts, credits and plans from the app's code."""

import inspect
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from penstock import (
    Conflict,
    Constant,
    InsufficientCredits,
    Invalid,
    NotFound,
    Penstock,
    RateLimited,
)
from penstock.client.accounts import Accounts
from penstock.client.sync import SyncAccounts
from penstock.engine.accounts.accounts import Accounts as EngineAccounts
from support.shapes import Connect


async def test_accounts_are_created_shown_and_changed(app: Penstock) -> None:
    """G8"""
    app.plan("free", concurrency=1, per_hour=10)
    app.plan("pro", concurrency=4)
    made = await app.accounts.create("u1")
    assert (made["id"], made["plan"], made["balance"]) == ("u1", "free", 0)
    assert (made["per_hour"], made["concurrency"], made["submitted_last_hour"]) == (10, 1, 0)
    assert (await app.accounts.create("u2", "pro"))["plan"] == "pro"
    changed = await app.accounts.set_plan("u1", "pro")
    assert (changed["plan"], changed["concurrency"]) == ("pro", 4)
    assert changed == await app.accounts.show("u1")
    assert [each["id"] for each in await app.accounts.list()] == ["u1", "u2"]
    assert [each["id"] for each in await app.accounts.list(limit=1, after="u1")] == ["u2"]
    with pytest.raises(Conflict, match="exists already"):
        await app.accounts.create("u1")
    with pytest.raises(NotFound, match="there is no account nobody"):
        await app.accounts.show("nobody")
    with pytest.raises(NotFound, match="there is no plan gold"):
        await app.accounts.set_plan("u1", "gold")


async def test_credits_change_once_per_reference(app: Penstock) -> None:
    """G19: exactly once, without a job."""
    accounts = app.accounts
    bought = await accounts.grant("u1", 10, reason="bought", ref="p1")
    assert (bought["kind"], bought["amount"], bought["balance"]) == ("grant", 10, 10)
    assert not bought["replayed"]
    again = await accounts.grant("u1", 10, reason="bought", ref="p1")
    assert (again["balance"], again["replayed"]) == (10, True)
    assert (await accounts.deduct("u1", 4, ref="d1"))["balance"] == 6
    assert (await accounts.deduct("u1", 4, ref="d1"))["balance"] == 6
    with pytest.raises(Conflict, match="was used for another amount") as reused:
        await accounts.deduct("u1", 5, ref="d1")
    assert reused.value.code == "ref_reused"
    with pytest.raises(InsufficientCredits) as caught:
        await accounts.deduct("u1", 7, ref="d2")
    assert (caught.value.balance, caught.value.required) == (6, 7)
    assert (await accounts.refund("u1", ref="d1", reason="sorry"))["balance"] == 10
    assert (await accounts.refund("u1", ref="d1"))["replayed"]
    with pytest.raises(NotFound) as unknown:
        await accounts.refund("u1", ref="d2")
    assert unknown.value.code == "unknown_ref"
    ledger = await accounts.ledger("u1")
    assert [(each["kind"], each["amount"], each["balance_after"]) for each in ledger] == [
        ("refund", 4, 10),
        ("deduct", -4, 6),
        ("grant", 10, 10),
    ]
    assert await accounts.ledger("u1", limit=1, before=ledger[0]["id"]) == [ledger[1]]


async def test_changes_may_be_part_of_the_callers_transaction(
    app: Penstock, connect: Connect
) -> None:
    """G1, G19: after a rollback nothing has changed."""
    await app.accounts.grant("u1", 10)
    own = await connect()
    transaction = own.transaction()
    await transaction.start()
    assert (await app.accounts.grant("u1", 5, conn=own))["balance"] == 15
    assert (await app.accounts.deduct("u1", 7, ref="d", conn=own))["balance"] == 8
    assert (await app.accounts.refund("u1", ref="d", conn=own))["balance"] == 15
    assert (await app.accounts.show("u1"))["balance"] == 10
    await transaction.rollback()
    assert (await app.accounts.show("u1"))["balance"] == 10
    assert len(await app.accounts.ledger("u1")) == 1


async def test_plans_are_edited_at_run_time(app: Penstock) -> None:
    """G8: without a migration, and shown as overrides."""
    app.plan("free", priority=50, concurrency=1)
    await app.accounts.edit_plan("free", concurrency=3, per_hour=2)
    [plan] = await app.accounts.plans()
    assert (plan["name"], plan["concurrency"], plan["per_hour"]) == ("free", 3, 2)
    assert plan["overrides"] == {"concurrency": 3, "per_hour": 2}
    await app.accounts.edit_plan("free", concurrency=None)
    [plan] = await app.accounts.plans()
    assert (plan["concurrency"], plan["overrides"]) == (1, {"per_hour": 2})
    await app.accounts.reset_plan("free")
    [plan] = await app.accounts.plans()
    assert (plan["per_hour"], plan["overrides"]) == (None, {})
    for call in (app.accounts.edit_plan("gold", weight=1), app.accounts.reset_plan("gold")):
        with pytest.raises(NotFound, match="there is no plan gold"):
            await call
    with pytest.raises(Invalid, match="wieght is not an option"):
        await app.accounts.edit_plan("free", wieght=1)


async def test_a_submit_over_the_limit_says_when_to_try_again(app: Penstock) -> None:
    """G7"""
    app.queue("q")
    app.plan("free", per_hour=2)

    @app.job(queue="q", account=Constant("u1"))
    async def work() -> None: ...

    await work.submit_many([{}, {}])
    with pytest.raises(RateLimited) as caught:
        await work.submit()
    error = caught.value
    assert (error.status, error.code) == (429, "rate_limited")
    assert error.retry_after is not None
    assert 3_500 < error.retry_after <= 3_600
    shown = await app.accounts.show("u1")
    assert (shown["submitted_last_hour"], shown["per_hour"]) == (2, 2)
    assert error.next_at is not None
    assert error.next_at.tzinfo is not None
    assert error.next_at.isoformat()[:19] == shown["next_submit_at"][:19]


@pytest.fixture
def blocking(database: str) -> Iterator[Penstock]:
    app = Penstock(database, name="tests")
    yield app
    app.sync.close()


def test_the_same_calls_block(blocking: Penstock) -> None:
    accounts = blocking.sync.accounts
    blocking.plan("free", concurrency=1)
    blocking.plan("pro")
    assert accounts.create("u1")["plan"] == "free"
    assert accounts.set_plan("u1", plan="pro")["plan"] == "pro"
    assert accounts.grant("u1", 10, ref="p")["balance"] == 10
    assert accounts.deduct("u1", 4, ref="d")["balance"] == 6
    assert accounts.refund("u1", ref="d")["balance"] == 10
    assert accounts.show("u1")["balance"] == 10
    assert [each["kind"] for each in accounts.ledger("u1", limit=2)] == ["refund", "deduct"]
    assert [each["id"] for each in accounts.list()] == ["u1"]
    accounts.edit_plan("pro", concurrency=2)
    assert {each["name"]: each["concurrency"] for each in accounts.plans()} == {"free": 1, "pro": 2}
    accounts.reset_plan("pro")
    assert {each["name"]: each["concurrency"] for each in accounts.plans()}["pro"] is None
    with pytest.raises(InsufficientCredits) as caught:
        accounts.deduct("u1", 11, ref="e")
    assert caught.value.balance == 10


def test_a_blocking_connection_stays_in_its_thread(blocking: Penstock, database: str) -> None:
    accounts = blocking.sync.accounts
    with psycopg.connect(database) as own:
        assert accounts.grant("u1", 10, conn=own)["balance"] == 10
        assert accounts.deduct("u1", 4, ref="d", conn=own)["balance"] == 6
        assert accounts.refund("u1", ref="d", conn=own)["balance"] == 10
        own.rollback()
    with pytest.raises(NotFound):
        accounts.show("u1")


async def test_an_async_connection_is_refused(app: Penstock, conn: asyncpg.Connection) -> None:
    with pytest.raises(Invalid, match=r"await app.accounts.grant\(...\) there") as caught:
        app.sync.accounts.grant("u1", 1, conn=conn)
    assert caught.value.code == "invalid_connection"


def test_all_three_have_the_same_calls() -> None:
    def calls(of: type) -> dict[str, Any]:
        return {
            name: list(inspect.signature(call).parameters.values())
            for name, call in vars(of).items()
            if callable(call) and not name.startswith("_")
        }

    named = {name for name in calls(EngineAccounts) if name != "declare_plan"}
    assert set(calls(Accounts)) == named
    assert {name: call for name, call in calls(SyncAccounts).items() if name != "run"} == calls(
        Accounts
    )
