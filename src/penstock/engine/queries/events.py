"""Changes of jobs: notifications of them, and the queries of live streams.

A notification only makes things faster: if one is lost, a worker or a watcher waits a poll
interval. NOTIFY takes a lock at commit that all of them share, so during many commits only a few
are sent: the first at once, or with the commit itself; then at most one per key and pause; and none
while nothing happens.

After a restart all clients reconnect at once, so questions that arrive together share a statement.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from penstock.engine.statements import Statements

# The pause between two notifications for the workers of a queue.
WAKE_PAUSE_SECONDS = 0.005
# The pause between two notifications for watchers of jobs.
CHANGE_PAUSE_SECONDS = 0.04
# How long a server or worker that stops may take to send its last notification.
LAST_SECONDS = 1.0
# An event of a batch contains this many of its jobs.
BATCH_ITEMS = 100


class Scope(NamedTuple):
    """Jobs that are watched together: of a topic, of an account, or both."""

    topic: str | None
    account: str | None
    public: bool = False
    """For customers (public.sql). Operators, who see all of a job, watch a separate scope."""


class WatchedJob(NamedTuple):
    """A job, or a batch of jobs, and the scope of its watcher."""

    id: UUID
    public: bool = False
    """As in Scope."""


class WatchRequest(NamedTuple):
    """What a caller wants to watch, and the account and topic that the caller is limited to."""

    kind: str
    """job, batch or account"""
    name: str
    account: str | None
    topic: str | None


@dataclass(frozen=True, slots=True)
class ScopeState:
    """A scope that has changed: its newest live jobs, and which of its newest have finished."""

    n: int
    fingerprint: int
    live: dict[UUID, int]
    finished: list[UUID]


@dataclass(frozen=True, slots=True)
class JobState:
    """The present state of a job."""

    id: UUID
    version: int
    status: str
    attempt: int
    mark: str
    """Position, waiting reason and staleness: they change without a new version."""
    eta_seconds: float | None
    text: str
    """The JSON that Postgres wrote."""


class Chunk(NamedTuple):
    attempt: int
    seq: int
    data: str


class Notifier:
    """Sends notifications for keys: queues, or one empty key if one is enough."""

    def __init__(
        self, send: Callable[[Sequence[str]], Awaitable[None]], *, pause_seconds: float
    ) -> None:
        self._send = send
        self._pause_seconds = pause_seconds
        self._unsent: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def notify(self, key: str = "") -> None:
        """Have a notification sent; return at once. Errors of sending are dropped."""
        self._unsent.add(key)
        task = self._tasks.get(key)
        if task is None or task.done():
            self._start(key)

    def may_join_commit(self, key: str) -> bool:
        """Whether the next commit may send the notification; if so, the pause begins now."""
        if key in self._tasks:
            return False
        self._start(key)
        return True

    async def close(self, seconds: float | None = None) -> None:
        """Send pending notifications within `seconds`: a script may exit right after a submit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while running := [task for task in self._tasks.values() if not task.done()]:
                    await asyncio.wait(running)
                if self._unsent:
                    # The end of `asyncio.run` cancels tasks before it closes anything else.
                    await self._send_now(*self._unsent)

    def _start(self, key: str) -> None:
        self._tasks[key] = asyncio.get_running_loop().create_task(self._keep_sending(key))

    async def _keep_sending(self, key: str) -> None:
        # If the notification was sent with a commit, only the pause is left to wait for.
        if key in self._unsent:
            await self._send_now(key)
        await asyncio.sleep(self._pause_seconds)
        while key in self._unsent:
            await self._send_now(key)
            await asyncio.sleep(self._pause_seconds)
        # Here and not in a callback: a `notify` in between would find a finished task.
        del self._tasks[key]

    async def _send_now(self, *keys: str) -> None:
        # Before it is sent: a commit during the sending needs another notification.
        self._unsent.difference_update(keys)
        try:
            with suppress(Exception):
                await self._send(keys)
        except asyncio.CancelledError:
            self._unsent.update(keys)
            raise


Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Batcher(Generic[Question, Answer]):
    """Gathers questions while a batch is answered; a single question does not wait."""

    def __init__(
        self,
        ask: Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]],
        most: int,
        at_once: int = 1,
    ) -> None:
        """`most`: questions per batch; `at_once`: batches that are answered at the same time."""
        self._ask = ask
        self._most = most
        self._at_once = at_once
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, question: Question) -> Answer:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, answer))
        # A batch that is about to begin takes this question, too, unless it is full.
        if len(self._tasks) < self._at_once:
            self._tasks.add(loop.create_task(self._keep_asking()))
        return await answer

    async def _keep_asking(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                # A caller that stopped waiting was answered with an error: its call must not take
                # effect now.
                batch = [(question, answer) for question, answer in batch if not answer.done()]
                if batch:
                    await self._answer(batch)
        finally:
            # Not in a callback of the task: a question asked before the callback would stay there.
            self._tasks.discard(asyncio.current_task())

    async def _answer(self, batch: Sequence[tuple[Question, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._ask([question for question, _ in batch])
        except Exception as error:  # noqa: BLE001  # raised in each caller
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


class Events(Statements):
    def notifier(self) -> Notifier:
        """Notifies all servers of live streams of changes, for the running event loop."""
        return Notifier(lambda _: self.notify(), pause_seconds=CHANGE_PAUSE_SECONDS)

    async def notify(self) -> None:
        """Notify all servers of live streams. After commit; the notification may be lost."""
        await self._fetch("select penstock.notify_change()", ())

    async def may_watch(self, requests: Sequence[WatchRequest]) -> list[bool]:
        """For each request: whether the job or scope exists, and its caller may see it."""
        sql = "select n, seen from penstock.may_watch($1, $2, $3, $4)"
        answers = await self._pairs(sql, *_columns(requests, 4))
        return [answers[n] for n in range(1, len(requests) + 1)]

    async def dead_keys(self, ids: Sequence[str]) -> set[str]:
        """Which of these keys were revoked or have expired."""
        return set(await self._values("select id from penstock.find_dead_keys($1) id", list(ids)))

    async def changed_jobs(self, ids: Sequence[UUID], versions: Sequence[int]) -> list[UUID]:
        """Which of these jobs have another version, or are not live any more."""
        sql = "select id from penstock.poll_jobs($1, $2)"
        return await self._values(sql, list(ids), list(versions))

    async def changed_scopes(
        self,
        scopes: Sequence[Scope],
        fingerprints: Sequence[int | None],
        *,
        margin: timedelta,
        most: int,
    ) -> list[ScopeState]:
        """The scopes that have another fingerprint; `n` counts from 0."""
        rows = await self._fetch(
            "select n, print, ids, versions, finished"
            " from penstock.poll_scopes($1, $2, $3, $4, $5)",
            (*_columns(scopes, 2), list(fingerprints), margin, most),
        )
        return [
            ScopeState(
                row["n"] - 1,
                row["print"],
                dict(zip(row["ids"] or (), row["versions"] or (), strict=True)),
                row["finished"] or [],
            )
            for row in rows
        ]

    async def running_jobs(self, scopes: Sequence[Scope]) -> list[tuple[int, UUID, int]]:
        """The running jobs of these scopes: (n from 0, job, version)."""
        rows = await self._fetch(
            "select n, id, version from penstock.poll_started($1, $2)", _columns(scopes, 2)
        )
        return [(row["n"] - 1, row["id"], row["version"]) for row in rows]

    async def recently_finished(
        self, scopes: Sequence[Scope], *, since: timedelta, most: int
    ) -> dict[int, tuple[list[UUID], bool]]:
        """Jobs of each scope (n from 0) that finished in that period; whether there may be more."""
        rows = await self._fetch(
            "select n, ids, more from penstock.find_recently_finished($1, $2, $3, $4)",
            (*_columns(scopes, 2), since, most),
        )
        return {row["n"] - 1: (row["ids"] or [], row["more"]) for row in rows}

    async def read_jobs(
        self, ids: Sequence[UUID], *, positions: int, public: bool = False
    ) -> list[JobState]:
        """The jobs that exist; the first `positions` of them with position and ETA.

        `public`: as customers see them.
        """
        return await self._rows(
            JobState,
            "select id, version, status, attempt, mark, eta_seconds, job"
            " from penstock.read_jobs($1, $2, $3)",
            *(list(ids), positions, public),
        )

    async def read_chunks(
        self, after: Sequence[tuple[UUID, int, int]], *, most: int
    ) -> list[list[Chunk]]:
        """Chunks after each (job, attempt, number), in order, at most `most` of each job."""
        rows = await self._fetch(
            "select n, attempt, seq, data from penstock.read_chunks_after($1, $2, $3, $4)",
            (*_columns(after, 3), most),
        )
        pages: list[list[Chunk]] = [[] for _ in after]
        for n, attempt, seq, data in (row.values() for row in rows):
            pages[n - 1].append(Chunk(attempt, seq, data))
        return pages

    async def batch_fingerprints(self, ids: Sequence[UUID]) -> dict[UUID, int]:
        """A number for each batch that changes with any of its jobs."""
        sql = "select id, print from penstock.poll_batches($1)"
        return await self._pairs(sql, list(ids))

    async def read_batch(
        self, batch: UUID, *, items: int = BATCH_ITEMS, public: bool = False
    ) -> str:
        """A batch with its first jobs, as JSON text."""
        return await self._value(
            str,
            "select (penstock.read_batch_of(cast($1 as uuid), null, $2, p_public => $3) - 'next')"
            "::text",
            *(batch, items, public),
        )

    async def read_balances(self, names: Sequence[str]) -> dict[str, str]:
        """Balance and counts of accounts, as JSON text."""
        sql = "select name, account from penstock.read_balances($1)"
        return await self._pairs(sql, list(names))


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> tuple[list[object], ...]:
    return tuple([row[column] for row in rows] for column in range(width))
