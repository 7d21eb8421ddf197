"""An engine on the test's database, and a role with few rights."""

from collections.abc import AsyncIterator
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from penstock.engine.engine import Engine
from support.cluster import OWNER, Cluster


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    async with await Engine.open(database, max_connections=4) as engine:
        yield engine


@pytest.fixture
async def stranger(cluster: Cluster, database: str) -> AsyncIterator[str]:
    """A role that may only call submit_job; its address."""
    role = f"app_{uuid4().hex[:12]}"
    admin = await asyncpg.connect(cluster.superuser_dsn(urlsplit(database).path[1:]))
    await admin.execute(f"create role {role} login")
    await admin.execute(f"grant usage on schema penstock to {role}")
    await admin.execute(f"grant select on penstock.migration, penstock.schema_info to {role}")
    await admin.execute(f"grant execute on function penstock.submit_job to {role}")
    yield database.replace(OWNER, role, 1)
    await admin.execute(f"drop owned by {role}")
    await admin.execute(f"drop role {role}")
    await admin.close()
