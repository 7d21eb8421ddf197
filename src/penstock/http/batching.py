"""Simultaneous calls share a statement: after a restart all clients reconnect at once.

A Batcher does it for any question. BatchedJobs does it for submits of plain jobs and for reads of
jobs. A submit or read that is refused, or not plain, is repeated by itself: it fails no other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

import asyncpg

from penstock.db.connections.driver_errors import translated
from penstock.engine.jobs.jobs import NewJob
from penstock.engine.queries.json_texts import EVERYTHING, Bodies, Scope, Text, Texts
from penstock.errors import Refused, RolledBack

# How many submits share a commit, and how large each may be: none waits for another's megabyte.
MOST_SUBMITS = 32
LARGEST = 50_000
# A read in a deep queue takes milliseconds: few share one statement, and several run side by side.
MOST_READS = 8
READS_AT_ONCE = 4
# How long a submit or a read may take, the wait for its batch included.
WAIT_SECONDS = 10.0

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Batcher(Generic[Question, Answer]):
    """While a batch is answered the next one gathers, so a single question does not wait."""

    def __init__(
        self,
        ask: Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]],
        most: int,
        at_once: int = 1,
    ) -> None:
        """`most`: questions of one batch; `at_once`: batches that are answered at the same time."""
        self._ask = ask
        self._most = most
        self._at_once = at_once
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, question: Question) -> Answer:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, answer))
        # A batch that is about to begin takes this question along, unless it is full.
        if len(self._tasks) < self._at_once:
            self._tasks.add(loop.create_task(self._keep_asking()))
        return await answer

    async def _keep_asking(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                # A caller that has stopped waiting was answered with a failure: its call must not
                # take effect now.
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


class _Submit(NamedTuple):
    job: NewJob
    bodies: Bodies
    wake: bool


class BatchedJobs:
    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._submits: dict[str, Batcher[_Submit, Text | None]] = {}
        self._reads = Batcher(self._read, MOST_READS, READS_AT_ONCE)

    async def submit(self, job: NewJob, *, queue: str, wake: bool) -> Text | None:
        """Accept it with others; None: it has to be submitted by itself.

        `queue`: of its kind, as this app declares it; what holds up one queue holds up no other.
        `wake`: the commit wakes the idle workers of the queue.
        """
        if not _is_plain(job):
            return None
        bodies = self._texts.encode(job)
        if len(bodies.payload) + len(bodies.metadata or "") > LARGEST:
            return None
        batcher = self._submits.get(queue)
        if batcher is None:
            batcher = self._submits[queue] = Batcher(
                lambda submits: self._accept(queue, submits), MOST_SUBMITS
            )
        # With the wait for the batch before: that may be at a commit that does not end.
        with translated():
            async with asyncio.timeout(WAIT_SECONDS):
                return await batcher.ask(_Submit(job, bodies, wake))

    async def read(self, job: UUID, scope: Scope = EVERYTHING) -> Text:
        """Read a job, as far as this caller may see it."""
        with translated():
            async with asyncio.timeout(WAIT_SECONDS):
                text = await self._reads.ask((job, scope))
                # Read by itself, it is refused with the message of the database.
                return text or await self._texts.job(job, scope)

    async def _accept(self, queue: str, submits: Sequence[_Submit]) -> Sequence[Text | None]:
        jobs, bodies, wakes = zip(*submits, strict=True)
        accepted = self._texts.submit_together(queue, jobs, bodies, wake=any(wakes))
        return await _or_none(len(submits), accepted)

    async def _read(self, asked: Sequence[tuple[UUID, Scope]]) -> Sequence[Text | None]:
        return await _or_none(len(asked), self._texts.jobs_together(asked))


async def _or_none(count: int, answers: Awaitable[Sequence[Text | None]]) -> Sequence[Text | None]:
    try:
        return await answers
    except (Refused, RolledBack, asyncpg.PostgresError):
        # The server refused, so nothing was written. Without its answer every caller gets the
        # failure, and nothing is tried again.
        return [None] * count


def _is_plain(job: NewJob) -> bool:
    return (
        job.account is None
        and job.dedupe_key is None
        and job.price is None
        and job.webhook_url is None
    )
