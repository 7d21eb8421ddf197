"""The auditor of the credits storm reports every fault in the ledger."""

import asyncpg
import pytest

from support import factory
from support.storms.auditor import Auditor

OPEN = (
    "alter table penstock.ledger disable trigger user",
    "alter table penstock.resolution disable trigger user",
    "alter table penstock.account drop constraint balance_not_negative",
    "alter table penstock.ledger drop constraint balance_not_negative",
)
NEWEST = "(select max(id) from penstock.ledger)"
# The balance changes, too, so that the sums agree; but the auditor has seen the line before.
LOST = f"""
delete from penstock.ledger where id = {NEWEST};
update penstock.account set balance = balance - 50 where name = 'a'
"""
TWICE = """
alter table penstock.resolution drop constraint resolution_pkey;
insert into penstock.resolution select * from penstock.resolution where charged = 0
"""


async def books(conn: asyncpg.Connection) -> None:
    """A grant, a partly charged job, a free one, a live one, a deduction, and a late grant."""
    await factory.queue(conn)
    await factory.plan(conn)
    await conn.execute("select penstock.grant_credits('a', 100)")
    worker = await factory.worker(conn)
    for _ in range(3):
        await factory.submit(conn, account="a", price=10)
    part, nothing = await factory.claim(conn, worker, limit=2)
    await conn.execute(
        "select verdict from penstock.finish_jobs($1, $2, $3, '{succeeded}', p_units => '{3}')",
        worker,
        [part["id"]],
        [part["attempt"]],
    )
    await factory.finish(conn, worker, [nothing], "failed")
    await conn.execute("select penstock.deduct_credits('a', 5, null, 'r')")
    await conn.execute("select penstock.grant_credits('a', 50)")


async def test_sound_books_add_up(conn: asyncpg.Connection) -> None:
    """G1"""
    await books(conn)
    auditor = Auditor()
    for _ in range(2):
        await auditor.check(conn, thorough=True)
    await conn.execute("select penstock.grant_credits('a', 1)")
    await auditor.check(conn, thorough=True)
    assert (auditor.snapshots, auditor.lowest) == (3, {"a": 70})


@pytest.mark.unsound
@pytest.mark.parametrize(
    ("fault", "cry"),
    [
        ("update penstock.account set balance = balance + 1 where name = 'a'", "account a"),
        ("update penstock.account set balance = -1 where name = 'a'", "account a"),
        (f"update penstock.ledger set balance_after = -1 where id = {NEWEST}", "was Memory"),
        (LOST, "was Memory"),
        ("update penstock.resolution set charged = 4, refunded = 6 where charged = 3", "account a"),
        ("delete from penstock.resolution where charged = 3", "account a"),
        (TWICE, "account a"),
        ("delete from penstock.job", "account a"),
        ("update penstock.job set reserved = 9", "account a"),
        ("update penstock.finished set reserved = 9 where reserved = 10", "jobs and their"),
    ],
)
async def test_faults_in_the_ledger_are_found(
    conn: asyncpg.Connection, fault: str, cry: str
) -> None:
    """G1, G3, G4"""
    await books(conn)
    auditor = Auditor()
    await auditor.check(conn, thorough=True)
    for statement in (*OPEN, fault):
        await conn.execute(statement)
    with pytest.raises(AssertionError, match=cry):
        await auditor.check(conn, thorough=True)
