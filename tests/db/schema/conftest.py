"""A blank database for the migration runner, with schemas for it."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from support.connections import connections
from support.db.small_schemas import Folder
from support.shapes import Connect


@pytest.fixture
async def another(blank: str) -> AsyncIterator[Connect]:
    """A function that opens connections to the blank database; all are closed at the end."""
    async with connections(blank) as connect:
        yield connect


@pytest.fixture
async def conn(another: Connect) -> asyncpg.Connection:
    return await another()


@pytest.fixture
def schema(tmp_path: Path) -> Folder:
    return Folder(tmp_path)
