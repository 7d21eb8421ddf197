"""Detecting a pooler in front of a server."""

import asyncio

import asyncpg
import pytest

from penstock.db.connections.pooler import is_pooled
from penstock.errors import Unavailable
from support.servers.pooler import pooled


async def test_a_direct_connection_is_not_pooled(blank: str) -> None:
    assert not await is_pooled(blank)


async def test_a_transaction_pooler_is_detected(blank: str) -> None:
    async with pooled(blank) as dsn:
        assert await is_pooled(dsn)


async def test_a_transaction_pooler_is_detected_while_others_use_it(blank: str) -> None:
    async def keep_busy(dsn: str, until: asyncio.Event) -> None:
        conn = await asyncpg.connect(dsn, statement_cache_size=0)
        while not until.is_set():
            async with conn.transaction():
                await conn.fetchval("select 1")
        conn.terminate()

    async with pooled(blank) as dsn:
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(keep_busy(dsn, enough))
            try:
                assert await is_pooled(dsn)
            finally:
                enough.set()


async def test_a_missing_server_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await is_pooled("postgresql://nobody@127.0.0.1:1/none")
