"""Sessions and tokens of browsers that become invalid before they expire."""

import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from penstock.engine.accounts.sessions import Grant, Grants
from penstock.engine.engine import Engine
from penstock.errors import Invalid
from support import factory
from support.clock import Clock


@pytest.fixture
async def grants(database: str) -> AsyncIterator[Grants]:
    async with await Engine.open(database, max_connections=1) as engine:
        yield engine.grants


async def erase(conn: asyncpg.Connection, account: str) -> None:
    while not (await conn.fetchval("select penstock.erase_account($1)", account))["done"]:
        pass


async def test_a_session_is_invalid_once_it_is_signed_out(grants: Grants) -> None:
    one, other = Grant(session="one"), Grant(session="other")
    assert await grants.are_over([one, other]) == [False, False]
    for _ in range(2):
        await grants.end_session("one", time.time() + 60)
    assert await grants.are_over([other, one, Grant(), one]) == [False, True, False, True]


async def test_a_signed_out_session_is_pruned_a_day_after_its_cookie_expired(
    conn: asyncpg.Connection, grants: Grants, clock: Clock
) -> None:
    """A server whose clock is behind accepts the cookie for longer."""
    await grants.end_session("one", time.time() + 3_600)
    await clock.advance("24h")
    assert "closed_session" not in await factory.prune(conn)
    assert await grants.are_over([Grant(session="one")]) == [True]
    await clock.advance("2h")
    assert "closed_session" in await factory.prune(conn)
    assert await conn.fetchval("select count(*) from penstock.closed_session") == 0


async def test_a_token_is_invalid_if_its_account_was_erased_and_created_again(
    conn: asyncpg.Connection, grants: Grants
) -> None:
    await factory.queue(conn)
    before_all = Grant(account="u1", issued=time.time())
    await factory.submit(conn, account="u1")
    await factory.submit(conn, account="u2")
    mine, others = (Grant(account=name, issued=time.time()) for name in ("u1", "u2"))
    unknown = Grant(account="nobody", issued=time.time())
    everyone = [before_all, mine, others, unknown]
    assert await grants.are_over(everyone) == [False] * 4
    await erase(conn, "u1")
    assert await grants.are_over(everyone) == [False] * 4, "no account has that name"
    between = Grant(account="u1", issued=time.time())
    await factory.submit(conn, account="u1")
    after = Grant(account="u1", issued=time.time())
    assert await grants.are_over([*everyone, between, after]) == [
        *(True, True, False, False),
        *(False, False),
    ]
    await erase(conn, "u1")
    await factory.submit(conn, account="u1")
    assert await grants.are_over([between, after]) == [True, True]


async def test_a_name_that_no_account_can_have_is_refused(grants: Grants) -> None:
    with pytest.raises(Invalid):
        await grants.are_over([Grant(account="a\0", issued=1.0)])
