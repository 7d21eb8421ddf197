"""An engine on the test's database."""

from collections.abc import AsyncIterator

import pytest

from penstock.engine import Engine


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    async with await Engine.open(database, max_connections=4) as engine:
        yield engine
