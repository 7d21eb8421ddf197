"""The verbs of the SQL core, in Python. Holds the parts, and nothing else."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import asyncpg

from penstock.db.borrowed import Rows
from penstock.db.call import translated
from penstock.db.pool import open_pool
from penstock.engine.jobs import Jobs
from penstock.engine.queues import Accounts, Queues
from penstock.engine.upkeep import Upkeep
from penstock.engine.workers import Workers


class Engine:
    """`async with await Engine.open(dsn) as engine: await engine.jobs.submit(...)`."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]") -> None:
        self._pool = pool
        self.jobs = Jobs(self._fetch)
        self.queues = Queues(self._fetch)
        self.accounts = Accounts(self._fetch)
        self.workers = Workers(self._fetch)
        self.upkeep = Upkeep(self._fetch)

    @classmethod
    async def open(cls, dsn: str, *, max_connections: int = 10) -> Self:
        """Connect to a database whose schema is in place."""
        with translated():
            return cls(await open_pool(dsn, max_size=max_connections))

    async def close(self) -> None:
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _fetch(self, sql: str, args: Sequence[Any]) -> Rows:
        with translated():
            return list(await self._pool.fetch(sql, *args))
