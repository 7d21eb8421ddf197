"""A crew of worker processes on the test's database."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from support.worker.apps import app
from support.worker.crew import Crew, declare


@pytest.fixture
async def crew(database: str, conn: asyncpg.Connection, tmp_path: Path) -> AsyncIterator[Crew]:
    await declare(database, app)
    crew = Crew(database, conn, tmp_path)
    yield crew
    crew.close()
