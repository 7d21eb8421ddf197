"""Queues and jobs in every state, in one line each, straight through the SQL functions.

No worker runs here: what `running` makes stays so until the test moves it. `live.work()` brings
upkeep with it, which takes what nobody beats for as lost.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from support import circuits, factory
from support.clock import Clock
from support.factory import Row

LEASE = "100 days"
ADDRESS = "127.0.0.1:11434"


class Scene:
    """Jobs wait in queue `line`, of a kind of that name, unless they say otherwise."""

    def __init__(self, conn: asyncpg.Connection, clock: Clock) -> None:
        self.conn = conn
        self.clock = clock
        self.usual_worker = "w"
        self._workers: dict[str, int] = {}

    @classmethod
    async def begin(cls, conn: asyncpg.Connection, clock: Clock) -> "Scene":
        """As if upkeep had been here until now: the template was made when the run began."""
        await conn.execute(
            "update penstock.rollup set counted_until = penstock.clock(),"
            " settled_until = date_trunc('hour', penstock.clock(), 'UTC')"
        )
        return cls(conn, clock)

    async def queue(self, name: str = "line", **options: Any) -> str:
        """With a kind of the same name, once; `options` as declare_queue takes them."""
        if options or not await self._is_known(name):
            await factory.queue(self.conn, name, **options)
        return name

    async def plan(self, name: str = "free", **options: Any) -> str:
        return await factory.plan(self.conn, name, **options)

    async def account(self, name: str, credits: int = 0) -> str:  # noqa: A002
        await self.conn.execute("select penstock.create_account($1)", name)
        if credits:
            await self.conn.execute(
                "select penstock.grant_credits($1, $2, 'welcome')", name, credits
            )
        return name

    async def worker(self, name: str | None = None) -> int:
        name = name or self.usual_worker
        if name not in self._workers:
            self._workers[name] = await factory.worker(self.conn, name, lease=LEASE)
        return self._workers[name]

    async def beat(self) -> None:
        """Its workers are heard of now."""
        await self.conn.execute("update penstock.worker set beat_at = penstock.clock()")

    async def queued(self, kind: str = "line", **fields: Any) -> UUID:
        """`fields` as submit_job takes them: account, topic, payload, price, priority …"""
        await self.queue(kind)
        return await factory.submit(self.conn, kind, **fields)

    async def many(self, count: int, kind: str = "line", **fields: Any) -> list[UUID]:
        await self.queue(kind)
        rows = [{"kind": kind, "payload": {"n": n}} | fields for n in range(count)]
        return await factory.submit_rows(self.conn, rows)

    async def scheduled(self, kind: str = "line", *, seconds: float = 3_600, **more: Any) -> UUID:
        return await self.queued(kind, delay_seconds=seconds, **more)

    async def started(self, kind: str = "line", *, worker: str | None = None, **fields: Any) -> Row:
        """The start itself, to be told more of, or ended: `scene.end(row, "succeeded")`."""
        job = await self.queued(kind, **fields)
        return await self.start(job, kind, worker=worker)

    async def start(self, job: UUID, kind: str = "line", *, worker: str | None = None) -> Row:
        """Start a job that waits; it has to be allowed to."""
        row: Row | None = await self.conn.fetchrow(
            "select * from penstock.claim_jobs($1, $2, 1, false, $3)",
            await self.worker(worker),
            kind,
            job,
        )
        assert row, f"the job may not start now: {await self.read(job)}"
        return row

    async def running(
        self,
        kind: str = "line",
        *,
        stage: str | None = None,
        label: str | None = None,
        progress: dict[str, Any] | None = None,
        chunks: tuple[str, ...] = (),
        **fields: Any,
    ) -> UUID:
        row = await self.started(kind, **fields)
        await self.report(row, stage=stage, label=label, progress=progress)
        await self.emit(row, *chunks)
        job: UUID = row["id"]
        return job

    async def report(
        self,
        row: Row,
        *,
        stage: str | None = None,
        label: str | None = None,
        progress: dict[str, Any] | None = None,
    ) -> None:
        """What a handler says while it runs; `progress` like {"done": 1, "total": 4}."""
        await self.conn.execute(
            "select penstock.report_progress($1, $2, $3, $4, $5, $6)",
            await self.worker(),
            [row["id"]],
            [row["attempt"]],
            [stage],
            [label],
            [progress],
        )

    async def emit(self, row: Row, *chunks: str, first: int = 1) -> None:
        """Tokens, in order; `first` is the number of the first."""
        n = len(chunks)
        await self.conn.execute(
            "select penstock.append_chunks($1, $2, $3, $4, $5)",
            await self.worker(),
            [row["id"]] * n,
            [row["attempt"]] * n,
            list(range(first, first + n)),
            list(chunks),
        )

    async def awaiting(self, kind: str = "line", **fields: Any) -> UUID:
        row = await self.started(kind, **fields)
        await factory.hand_over(self.conn, await self.worker(), row, "a-token-of-this-test")
        job: UUID = row["id"]
        return job

    async def end(self, row: Row, outcome: str = "succeeded", **told: Any) -> UUID:
        """`told`: result, error {"class", "message"}, delay; of `outcome` all that SQL knows."""
        await factory.finish(self.conn, await self.worker(), [row], outcome, **told)
        job: UUID = row["id"]
        return job

    async def succeeded(self, kind: str = "line", *, result: Any = None, **fields: Any) -> UUID:
        return await self.end(await self.started(kind, **fields), "succeeded", result=result)

    async def failed(
        self,
        kind: str = "line",
        *,
        cls: str = "bug",
        message: str = "ValueError: the page has no text",
        **fields: Any,
    ) -> UUID:
        error = {"class": cls, "message": message, "retryable": False}
        return await self.end(await self.started(kind, **fields), "failed", error=error)

    async def retrying(
        self,
        kind: str = "line",
        *,
        cls: str = "timeout",
        message: str = "over its time",
        **more: Any,
    ) -> UUID:
        """Has failed once, and waits for its next try."""
        error = {"class": cls, "message": message, "retryable": True}
        return await self.end(await self.started(kind, **more), "retry", error=error)

    async def cancelled(self, kind: str = "line", **fields: Any) -> UUID:
        job = await self.queued(kind, **fields)
        await self.conn.fetchval("select penstock.cancel_job($1)", job)
        return job

    async def stale(self, kind: str = "slow", *, minutes: int = 4, **fields: Any) -> UUID:
        """Runs, and has said nothing for so long."""
        await self.queue(kind, stale_after_seconds=60, timeout_seconds=7_200)
        async with self.earlier(minutes=minutes):
            return await self.running(kind, stage="TIER1", label="Tier 1 scanning", **fields)

    @asynccontextmanager
    async def earlier(self, **ago: float) -> AsyncIterator[None]:
        """What is done inside was done so long ago: `async with scene.earlier(hours=3):`."""
        back = timedelta(**ago)
        await self.conn.execute("update penstock.test_clock set moved = moved - $1", back)
        await self.conn.execute("select penstock.make_partitions()")
        yield
        await self.conn.execute("update penstock.test_clock set moved = moved + $1", back)

    async def count_hours(self, hours: int = 26) -> None:
        """Add up the figures by the hour, as upkeep does, of so many hours back."""
        await self.conn.execute(
            "update penstock.rollup set counted_until = penstock.clock() - $1::interval,"
            " settled_until = date_trunc('hour', penstock.clock() - $1::interval)",
            timedelta(hours=hours),
        )
        while await self.conn.fetchval("select penstock.roll_up()"):
            pass

    async def outage(self, kind: str = "model", *, cls: str = "unavailable") -> str:
        """A queue whose provider is away since now (`auth`, `quota`: held until somebody acts)."""
        await self.many(4, kind)
        worker = await self.worker()
        for _ in range(10):
            if await self._circuit(kind) != "closed":
                return kind
            started = await factory.claim(self.conn, worker, kind, 2)
            await circuits.end(self.conn, worker, started, cls, address=ADDRESS, delay="0")
        raise AssertionError(f"the circuit of {kind} did not open by {cls}")

    async def read(self, job: UUID) -> dict[str, Any]:
        return await factory.read(self.conn, job)

    async def _circuit(self, queue: str) -> str:
        state: str = (await circuits.circuit(self.conn, queue))["state"]
        return state

    async def _is_known(self, queue: str) -> bool:
        found: bool = await self.conn.fetchval(
            "select exists (select from penstock.queue where name = $1)", queue
        )
        return found
