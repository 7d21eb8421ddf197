"""Calls that come at the same moment share a statement: submits of plain jobs, looks at jobs.

None of them can spoil another's: what cannot be answered together, because something is wrong with
it or it is not so plain, is asked by itself, and its own caller is told.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import NamedTuple
from uuid import UUID

import asyncpg

from penstock.api.gathering import Gathering
from penstock.db.call import translated
from penstock.engine.asked import NewJob
from penstock.engine.texts import EVERYTHING, Bodies, Scope, Text, Texts
from penstock.errors import Refused, RolledBack

# So many share a commit at most, and only small ones: nobody waits for another's megabyte.
MOST_SUBMITS = 32
LARGEST = 50_000
# A look at a deep queue takes milliseconds: few share one statement, and several go side by side.
MOST_LOOKS = 8
LOOKS_AT_ONCE = 4
# How long a submit or a look may take, with its turn.
WAIT_SECONDS = 10.0


class _Asked(NamedTuple):
    job: NewJob
    bodies: Bodies
    wake: bool


class Desk:
    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._submits: dict[str, Gathering[_Asked, Text | None]] = {}
        self._looks = Gathering(self._look, MOST_LOOKS, LOOKS_AT_ONCE)

    async def submit(self, job: NewJob, *, queue: str, wake: bool) -> Text | None:
        """Accept it with others; None: it has to be submitted by itself.

        `queue`: of its kind, as this app declares it; what holds up one queue holds up no other.
        `wake`: its resting workers are told with the commit.
        """
        if not _is_plain(job):
            return None
        bodies = self._texts.encode(job)
        if len(bodies.payload) + len(bodies.metadata or "") > LARGEST:
            return None
        found = self._submits.get(queue)
        if found is None:
            found = self._submits[queue] = Gathering(
                lambda asked: self._accept(queue, asked), MOST_SUBMITS
            )
        # With the wait for those before it: they may be at a commit that does not end.
        with translated():
            async with asyncio.timeout(WAIT_SECONDS):
                return await found.ask(_Asked(job, bodies, wake))

    async def look(self, job: UUID, scope: Scope = EVERYTHING) -> Text:
        """At a job, as far as this caller may see it."""
        with translated():
            async with asyncio.timeout(WAIT_SECONDS):
                found = await self._looks.ask((job, scope))
                # Says what is wrong, in the words of the database.
                return found or await self._texts.job(job, scope)

    async def _accept(self, queue: str, asked: Sequence[_Asked]) -> Sequence[Text | None]:
        return await _or_none(
            len(asked),
            self._texts.submit_together(
                queue,
                [one.job for one in asked],
                [one.bodies for one in asked],
                wake=any(one.wake for one in asked),
            ),
        )

    async def _look(self, asked: Sequence[tuple[UUID, Scope]]) -> Sequence[Text | None]:
        return await _or_none(len(asked), self._texts.jobs_together(asked))


async def _or_none(many: int, answers: Awaitable[Sequence[Text | None]]) -> Sequence[Text | None]:
    try:
        return await answers
    except (Refused, RolledBack, asyncpg.PostgresError):
        # The server said no, so nothing was written. Where it said nothing, all are told so.
        return [None] * many


def _is_plain(job: NewJob) -> bool:
    return (
        job.account is None
        and job.dedupe_key is None
        and job.price is None
        and job.webhook_url is None
    )
