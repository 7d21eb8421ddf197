"""The verbs of the SQL core, in Python. Holds the parts, and nothing else."""

from types import TracebackType
from typing import Self

from penstock.db.connections.driver_errors import translated
from penstock.db.connections.pool import Pool, open_pool
from penstock.engine.accounts.accounts import Accounts, Erasure
from penstock.engine.accounts.keys import Keys
from penstock.engine.accounts.sessions import Grants
from penstock.engine.driven_queues import Drive
from penstock.engine.jobs.attempts import Progress
from penstock.engine.jobs.callbacks import Callbacks
from penstock.engine.jobs.jobs import Jobs
from penstock.engine.jobs.on_finish import OnFinish
from penstock.engine.maintenance import Upkeep
from penstock.engine.queries.events import Events
from penstock.engine.queries.json_texts import Texts
from penstock.engine.queries.lists import Hourly, JobRows, Lists
from penstock.engine.queues import Circuits, Queues
from penstock.engine.statements import PooledStatements
from penstock.engine.uploads import Uploads
from penstock.engine.webhooks import Webhooks
from penstock.engine.workers import Workers


class Engine:
    """`async with await Engine.open(dsn) as engine: await engine.jobs.submit(...)`."""

    def __init__(self, pool: Pool, *, within_seconds: float | None = None) -> None:
        self._pool = pool
        statements = PooledStatements(pool, within_seconds)
        fetch = statements.fetch
        self.transaction = statements.transaction
        self.jobs = Jobs(fetch, commits=not pool.frugal)
        self.queues = Queues(fetch)
        self.circuits = Circuits(fetch)
        self.accounts = Accounts(fetch)
        self.keys = Keys(fetch)
        self.grants = Grants(fetch)
        self.workers = Workers(fetch)
        self.upkeep = Upkeep(fetch)
        self.lists = Lists(fetch)
        self.texts = Texts(fetch)
        self.rows = JobRows(fetch)
        self.progress = Progress(fetch)
        self.on_finish = OnFinish(fetch)
        self.hourly = Hourly(fetch)
        self.erasure = Erasure(fetch)
        self.events = Events(fetch)
        self.callbacks = Callbacks(fetch)
        self.webhooks = Webhooks(fetch)
        self.drive = Drive(fetch)
        self.uploads = Uploads(fetch, self.transaction)

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        max_connections: int = 10,
        frugal: bool = False,
        answer_seconds: float | None = None,
    ) -> Self:
        """Connect to a database that has the schema.

        `frugal`: use a pooler that gives each transaction another session. `answer_seconds`: a call
        that takes longer raises Unavailable, and its connection is closed.
        """
        with translated():
            pool = await open_pool(
                dsn, max_size=max_connections, frugal=frugal, answer_seconds=answer_seconds
            )
        return cls(pool)

    def within(self, seconds: float) -> Self:
        """The same engine for callers who cannot wait for longer: their calls raise Unavailable.

        Whether such a call took effect is not known. A commit that waits for its standby is one.
        """
        return type(self)(self._pool, within_seconds=seconds)

    async def close(self) -> None:
        await self._pool.close()

    def renew(self) -> None:
        """Close each connection when it is next free; new ones replace them."""
        self._pool.expire()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
