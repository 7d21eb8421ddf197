"""An engine for callers who cannot wait: each part of a call that may hang has a limit."""

import time
from typing import Any

import asyncpg
import pytest

from penstock.engine.engine import Engine
from penstock.errors import Unavailable

WITHIN_SECONDS = 0.3
MOST_SECONDS = 5.0


async def test_a_transaction_does_not_wait_for_a_connection_without_limit(database: str) -> None:
    async with await Engine.open(database, max_connections=1) as engine, engine.transaction():
        begun = time.monotonic()
        with pytest.raises(Unavailable):
            async with engine.within(WITHIN_SECONDS).transaction():
                pytest.fail("no connection was available")
        assert time.monotonic() - begun < MOST_SECONDS


async def test_a_transaction_does_not_wait_for_its_begin_without_limit(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the engine works with another connection."""

    async def hang(transaction: Any) -> None:
        await transaction._connection.execute("select pg_sleep(60)")

    async with await Engine.open(database, max_connections=1) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(asyncpg.transaction.Transaction, "start", hang)
            begun = time.monotonic()
            with pytest.raises(Unavailable):
                async with engine.within(WITHIN_SECONDS).transaction():
                    pytest.fail("the transaction did not begin")
            assert time.monotonic() - begun < MOST_SECONDS
        async with engine.transaction() as conn:
            assert await conn.fetchval("select 1") == 1
